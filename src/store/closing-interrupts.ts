import { and, eq, sql } from 'drizzle-orm';
import type { EndReason } from '../domain/closing.ts';
import type { Queryable } from './database.ts';
import { closingInterrupts, sessions } from './schema.ts';

export type ClosingInterrupt = typeof closingInterrupts.$inferSelect;

interface SessionOf {
  tenantId: string;
  /** The last session of the chain. */
  sessionId: string;
}

/**
 * Closes the session and notes what has to be stopped by it: the live work of its chain, and that of
 * the calls whose key is its route. Under its row lock, with which dispatches wait for it.
 */
export async function closeSession(
  tx: Queryable,
  { tenantId, sessionId, reason, now }: SessionOf & { reason: EndReason; now: number },
): Promise<void> {
  await tx
    .update(sessions)
    .set({ closedAt: now, endReason: reason })
    .where(and(eq(sessions.tenantId, tenantId), eq(sessions.id, sessionId)));
  await tx.execute(sql`
    with chain as materialized (
      select s.id, nullif(s.channel ->> 'route', '') as route from sessions s
      where s.tenant_id = ${tenantId} and s.id = ${sessionId}
      union all
      select s.id, nullif(s.channel ->> 'route', '') from sessions s
      where s.tenant_id = ${tenantId} and s.tip_session_id = ${sessionId}
    ), live as (
      select w.work_id, w.child_session_id from chain
      cross join lateral (
        select * from work q where q.tenant_id = ${tenantId}
          and q.parent_session_id = chain.id and q.ended_at is null offset 0
      ) w
      union
      select w.work_id, w.child_session_id from chain
      cross join lateral (
        select * from delegations q where q.tenant_id = ${tenantId}
          and q.session_key = chain.route and q.ended_at is null offset 0
      ) d
      cross join lateral (
        select * from work q where q.tenant_id = ${tenantId}
          and q.delegation_id = d.delegation_id and q.ended_at is null offset 0
      ) w
    )
    insert into closing_interrupts (tenant_id, work_id, session_id, child_session_id, closed_at)
    select ${tenantId}, work_id, ${sessionId}, child_session_id, ${now}::timestamptz from live
    on conflict do nothing`);
}

/** What has still to be stopped for this session, at most `limit`. */
export async function selectClosingInterruptsOf(
  db: Queryable,
  { tenantId, sessionId, limit }: SessionOf & { limit: number },
): Promise<ClosingInterrupt[]> {
  return await db
    .select()
    .from(closingInterrupts)
    .where(
      and(eq(closingInterrupts.tenantId, tenantId), eq(closingInterrupts.sessionId, sessionId)),
    )
    .limit(limit);
}

/** What whoever closed a session before `closedBefore` has left undone, at most `limit`. */
export async function selectOldClosingInterrupts(
  db: Queryable,
  { closedBefore, limit }: { closedBefore: number; limit: number },
): Promise<ClosingInterrupt[]> {
  return await db
    .select()
    .from(closingInterrupts)
    .where(sql`${closingInterrupts.closedAt} < ${closedBefore}::timestamptz`)
    .orderBy(closingInterrupts.closedAt)
    .limit(limit);
}

/** These have been stopped, or were not there any more. */
export async function deleteClosingInterrupts(
  db: Queryable,
  done: readonly Pick<ClosingInterrupt, 'tenantId' | 'workId'>[],
): Promise<void> {
  await db.execute(sql`
    delete from closing_interrupts c
    using unnest(${sql.param(done.map((d) => d.tenantId))}::text[],
      ${sql.param(done.map((d) => d.workId))}::text[]) as r(tenant_id, work_id)
    where c.tenant_id = r.tenant_id and c.work_id = r.work_id`);
}

/** What holds of a route by the sessions that have it. */
export interface Route {
  /** There are some, and all of them are closed. */
  isClosed: boolean;
  /** One that is open. Whoever keeps it from being closed keeps the route from it; null: none is. */
  openId: string | null;
}

/**
 * The route as its sessions stand. Where one is open, be it a new one beside those that were left, it
 * is that one which is meant.
 */
export async function selectRoute(
  db: Queryable,
  of: { tenantId: string; route: string },
): Promise<Route> {
  const [row] = await db.execute<Route & Record<string, unknown>>(sql`
    select coalesce(bool_and(s.closed_at is not null), false) as "isClosed",
      min(s.id) filter (where s.closed_at is null) as "openId"
    from sessions s
    where s.channel ->> 'route' = ${of.route} and s.tenant_id = ${of.tenantId}
      and s.deleted_at is null`);
  if (row === undefined) throw new Error('an aggregate answers one row');
  return row;
}
