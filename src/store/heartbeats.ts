import { sql } from 'drizzle-orm';
import type { StallSettings } from '../domain/liveness.ts';
import type { WorkStatus } from '../domain/work.ts';
import type { Queryable } from './database.ts';

/** A beat as it is kept. */
export interface BeatRow {
  workId: string | null;
  apiCalls: number | null;
  currentTool: string | null;
  lastActivityAt: string | null;
}

interface ChildOf {
  tenantId: string;
  sessionId: string;
}

export interface BeatenSession {
  deleted: boolean;
  described: boolean;
  runnerId: string | null;
  /** The newest beat of the child, of whatever entry; null: there was none. */
  newest: BeatRow | null;
  /** The current entry; null: there is none. */
  work: {
    workId: string;
    status: WorkStatus;
    interruptReason: string | null;
    createdAt: number;
    deadlineMs: number | null;
    childTimeoutMs: number | null;
    stall: StallSettings | null;
  } | null;
}

/** What a heartbeat of the session bears on; null: not even its name is known. */
export async function selectBeatenSession(
  db: Queryable,
  of: ChildOf,
): Promise<BeatenSession | null> {
  const rows = await db.execute<BeatenSession & Record<string, unknown>>(sql`
    select s.deleted_at is not null as deleted, s.described_at is not null as described,
      s.runner_id as "runnerId",
      case when h.child_session_id is not null then json_build_object('workId', h.work_id,
        'apiCalls', h.api_calls, 'currentTool', h.current_tool,
        'lastActivityAt', h.last_activity_at) end as newest,
      case when w.work_id is not null then json_build_object('workId', w.work_id,
        'status', w.status, 'interruptReason', w.interrupt_reason,
        'createdAt', (extract(epoch from w.created_at) * 1000)::float8,
        'deadlineMs', (extract(epoch from w.deadline_at - w.created_at) * 1000)::float8,
        'childTimeoutMs', w.child_timeout_ms, 'stall', w.stall) end as work
    from sessions s
    left join work w on w.tenant_id = s.tenant_id and w.work_id = s.current_work_id
    left join heartbeats h on h.tenant_id = s.tenant_id and h.child_session_id = s.id
    where s.tenant_id = ${of.tenantId} and s.id = ${of.sessionId}`);
  return rows[0] ?? null;
}

/**
 * Keeps the child's newest beat; a change moves `progress_at`, a beat that says what is known
 * changes nothing, and one of another entry starts anew. Says whether it is its entry's first. The
 * commit does not wait for the disk: a beat that is lost comes again.
 */
export async function putBeat(
  db: Queryable,
  beat: ChildOf & BeatRow & { now: number },
): Promise<{ isFirst: boolean }> {
  const rows = await db.execute<{ is_first: boolean }>(sql`
    insert into heartbeats as h (tenant_id, child_session_id, work_id, api_calls, current_tool,
      last_activity_at, progressed, progress_at)
    select ${beat.tenantId}, ${beat.sessionId}, ${beat.workId}, ${beat.apiCalls}::bigint,
      ${beat.currentTool}, ${beat.lastActivityAt}, false, ${beat.now}::timestamptz
    from set_config('synchronous_commit', 'off', true)
    on conflict (tenant_id, child_session_id) do update set
      progressed = h.work_id is not distinct from excluded.work_id,
      work_id = excluded.work_id, api_calls = excluded.api_calls,
      current_tool = excluded.current_tool, last_activity_at = excluded.last_activity_at,
      progress_at = excluded.progress_at
      where (h.work_id, h.api_calls, h.current_tool, h.last_activity_at) is distinct from
        (excluded.work_id, excluded.api_calls, excluded.current_tool, excluded.last_activity_at)
    returning not progressed as is_first`);
  return { isFirst: rows[0]?.is_first ?? false };
}

/**
 * Starts what the first beat of a live entry starts: it runs, and its bound is no later than `dueAt`
 * (null: the beat brings none).
 */
export async function startClock(
  tx: Queryable,
  of: { tenantId: string; workId: string; dueAt: number | null },
): Promise<void> {
  await tx.execute(sql`
    update work set
      status = case when status = 'launching' then 'running' else status end,
      due_at = least(due_at, ${of.dueAt}::timestamptz)
    where tenant_id = ${of.tenantId} and work_id = ${of.workId} and ended_at is null`);
}

/** Keeps on which runner the session is worked on. */
export async function setRunner(db: Queryable, of: ChildOf & { runnerId: string }): Promise<void> {
  await db.execute(sql`
    update sessions set runner_id = ${of.runnerId}
    where tenant_id = ${of.tenantId} and id = ${of.sessionId} and deleted_at is null
      and runner_id is distinct from ${of.runnerId}`);
}

/** Forgets the heartbeats of these sessions. */
export async function deleteBeatsOf(
  tx: Queryable,
  of: { tenantId: string; ids: string[] },
): Promise<void> {
  await tx.execute(sql`
    delete from heartbeats
    where tenant_id = ${of.tenantId} and child_session_id = any(${sql.param(of.ids)}::text[])`);
}
