import { and, eq, sql, type SQL } from 'drizzle-orm';
import type { Queryable } from './database.ts';
import { sessions, viewers } from './schema.ts';

/*
 * Who watches a session, by the last session of its chain. Attaching, detaching and closing are
 * decided under that session's row lock; renewing needs none.
 */

export interface ViewerOf {
  tenantId: string;
  /** The last session of the chain. */
  sessionId: string;
  viewerId: string;
}

/**
 * True for a viewer `v` whose lease runs. It does not run out for a time in which the service itself
 * was not there to have it renewed.
 */
function watches(now: number): SQL {
  return sql`greatest(v.renewed_at,
      (select w.uninterrupted_since from service_watch w where w.tenant_id = ''))
    + v.lease_ms * interval '1 millisecond' > ${now}::timestamptz`;
}

/** Puts a viewer there. */
export async function insertViewer(
  tx: Queryable,
  { now, leaseMs, ...of }: ViewerOf & { now: number; leaseMs: number },
): Promise<void> {
  await tx.insert(viewers).values({ ...of, attachedAt: now, renewedAt: now, leaseMs });
}

/** Takes a close of the session back. */
export async function reopenSession(
  tx: Queryable,
  { tenantId, sessionId }: Omit<ViewerOf, 'viewerId'>,
): Promise<void> {
  await tx
    .update(sessions)
    .set({ closedAt: null, endReason: null })
    .where(
      and(
        eq(sessions.tenantId, tenantId),
        eq(sessions.id, sessionId),
        sql`${sessions.closedAt} is not null`,
      ),
    );
}

/** Renews the lease of a viewer of this session (or of its chain); false if it has run out. */
export async function renewViewer(
  db: Queryable,
  { tenantId, sessionId, viewerId, now }: ViewerOf & { now: number },
): Promise<boolean> {
  const rows = await db.execute(sql`
    update viewers v set renewed_at = greatest(v.renewed_at, ${now}::timestamptz)
    where v.tenant_id = ${tenantId} and v.viewer_id = ${viewerId} and ${watches(now)}
      and v.session_id in (
        select coalesce(s.tip_session_id, s.id) from sessions s
        where s.tenant_id = ${tenantId} and s.id = ${sessionId})
    returning 1`);
  return rows.length > 0;
}

/** Renews the leases of these viewers, those that have not run out. */
export async function renewViewers(
  db: Queryable,
  { now, ...of }: { tenantIds: string[]; viewerIds: string[]; now: number },
): Promise<void> {
  await db.execute(sql`
    update viewers v set renewed_at = greatest(v.renewed_at, ${now}::timestamptz)
    from (
      select v.tenant_id, v.viewer_id from viewers v
      join unnest(${sql.param(of.tenantIds)}::text[], ${sql.param(of.viewerIds)}::text[])
        as r(tenant_id, viewer_id) on v.tenant_id = r.tenant_id and v.viewer_id = r.viewer_id
      order by v.tenant_id, v.viewer_id for update of v
    ) r
    where v.tenant_id = r.tenant_id and v.viewer_id = r.viewer_id and ${watches(now)}`);
}

/**
 * Takes a viewer away, with those of the session whose leases have run out: what is not counted now
 * cannot be renewed later. Says whether its own lease still ran, and how many are left.
 */
export async function deleteViewer(
  tx: Queryable,
  { tenantId, sessionId, viewerId, now }: ViewerOf & { now: number },
): Promise<{ watched: boolean; left: number }> {
  const gone = await tx.execute<{ watched: boolean }>(sql`
    delete from viewers v where v.tenant_id = ${tenantId} and v.session_id = ${sessionId}
      and (v.viewer_id = ${viewerId} or not (${watches(now)}))
    returning ${watches(now)} as watched`);
  const [row] = await tx.execute<{ left: number }>(sql`
    select count(*)::int as left from viewers
    where tenant_id = ${tenantId} and session_id = ${sessionId}`);
  // Of those whose leases run, only the one that leaves is gone.
  return { watched: gone.some((one) => one.watched), left: row?.left ?? 0 };
}

/** Removes viewers whose leases have run out, at most `limit`; says how many. */
export async function deleteExpiredViewers(
  db: Queryable,
  { now, limit }: { now: number; limit: number },
): Promise<number> {
  const rows = await db.execute(sql`
    delete from viewers where (tenant_id, viewer_id) in (
      select v.tenant_id, v.viewer_id from viewers v where not (${watches(now)})
      limit ${limit} for update skip locked)
    returning 1`);
  return rows.length;
}

/** Deletes the viewers of these sessions. */
export async function deleteViewersOf(
  tx: Queryable,
  of: { tenantId: string; ids: string[] },
): Promise<void> {
  await tx.execute(sql`
    delete from viewers where tenant_id = ${of.tenantId}
      and session_id = any(${sql.param(of.ids)}::text[])`);
}

/** Who watched this session watches the one that it goes on as. */
export async function moveViewers(
  tx: Queryable,
  move: { tenantId: string; fromId: string; toId: string },
): Promise<void> {
  await tx.execute(sql`
    update viewers set session_id = ${move.toId}
    where tenant_id = ${move.tenantId} and session_id = ${move.fromId}`);
}
