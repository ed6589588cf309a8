import { sql } from 'drizzle-orm';
import type { Heartbeats, LiveWork, Stall } from '../domain/liveness.ts';
import type { Queryable } from './database.ts';

/** A live entry whose bound has passed, with all that its clocks are judged by. */
export interface DueWork {
  tenantId: string;
  workId: string;
  sessionId: string;
  unitId: string | null;
  model: string | null;
  interruptReason: string | null;
  work: LiveWork;
  heartbeats: Heartbeats | null;
}

/** The entries whose bound has passed, longest first: costs what is due, not what is alive. */
export async function selectDueWork(
  db: Queryable,
  page: { now: number; limit: number },
): Promise<DueWork[]> {
  return await db.execute<DueWork & Record<string, unknown>>(sql`
    select w.tenant_id as "tenantId", w.work_id as "workId", w.child_session_id as "sessionId",
      w.unit_id as "unitId", w.model, w.interrupt_reason as "interruptReason",
      json_build_object('status', w.status, 'createdAt', ${ms(sql`w.created_at`)},
        'deadlineMs', ${ms(sql`w.deadline_at`)} - ${ms(sql`w.created_at`)},
        'childTimeoutMs', w.child_timeout_ms, 'stall', w.stall,
        'interruptedAt', ${ms(sql`w.interrupted_at`)}, 'graceMs', w.grace_ms,
        'stalled', w.stalled) as work,
      case when h.work_id is not null then json_build_object('apiCalls', h.api_calls,
        'currentTool', h.current_tool, 'lastActivityAt', h.last_activity_at,
        'firstAt', ${ms(sql`h.first_at`)}, 'progressAt', ${ms(sql`h.progress_at`)}
      ) end as heartbeats
    from work w
    left join heartbeats h on h.tenant_id = w.tenant_id
      and h.child_session_id = w.child_session_id and h.work_id = w.work_id
    where w.ended_at is null and w.due_at <= ${page.now}::timestamptz
    order by w.due_at limit ${page.limit}`);
}

function ms(column: ReturnType<typeof sql>) {
  return sql`(extract(epoch from ${column}) * 1000)::float8`;
}

/** Moves the bounds of entries on which nothing is to be done yet; null: no clock runs. */
export async function moveDue(
  db: Queryable,
  moves: { tenantId: string; workId: string; dueAt: number | null }[],
): Promise<void> {
  await db.execute(sql`
    update work w set due_at = r.due_at
    from unnest(${sql.param(moves.map((m) => m.tenantId))}::text[],
      ${sql.param(moves.map((m) => m.workId))}::text[],
      ${sql.param(moves.map((m) => m.dueAt))}::timestamptz[]) as r(tenant_id, work_id, due_at)
    where w.tenant_id = r.tenant_id and w.work_id = r.work_id and w.ended_at is null`);
}

/** Pulls all bounds that lie ahead down to now: they were written before the clock went back. */
export async function pullDueDown(db: Queryable, now: number): Promise<void> {
  await db.execute(sql`
    update work set due_at = ${now}::timestamptz
    where ended_at is null and due_at > ${now}::timestamptz`);
}

/**
 * Turns a child's entry to `stalling` and asks it to stop, under the child's lock; not if it has
 * progressed, or ended, since it was judged.
 */
export async function markStalling(
  tx: Queryable,
  entry: DueWork & { stall: Stall; graceMs: number; dueAt: number; now: number },
): Promise<void> {
  await tx.execute(sql`
    select 1 from sessions
    where tenant_id = ${entry.tenantId} and id = ${entry.sessionId} for no key update`);
  await tx.execute(sql`
    update work w set status = 'stalling', interrupt_reason = 'stalled',
      interrupted_at = ${entry.now}::timestamptz, grace_ms = ${entry.graceMs},
      stalled = ${JSON.stringify(entry.stall)}::jsonb, due_at = ${entry.dueAt}::timestamptz
    where w.tenant_id = ${entry.tenantId} and w.work_id = ${entry.workId}
      and w.status in ('launching', 'running')
      and not exists (
        select 1 from heartbeats h where h.tenant_id = w.tenant_id
          and h.child_session_id = w.child_session_id and h.work_id = w.work_id
          and h.progress_at > ${entry.heartbeats?.progressAt ?? 0}::timestamptz)`);
}
