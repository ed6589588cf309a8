import { sql } from 'drizzle-orm';
import type { Heartbeats, LiveWork, Stall } from '../domain/liveness.ts';
import type { Queryable } from './database.ts';

/** A live entry whose bound has passed, with all that its clocks are judged by. */
export interface DueWork {
  tenantId: string;
  workId: string;
  sessionId: string;
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
  return await db.execute<DueWork & Record<string, unknown>>(dueWork(page));
}

/** The statement: the heartbeats are one look-up by key each, and cannot be planned otherwise. */
export function dueWork(page: { now: number; limit: number }) {
  return sql`
    select w.tenant_id as "tenantId", w.work_id as "workId", w.child_session_id as "sessionId",
      w.model, w.interrupt_reason as "interruptReason",
      json_build_object('status', w.status, 'createdAt', ${ms(sql`w.created_at`)},
        'deadlineMs', ${ms(sql`w.deadline_at`)} - ${ms(sql`w.created_at`)},
        'childTimeoutMs', w.child_timeout_ms, 'stall', w.stall,
        'interruptedAt', ${ms(sql`w.interrupted_at`)}, 'graceMs', w.grace_ms,
        'stalled', w.stalled) as work,
      case when h.work_id is not null then json_build_object('apiCalls', h.api_calls,
        'currentTool', h.current_tool, 'lastActivityAt', h.last_activity_at,
        'progressed', h.progressed, 'progressAt', ${ms(sql`h.progress_at`)}
      ) end as heartbeats
    from (
      select * from work
      where due_at <= ${page.now}::timestamptz
      order by due_at limit ${page.limit}
    ) w
    left join lateral (
      select * from heartbeats q
      where q.tenant_id = w.tenant_id and q.child_session_id = w.child_session_id
        and q.work_id = w.work_id limit 1
    ) h on true`;
}

function ms(column: ReturnType<typeof sql>) {
  return sql`(extract(epoch from ${column}) * 1000)::float8`;
}

export interface WorkKey {
  tenantId: string;
  workId: string;
}

/**
 * Moves the bounds of entries on which nothing is to be done yet; null: no clock runs. Entries that
 * are locked elsewhere are left as they are, so that this can be part of no deadlock.
 */
export async function moveDue(
  tx: Queryable,
  moves: readonly (WorkKey & { dueAt: number | null })[],
): Promise<void> {
  await tx.execute(sql`
    update work w set due_at = l.due_at
    from (
      select q.tenant_id, q.work_id, r.due_at
      from unnest(${sql.param(moves.map((m) => m.tenantId))}::text[],
        ${sql.param(moves.map((m) => m.workId))}::text[],
        ${sql.param(moves.map((m) => m.dueAt))}::timestamptz[]) as r(tenant_id, work_id, due_at)
      join work q on q.tenant_id = r.tenant_id and q.work_id = r.work_id and q.ended_at is null
      for no key update of q skip locked
    ) l
    where w.tenant_id = l.tenant_id and w.work_id = l.work_id and w.ended_at is null`);
}

/**
 * Puts off entries whose end could not be delivered, and has their children asked to stop meanwhile;
 * those that ended are left alone, like those that are locked.
 */
export async function putOffEnds(
  tx: Queryable,
  ends: readonly (WorkKey & { stopReason: string | null })[],
  dueAt: number,
): Promise<void> {
  await tx.execute(sql`
    update work w set due_at = ${dueAt}::timestamptz,
      interrupt_reason = coalesce(w.interrupt_reason, l.stop_reason)
    from (
      select q.tenant_id, q.work_id, r.stop_reason
      from unnest(${sql.param(ends.map((e) => e.tenantId))}::text[],
        ${sql.param(ends.map((e) => e.workId))}::text[],
        ${sql.param(ends.map((e) => e.stopReason))}::text[]) as r(tenant_id, work_id, stop_reason)
      join work q on q.tenant_id = r.tenant_id and q.work_id = r.work_id and q.ended_at is null
      for no key update of q skip locked
    ) l
    where w.tenant_id = l.tenant_id and w.work_id = l.work_id and w.ended_at is null`);
}

/**
 * Pulls bounds that lie ahead down to now, since they were written before the clock went back: at
 * most `limit`, furthest first. Says whether some may be left; it must then be repeated.
 */
export async function pullDueDown(
  tx: Queryable,
  { now, limit }: { now: number; limit: number },
): Promise<boolean> {
  const rows = await tx.execute<{ found: number; pulled: number }>(sql`
    with found as materialized (
      select tenant_id, work_id from work
      where due_at > ${now}::timestamptz
      order by due_at desc limit ${limit}
    ), free as materialized (
      select q.tenant_id, q.work_id from found f
      join work q on q.tenant_id = f.tenant_id and q.work_id = f.work_id
        -- Asked again of the locked row: it may have ended since it was found.
        and q.due_at is not null
      for no key update of q skip locked
    ), pulled as (
      update work w set due_at = ${now}::timestamptz from free f
      where w.tenant_id = f.tenant_id and w.work_id = f.work_id returning 1
    )
    select (select count(*) from found)::int as found, (select count(*) from pulled)::int as pulled`);
  const { found = 0, pulled = 0 } = rows[0] ?? {};
  return found === limit || pulled < found;
}

export type StallingEntry = DueWork & { stall: Stall; graceMs: number; dueAt: number };

/**
 * Turns entries to `stalling` and has their children asked to stop, under the children's locks; not
 * those that have progressed or ended since they were judged, or whose child is locked elsewhere.
 */
export async function markStalling(
  tx: Queryable,
  entries: readonly StallingEntry[],
  now: number,
): Promise<void> {
  const locked = await tx.execute<{ tenantId: string; id: string }>(sql`
    select s.tenant_id as "tenantId", s.id
    from unnest(${sql.param(entries.map((e) => e.tenantId))}::text[],
      ${sql.param(entries.map((e) => e.sessionId))}::text[]) as r(tenant_id, id)
    join sessions s on s.tenant_id = r.tenant_id and s.id = r.id
    order by s.tenant_id, s.id for no key update of s skip locked`);
  const keys = new Set(locked.map((row) => `${row.tenantId}\0${row.id}`));
  const free = entries.filter((e) => keys.has(`${e.tenantId}\0${e.sessionId}`));
  // A statement of its own: it sees what was true when the locks had been taken.
  await tx.execute(sql`
    update work w set status = 'stalling', interrupt_reason = 'stalled',
      interrupted_at = ${now}::timestamptz, grace_ms = r.grace_ms, stalled = r.stalled::jsonb,
      due_at = r.due_at
    from unnest(${sql.param(free.map((e) => e.tenantId))}::text[],
      ${sql.param(free.map((e) => e.workId))}::text[],
      ${sql.param(free.map((e) => e.graceMs))}::bigint[],
      ${sql.param(free.map((e) => JSON.stringify(e.stall)))}::text[],
      ${sql.param(free.map((e) => e.dueAt))}::timestamptz[],
      ${sql.param(free.map((e) => e.heartbeats?.progressAt ?? null))}::timestamptz[]
    ) as r(tenant_id, work_id, grace_ms, stalled, due_at, progress_at)
    where w.tenant_id = r.tenant_id and w.work_id = r.work_id
      and w.status in ('launching', 'running')
      and not exists (
        select 1 from heartbeats h where h.tenant_id = w.tenant_id
          and h.child_session_id = w.child_session_id and h.work_id = w.work_id
          and h.progress_at is distinct from r.progress_at)`);
}
