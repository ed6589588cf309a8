import { sql } from 'drizzle-orm';
import type { Queryable } from './database.ts';

export interface BeatRow {
  tenantId: string;
  childId: string;
  workId: string | null;
  apiCalls: number | null;
  currentTool: string | null;
  lastActivityAt: string | null;
  now: number;
}

/**
 * Keeps the child's newest beat; a change moves `progress_at`, a beat that says what is known writes
 * nothing. Says whether it is the first of its work entry.
 */
export async function putBeat(tx: Queryable, beat: BeatRow): Promise<{ isFirst: boolean }> {
  const rows = await tx.execute<{ is_first: boolean }>(sql`
    insert into heartbeats as h (tenant_id, child_session_id, work_id, api_calls, current_tool,
      last_activity_at, first_at, progress_at)
    values (${beat.tenantId}, ${beat.childId}, ${beat.workId}, ${beat.apiCalls},
      ${beat.currentTool}, ${beat.lastActivityAt}, ${beat.now}::timestamptz,
      ${beat.now}::timestamptz)
    on conflict (tenant_id, child_session_id) do update set
      first_at = case when h.work_id is distinct from excluded.work_id
        then excluded.first_at else h.first_at end,
      work_id = excluded.work_id, api_calls = excluded.api_calls,
      current_tool = excluded.current_tool, last_activity_at = excluded.last_activity_at,
      progress_at = excluded.progress_at
      where (h.work_id, h.api_calls, h.current_tool, h.last_activity_at) is distinct from
        (excluded.work_id, excluded.api_calls, excluded.current_tool, excluded.last_activity_at)
    returning first_at = progress_at as is_first`);
  return { isFirst: rows[0]?.is_first ?? false };
}

/** Lets this transaction's commit not wait for the disk: a beat that is lost comes again. */
export async function commitWithoutWaiting(tx: Queryable): Promise<void> {
  await tx.execute(sql`set local synchronous_commit = off`);
}

export interface BeatenSession {
  deleted: boolean;
  described: boolean;
  runnerId: string | null;
  workId: string | null;
  status: string | null;
  interruptReason: string | null;
  /** What the clocks of the entry are set to; null where there is no entry. */
  createdAt: number | null;
  deadlineAt: number | null;
  childTimeoutMs: number | null;
  stall: { idleMs: number; inToolMs: number; graceMs: number } | null;
}

/** What a heartbeat of the session bears on; null: not even its name is known. */
export async function selectBeatenSession(
  db: Queryable,
  of: { tenantId: string; sessionId: string },
): Promise<BeatenSession | null> {
  const rows = await db.execute<BeatenSession & Record<string, unknown>>(sql`
    select s.deleted_at is not null as deleted, s.described_at is not null as described,
      s.runner_id as "runnerId", w.work_id as "workId", w.status,
      w.interrupt_reason as "interruptReason",
      (extract(epoch from w.created_at) * 1000)::float8 as "createdAt",
      (extract(epoch from w.deadline_at) * 1000)::float8 as "deadlineAt",
      w.child_timeout_ms as "childTimeoutMs", w.stall
    from sessions s
    left join work w on w.tenant_id = s.tenant_id and w.work_id = s.current_work_id
    where s.tenant_id = ${of.tenantId} and s.id = ${of.sessionId}`);
  return rows[0] ?? null;
}

/** Moves launching work to running: its child lives. */
export async function markRunning(
  tx: Queryable,
  of: { tenantId: string; workId: string },
): Promise<void> {
  await tx.execute(sql`
    update work set status = 'running'
    where tenant_id = ${of.tenantId} and work_id = ${of.workId} and status = 'launching'`);
}

/** Brings the entry's bound forward to `dueAt`, if it lies later. */
export async function bringDueForward(
  tx: Queryable,
  to: { tenantId: string; workId: string; dueAt: number },
): Promise<void> {
  await tx.execute(sql`
    update work set due_at = ${to.dueAt}::timestamptz
    where tenant_id = ${to.tenantId} and work_id = ${to.workId} and ended_at is null
      and (due_at is null or due_at > ${to.dueAt}::timestamptz)`);
}

/** Keeps on which runner the session is worked on. */
export async function setRunner(
  tx: Queryable,
  of: { tenantId: string; sessionId: string; runnerId: string },
): Promise<void> {
  await tx.execute(sql`
    update sessions set runner_id = ${of.runnerId}
    where tenant_id = ${of.tenantId} and id = ${of.sessionId} and deleted_at is null
      and runner_id is distinct from ${of.runnerId}`);
}
