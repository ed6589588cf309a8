import { and, eq, sql } from 'drizzle-orm';
import type { DispatchedChild, DispatchingParent } from '../domain/dispatch.ts';
import type { StallSettings } from '../domain/liveness.ts';
import type { Channel } from '../domain/snapshot.ts';
import type { Queryable } from './database.ts';
import { assistantTexts } from './schema.ts';

/* What a dispatch reads and writes of parent, children and their work. */

/** A parent as it stands, with what of its snapshot bears on its calls. */
export interface LoadedParent extends DispatchingParent {
  channel: Channel | null;
  maxConcurrent: number | null;
}

/**
 * The last session of the parent's chain: that is the one that dispatches. What its snapshot does
 * not say is taken from the session that was named. It must have been named before.
 */
export async function loadDispatchingParent(
  tx: Queryable,
  of: { tenantId: string; parentId: string },
): Promise<LoadedParent> {
  const rows = await tx.execute<{ parent: LoadedParent }>(sql`
    select json_build_object(
      'id', t.id,
      'deleted', p.deleted_at is not null or t.deleted_at is not null,
      'closed', t.closed_at is not null,
      'inboxEverOpened', t.inbox_opened_at is not null,
      'channel', coalesce(t.channel, p.channel),
      'maxConcurrent', coalesce(t.max_concurrent, p.max_concurrent)) as parent
    from sessions p
    join sessions t on t.tenant_id = p.tenant_id and t.id = coalesce(p.tip_session_id, p.id)
    where p.tenant_id = ${of.tenantId} and p.id = ${of.parentId}`);
  const [row] = rows;
  if (row === undefined) throw new Error('the parent of a dispatch has been named before');
  return row.parent;
}

/** What bears on a dispatch to these children, in their order. They must have been named before. */
export async function loadDispatchedChildren(
  tx: Queryable,
  of: { tenantId: string; ids: string[] },
): Promise<DispatchedChild[]> {
  // Each step is one look-up by key: joined, a planner without statistics may read tables whole.
  const rows = await tx.execute<{ child: DispatchedChild }>(sql`
    select json_build_object(
      'id', c.id,
      'described', c.described_at is not null,
      'deleted', c.deleted_at is not null,
      'parentTip', case when c.parent_session_id is not null then
        coalesce(cp.tip_session_id, c.parent_session_id) end,
      'agentName', c.agent_name,
      'subAgentName', c.sub_agent_name,
      'work', case when w.work_id is not null then
        json_build_object('status', w.status) end,
      'hasParked', exists (
        select 1 from parked_reports k where k.tenant_id = c.tenant_id
          and k.child_session_id = c.id and k.state = 'parked')) as child
    from unnest(${sql.param(of.ids)}::text[]) with ordinality as r(id, n)
    cross join lateral (
      select * from sessions q where q.tenant_id = ${of.tenantId} and q.id = r.id limit 1
    ) c
    left join lateral (
      select * from sessions q
      where q.tenant_id = c.tenant_id and q.id = c.parent_session_id limit 1
    ) cp on true
    left join lateral (
      select * from work q
      where q.tenant_id = c.tenant_id and q.work_id = c.current_work_id limit 1
    ) w on true
    order by r.n`);
  if (rows.length !== of.ids.length) throw new Error('the children have been named before');
  return rows.map(({ child }) => child);
}

/**
 * Locks these sessions, in id order, against reports of them as children, other dispatches, changes
 * and deletion. Deliveries into their inboxes go on: for a parent whose inbox is opened, which
 * deliveries decide by, it must be `lockSessions`.
 */
export async function lockForDispatch(
  tx: Queryable,
  rows: { tenantId: string; ids: string[] },
): Promise<void> {
  await tx.execute(sql`
    select 1 from sessions
    where tenant_id = ${rows.tenantId} and id = any(${sql.param(rows.ids)}::text[])
    order by tenant_id, id for no key update`);
}

/** A child that gets this parent, and is described by these names if it was only a stub. */
export interface AdoptedChild {
  childId: string;
  names: { agent: string | null; title: string | null } | null;
}

/** Gives the children their parent, and names to those that had none. */
export async function adoptChildren(
  tx: Queryable,
  to: {
    tenantId: string;
    parentSessionId: string;
    children: readonly AdoptedChild[];
    now: number;
  },
): Promise<void> {
  const { children } = to;
  await tx.execute(sql`
    update sessions s set parent_session_id = ${to.parentSessionId},
      described_at = case when r.names then ${to.now}::timestamptz else s.described_at end,
      agent_name = case when r.names then r.agent else s.agent_name end,
      title = case when r.names then r.title else s.title end
    from unnest(
      ${sql.param(children.map(() => to.tenantId))}::text[],
      ${sql.param(children.map((c) => c.childId))}::text[],
      ${sql.param(children.map((c) => c.names !== null))}::boolean[],
      ${sql.param(children.map((c) => c.names?.agent ?? null))}::text[],
      ${sql.param(children.map((c) => c.names?.title ?? null))}::text[]
    ) as r(tenant_id, id, names, agent, title)
    where s.tenant_id = r.tenant_id and s.id = r.id`);
}

/** Makes new children of the parent, under ids that nobody has. */
export async function insertChildren(
  tx: Queryable,
  to: {
    tenantId: string;
    parentSessionId: string;
    children: readonly { childId: string; agent: string | null; title: string | null }[];
    now: number;
  },
): Promise<void> {
  const { children } = to;
  await tx.execute(sql`
    insert into sessions (tenant_id, id, created_at, described_at, parent_session_id, agent_name,
      title)
    select ${to.tenantId}, r.id, ${to.now}::timestamptz, ${to.now}::timestamptz,
      ${to.parentSessionId}, r.agent, r.title
    from unnest(
      ${sql.param(children.map((c) => c.childId))}::text[],
      ${sql.param(children.map((c) => c.agent))}::text[],
      ${sql.param(children.map((c) => c.title))}::text[]
    ) as r(id, agent, title)`);
}

/** A new entry; of a task also where it belongs. */
export interface DispatchedRow {
  workId: string;
  childSessionId: string;
  agent: string;
  title: string;
  task: {
    delegationId: string;
    unitId: string;
    taskIndex: number;
    goal: string;
    model: string | null;
  } | null;
}

/** Puts new entries there, which all have these terms. */
export async function insertDispatchedWork(
  tx: Queryable,
  to: {
    tenantId: string;
    parentSessionId: string;
    createdBy: string | null;
    createdAt: number;
    deadlineAt: number | null;
    childTimeoutMs: number | null;
    stall: StallSettings | null;
    dueAt: number | null;
    rows: readonly DispatchedRow[];
  },
): Promise<void> {
  const { rows } = to;
  const stall = to.stall === null ? null : JSON.stringify(to.stall);
  await tx.execute(sql`
    insert into work (tenant_id, work_id, parent_session_id, child_session_id, agent, title,
      created_by, status, created_at, deadline_at, child_timeout_ms, stall, due_at,
      delegation_id, unit_id, task_index, goal, model)
    select ${to.tenantId}, r.work_id, ${to.parentSessionId}, r.child_id, r.agent, r.title,
      ${to.createdBy}, 'launching', ${to.createdAt}::timestamptz, ${to.deadlineAt}::timestamptz,
      ${to.childTimeoutMs}::bigint, ${stall}::jsonb, ${to.dueAt}::timestamptz,
      r.delegation_id, r.unit_id, r.task_index, r.goal, r.model
    from unnest(
      ${sql.param(rows.map((r) => r.workId))}::text[],
      ${sql.param(rows.map((r) => r.childSessionId))}::text[],
      ${sql.param(rows.map((r) => r.agent))}::text[],
      ${sql.param(rows.map((r) => r.title))}::text[],
      ${sql.param(rows.map((r) => r.task?.delegationId ?? null))}::text[],
      ${sql.param(rows.map((r) => r.task?.unitId ?? null))}::text[],
      ${sql.param(rows.map((r) => r.task?.taskIndex ?? null))}::int[],
      ${sql.param(rows.map((r) => r.task?.goal ?? null))}::text[],
      ${sql.param(rows.map((r) => r.task?.model ?? null))}::text[]
    ) as r(work_id, child_id, agent, title, delegation_id, unit_id, task_index, goal, model)`);
}

/** Makes the entries their children's current ones: new turns, in which any report is a new one. */
export async function setCurrentWork(
  tx: Queryable,
  to: { tenantId: string; rows: readonly { childSessionId: string; workId: string }[] },
): Promise<void> {
  await tx.execute(sql`
    update sessions s set current_work_id = r.work_id, last_report = null, response_id = null
    from unnest(
      ${sql.param(to.rows.map(() => to.tenantId))}::text[],
      ${sql.param(to.rows.map((r) => r.childSessionId))}::text[],
      ${sql.param(to.rows.map((r) => r.workId))}::text[]
    ) as r(tenant_id, id, work_id)
    where s.tenant_id = r.tenant_id and s.id = r.id`);
}

/** The text that the children have written so far belongs to earlier turns. */
export async function leaveTextToEarlierTurns(
  tx: Queryable,
  of: { tenantId: string; ids: string[] },
): Promise<void> {
  await tx
    .update(assistantTexts)
    .set({ fresh: false })
    .where(
      and(
        eq(assistantTexts.tenantId, of.tenantId),
        eq(assistantTexts.fresh, true),
        sql`${assistantTexts.sessionId} = any(${sql.param(of.ids)}::text[])`,
      ),
    );
}
