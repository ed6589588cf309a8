import { sql } from 'drizzle-orm';
import type { Queryable } from './database.ts';

/** The watch belongs to the service, not to a tenant. */
const SERVICE = '';

export interface WatchRow {
  observedAt: number;
  uninterruptedSince: number;
}

/** What the last sweep of any replica left, locked for this one; null: none ever swept. */
export async function lockWatch(tx: Queryable): Promise<WatchRow | null> {
  const rows = await tx.execute<WatchRow & Record<string, unknown>>(sql`
    select (extract(epoch from observed_at) * 1000)::float8 as "observedAt",
      (extract(epoch from uninterrupted_since) * 1000)::float8 as "uninterruptedSince"
    from service_watch where tenant_id = ${SERVICE} for update`);
  return rows[0] ?? null;
}

/**
 * Leaves the watch for the next sweep. The commit does not wait for the disk: a look that is lost
 * makes the next one find a longer time unwatched.
 */
export async function putWatch(tx: Queryable, watch: WatchRow): Promise<void> {
  await tx.execute(sql`
    insert into service_watch (tenant_id, observed_at, uninterrupted_since)
    select ${SERVICE}, ${watch.observedAt}::timestamptz, ${watch.uninterruptedSince}::timestamptz
    from set_config('synchronous_commit', 'off', true)
    on conflict (tenant_id) do update set observed_at = excluded.observed_at,
      uninterrupted_since = excluded.uninterrupted_since`);
}
