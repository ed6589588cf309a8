import { and, eq, sql } from 'drizzle-orm';
import type { Queryable } from './database.ts';
import type { InboxOf } from './items.ts';
import { sessions } from './schema.ts';

/** The inbox of a session: that of the last session of its chain. */
export interface InboxRow {
  sessionId: string;
  /** The session itself or the last one of its chain was deleted. */
  deleted: boolean;
  openedAt: number | null;
  closedAt: number | null;
}

export interface LockedInbox extends InboxRow {
  goesOnAs: string | null;
}

/** The inbox in which the session's items lie; null if the session was never named. */
export async function selectInbox(
  db: Queryable,
  of: { tenantId: string; sessionId: string },
): Promise<InboxRow | null> {
  const rows = await db.execute<InboxRow & Record<string, unknown>>(sql`
    select t.id as "sessionId", t.inbox_opened_at as "openedAt", t.inbox_closed_at as "closedAt",
      s.deleted_at is not null or t.deleted_at is not null as deleted
    from sessions s
    join sessions t on t.tenant_id = s.tenant_id and t.id = coalesce(s.tip_session_id, s.id)
    where s.tenant_id = ${of.tenantId} and s.id = ${of.sessionId}`);
  return rows[0] ?? null;
}

/**
 * The same, its row locked against deliveries and all else. After a wait for the lock the session
 * may have gone on under yet another id: then `goesOnAs` names that one.
 */
export async function lockInbox(
  tx: Queryable,
  of: { tenantId: string; sessionId: string },
): Promise<LockedInbox | null> {
  const rows = await tx.execute<LockedInbox & Record<string, unknown>>(sql`
    select t.id as "sessionId", t.inbox_opened_at as "openedAt", t.inbox_closed_at as "closedAt",
      s.deleted_at is not null or t.deleted_at is not null as deleted,
      t.tip_session_id as "goesOnAs"
    from sessions s
    join sessions t on t.tenant_id = s.tenant_id and t.id = coalesce(s.tip_session_id, s.id)
    where s.tenant_id = ${of.tenantId} and s.id = ${of.sessionId} for update of t`);
  return rows[0] ?? null;
}

/** Opens the inbox; under its lock. */
export async function setInboxOpened(
  tx: Queryable,
  { tenantId, sessionId, now }: InboxOf & { now: number },
): Promise<void> {
  await tx
    .update(sessions)
    .set({ inboxOpenedAt: now, inboxClosedAt: null })
    .where(and(eq(sessions.tenantId, tenantId), eq(sessions.id, sessionId)));
}

/** Closes the inbox, also one that was never opened: then nothing but `PUT` opens it. */
export async function setInboxClosed(
  tx: Queryable,
  { tenantId, sessionId, now }: InboxOf & { now: number },
): Promise<void> {
  await tx
    .update(sessions)
    .set({
      inboxOpenedAt: sql`coalesce(${sessions.inboxOpenedAt}, ${now}::timestamptz)`,
      inboxClosedAt: sql`coalesce(${sessions.inboxClosedAt}, ${now}::timestamptz)`,
    })
    .where(and(eq(sessions.tenantId, tenantId), eq(sessions.id, sessionId)));
}

/** Whether nothing is in this inbox that is not acked, and whether results wait for room in it. */
export async function selectRoom(
  db: Queryable,
  of: InboxOf,
): Promise<{ isEmpty: boolean; isAwaited: boolean }> {
  const [row] = await db.execute<{ isEmpty: boolean; isAwaited: boolean }>(sql`
    select not exists (
      select 1 from items where session_id = ${of.sessionId} and tenant_id = ${of.tenantId}
        and acked_at is null) as "isEmpty",
    exists (
      select 1 from parked_reports
      where tenant_id = ${of.tenantId} and parent_session_id = ${of.sessionId}
        and state = 'parked' and reason = 'inbox_full') as "isAwaited"`);
  if (row === undefined) throw new Error('a select of constants answers one row');
  return row;
}
