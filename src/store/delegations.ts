import { and, asc, eq, getTableColumns, sql, type SQL } from 'drizzle-orm';
import type { TaskResult } from '../domain/delegation.ts';
import type { ResultStatus } from '../domain/task-end.ts';
import { LOADED_MAX } from '../domain/text-budget.ts';
import type { Queryable } from './database.ts';
import { selectPage, type Page } from './page.ts';
import { delegations, units } from './schema.ts';

export type CallRow = typeof delegations.$inferSelect;
export type UnitRow = typeof units.$inferSelect & { status: 'running' | ResultStatus };

interface CallOf {
  tenantId: string;
  delegationId: string;
}

/** A task of a call, with its result once it has ended. */
export interface TaskRow {
  taskIndex: number;
  workId: string;
  childSessionId: string;
  unitId: string;
  agent: string;
  title: string;
  goal: string;
  model: string | null;
  status: string;
  result: TaskResult | null;
}

/** All columns of `delegations d` under their names here. */
const columns = sql.raw(
  Object.entries(getTableColumns(delegations))
    .map(([field, column]) => `d.${column.name} as "${field}"`)
    .join(', '),
);

/** The sessions whose chain ends with this one, and itself. */
export function chainOf(tenantId: string, tipId: string): SQL {
  return sql`(
    select id from sessions where tenant_id = ${tenantId} and id = ${tipId}
    union all
    select id from sessions where tenant_id = ${tenantId} and tip_session_id = ${tipId}
  )`;
}

// ---- dispatching

/**
 * How many calls of the chain that ends with this session have not ended. True until the commit only
 * under the session's lock, which every dispatch of the chain takes.
 */
export async function countActiveCalls(
  tx: Queryable,
  of: { tenantId: string; tipId: string },
): Promise<number> {
  const [row] = await tx.execute<{ active: number }>(sql`
    select count(*)::int as active from ${chainOf(of.tenantId, of.tipId)} chain
    cross join lateral (
      select 1 from delegations d where d.parent_session_id = chain.id
        and d.tenant_id = ${of.tenantId} and d.ended_at is null offset 0
    ) d`);
  return row?.active ?? 0;
}

/** Puts a new call there. */
export async function insertCall(
  tx: Queryable,
  row: typeof delegations.$inferInsert,
): Promise<void> {
  await tx.insert(delegations).values(row);
}

/** Puts its units there, in their order. */
export async function insertUnits(
  tx: Queryable,
  to: CallOf & {
    units: readonly { unitId: string; group: string | null; taskIndexes: number[] }[];
  },
): Promise<void> {
  await tx.execute(sql`
    insert into units (tenant_id, unit_id, delegation_id, ordinal, group_name, task_indexes, status)
    select ${to.tenantId}, r.unit_id, ${to.delegationId}, r.n, r.group_name,
      r.task_indexes::jsonb, 'running'
    from unnest(
      ${sql.param(to.units.map((unit) => unit.unitId))}::text[],
      ${sql.param(to.units.map((unit) => unit.group))}::text[],
      ${sql.param(to.units.map((unit) => JSON.stringify(unit.taskIndexes)))}::text[]
    ) with ordinality as r(unit_id, group_name, task_indexes, n)`);
}

// ---- reading

/** Of `delegations d`: it is there, and not only for what its items repeat of it. */
const isThere = sql`exists (
  select 1 from units u where u.delegation_id = d.delegation_id and u.tenant_id = d.tenant_id)`;

/** The call with this id, or of the unit with this id; null: there is none. */
export async function selectCall(
  db: Queryable,
  of: { tenantId: string; id: string },
): Promise<CallRow | null> {
  const rows = await db.execute<CallRow & Record<string, unknown>>(sql`
    select ${columns} from delegations d
    where d.tenant_id = ${of.tenantId} and d.delegation_id in (${of.id}, (
      select u.delegation_id from units u
      where u.tenant_id = ${of.tenantId} and u.unit_id = ${of.id})) and ${isThere}`);
  return rows[0] ?? null;
}

/** Whether the call has ended; null: there is none. */
export async function selectCallEnd(
  db: Queryable,
  of: CallOf,
): Promise<{ endedAt: number | null } | null> {
  const rows = await db
    .select({ endedAt: delegations.endedAt })
    .from(delegations)
    .where(
      and(eq(delegations.tenantId, of.tenantId), eq(delegations.delegationId, of.delegationId)),
    );
  return rows[0] ?? null;
}

/** The units of the call, in their order. */
export async function selectUnits(db: Queryable, of: CallOf): Promise<UnitRow[]> {
  const rows = await db
    .select()
    .from(units)
    .where(and(eq(units.tenantId, of.tenantId), eq(units.delegationId, of.delegationId)))
    .orderBy(asc(units.ordinal));
  return rows as UnitRow[];
}

/** The tasks of the call, by index. */
export async function selectTasks(db: Queryable, of: CallOf): Promise<TaskRow[]> {
  return await db.execute<TaskRow & Record<string, unknown>>(sql`
    select w.task_index as "taskIndex", w.work_id as "workId",
      w.child_session_id as "childSessionId", w.unit_id as "unitId", w.agent, w.title,
      coalesce(w.goal, '') as goal, w.model, w.status,
      (w.result - 'output') || jsonb_build_object(
        'summary', left(w.result ->> 'summary', ${LOADED_MAX}::int),
        'error', left(w.result ->> 'error', ${LOADED_MAX}::int)) as result
    from work w
    where w.tenant_id = ${of.tenantId} and w.delegation_id = ${of.delegationId}
    order by w.task_index`);
}

/** A call as the list of its parent shows it. */
export interface ListedCall extends CallRow {
  unitStatuses: ('running' | ResultStatus)[];
}

/** As much as is said of a child of an active call, unless its names are of the longest. */
const CHILD_BYTES = 1_024;

/**
 * Calls of any session of the chain that ends with the parent, newest first, before `before`: at
 * most `limit` and no more than `maxBytes`, but at least one. Each session's calls are read from the
 * index, and no more of them than can be shown.
 */
export async function selectCallPage(
  db: Queryable,
  page: {
    tenantId: string;
    parentTip: string;
    state: 'active' | 'ended' | null;
    before: string | null;
    limit: number;
    maxBytes: number;
  },
): Promise<Page<ListedCall>> {
  const before = page.before === null ? sql`` : sql`and d.delegation_id < ${page.before}`;
  const found = page.limit + 1;
  return await selectPage<ListedCall>(db, {
    from: sql`
      select c.*, (
        select array_agg(u.status order by u.ordinal) from units u
        where u.delegation_id = c."delegationId" and u.tenant_id = ${page.tenantId}
      ) as "unitStatuses"
      from (
        select d.* from ${chainOf(page.tenantId, page.parentTip)} chain
        cross join lateral (
          select ${columns} from delegations d
          where d.tenant_id = ${page.tenantId} and d.parent_session_id = chain.id
            and ${isThere} ${stateIs(page.state)} ${before}
          order by d.delegation_id desc limit ${found}
        ) d
        order by d."delegationId" desc limit ${found}
      ) c`,
    order: sql`r."delegationId" desc`,
    bytes: sql`r."textBytes" +
      case when r."endedAt" is null then ${CHILD_BYTES}::int * r."taskCount" else 0 end`,
    limit: page.limit,
    maxBytes: page.maxBytes,
  });
}

function stateIs(state: 'active' | 'ended' | null): SQL {
  switch (state) {
    case null:
      return sql``;
    case 'active':
      return sql`and d.ended_at is null`;
    case 'ended':
      return sql`and d.ended_at is not null`;
  }
}

/** How many tasks of the chain's active calls have not ended. */
export async function countActiveTasks(
  db: Queryable,
  of: { tenantId: string; tipId: string },
): Promise<number> {
  const [row] = await db.execute<{ active: number }>(sql`
    select count(*)::int as active from ${chainOf(of.tenantId, of.tipId)} chain
    cross join lateral (
      select d.delegation_id from delegations d where d.parent_session_id = chain.id
        and d.tenant_id = ${of.tenantId} and d.ended_at is null offset 0
    ) d
    cross join lateral (
      select 1 from work w where w.delegation_id = d.delegation_id
        and w.tenant_id = ${of.tenantId} and w.ended_at is null offset 0
    ) w`);
  return row?.active ?? 0;
}

/** What a child of an active call is doing. */
export interface ActivityRow {
  delegationId: string;
  taskIndex: number;
  sessionId: string;
  status: string;
  ended: boolean;
  /** Of its newest heartbeat; null: there was none. */
  apiCalls: number | null;
  currentTool: string | null;
  progressAt: number | null;
}

/** What the children of these calls are doing, by task. */
export async function selectActivity(
  db: Queryable,
  of: { tenantId: string; ids: string[] },
): Promise<ActivityRow[]> {
  return await db.execute<ActivityRow & Record<string, unknown>>(sql`
    select w.delegation_id as "delegationId", w.task_index as "taskIndex",
      w.child_session_id as "sessionId", coalesce(w.result ->> 'status', w.status) as status,
      w.ended_at is not null as ended, h.api_calls as "apiCalls",
      h.current_tool as "currentTool", h.progress_at as "progressAt"
    from unnest(${sql.param(of.ids)}::text[]) as r(id)
    cross join lateral (
      select * from work q where q.delegation_id = r.id and q.tenant_id = ${of.tenantId} offset 0
    ) w
    left join lateral (
      select * from heartbeats q where q.tenant_id = w.tenant_id
        and q.child_session_id = w.child_session_id and q.work_id = w.work_id limit 1
    ) h on true
    order by w.delegation_id, w.task_index`);
}

/** Those of the calls that have ended, or are not there any more. */
export async function selectEndedCalls(
  db: Queryable,
  calls: readonly { tenantId: string; sessionId: string }[],
): Promise<{ tenantId: string; sessionId: string }[]> {
  return await db.execute<{ tenantId: string; sessionId: string }>(sql`
    select r.tenant_id as "tenantId", r.id as "sessionId"
    from unnest(
      ${sql.param(calls.map((call) => call.tenantId))}::text[],
      ${sql.param(calls.map((call) => call.sessionId))}::text[]) as r(tenant_id, id)
    where not exists (
      select 1 from delegations d where d.tenant_id = r.tenant_id and d.delegation_id = r.id
        and d.ended_at is null)`);
}

// ---- removing

/**
 * Removes the calls of these parents, with their units and tasks; answers which they were. Of a
 * parent that was continued by a session which lives, it removes none, or those that are active. A
 * report that has a call is waited for; what comes later finds no task. While an item of a call is
 * there, in whatever inbox, it keeps what the item repeats of it, and nothing else.
 */
export async function deleteCallsOf(
  tx: Queryable,
  of: { tenantId: string; ids: string[]; ofContinued: 'none' | 'active'; now: number },
): Promise<string[]> {
  const locked = await tx.execute<{ id: string }>(sql`
    select d.delegation_id as id from delegations d
    where d.tenant_id = ${of.tenantId}
      and d.parent_session_id = any(${sql.param(of.ids)}::text[])
      and (
        not exists (
          select 1 from sessions s
          join sessions t on t.tenant_id = s.tenant_id and t.id = s.tip_session_id
          where s.tenant_id = d.tenant_id and s.id = d.parent_session_id
            and t.deleted_at is null)
        or (${of.ofContinued} = 'active' and d.ended_at is null))
    order by d.tenant_id, d.delegation_id for update`);
  const ids = locked.map(({ id }) => id);
  if (ids.length > 0) await deleteLockedCalls(tx, { tenantId: of.tenantId, ids, now: of.now });
  return ids;
}

/** A statement of its own: an item that a report delivered while the locks were waited for counts. */
async function deleteLockedCalls(
  tx: Queryable,
  of: { tenantId: string; ids: string[]; now: number },
): Promise<void> {
  const isOfThem = sql`d.tenant_id = ${of.tenantId}
    and d.delegation_id = any(${sql.param(of.ids)}::text[])`;
  await tx.execute(sql`
    with units_gone as (
      delete from units d where ${isOfThem}
    ), work_gone as (
      delete from work d where ${isOfThem}
    ), calls_gone as (
      delete from delegations d where ${isOfThem} and not ${hasItems}
    )
    update delegations d set ended_at = coalesce(d.ended_at, ${of.now}::timestamptz)
    where ${isOfThem} and ${hasItems}`);
}

/** Of `delegations d`: an item of it is there, acked or not. */
const hasItems = sql`exists (
  select 1 from items i where i.delegation_id = d.delegation_id and i.tenant_id = d.tenant_id)`;

/**
 * Leaves the ended tasks of these children to their units: they count for no session that comes
 * after.
 */
export async function retireTasksOf(
  tx: Queryable,
  of: { tenantId: string; ids: string[] },
): Promise<void> {
  await tx.execute(sql`
    update work set retired = true
    where tenant_id = ${of.tenantId} and delegation_id is not null
      and child_session_id = any(${sql.param(of.ids)}::text[])`);
}

/** The same of one task that has ended; says whether it was there. */
export async function retireTask(
  tx: Queryable,
  of: { tenantId: string; workId: string },
): Promise<boolean> {
  const rows = await tx.execute(sql`
    update work set retired = true
    where tenant_id = ${of.tenantId} and work_id = ${of.workId} and delegation_id is not null
      and ended_at is not null and not retired
    returning 1`);
  return rows.length > 0;
}

/** A parent keeps so many ended calls, however old. */
const ENDED_CALLS_KEPT = 50;

/**
 * Removes calls that ended before `endedBefore`, looking at `limit` calls after the cursor; answers
 * where to go on, null at the end. The newest of each parent stay, and those of which an item is
 * there; nothing else keeps what is kept for items only. What is left of their tasks are tombstones.
 */
export async function deleteOldCalls(
  db: Queryable,
  {
    after,
    endedBefore,
    limit,
  }: {
    after: { tenantId: string; delegationId: string } | null;
    endedBefore: number;
    limit: number;
  },
): Promise<{ tenantId: string; delegationId: string } | null> {
  const rows = await db.execute<{ tenantId: string; delegationId: string }>(sql`
    with seen as materialized (
      select d.tenant_id, d.delegation_id, d.parent_session_id, d.ended_at from delegations d
      where (d.tenant_id, d.delegation_id) > (${after?.tenantId ?? ''}, ${after?.delegationId ?? ''})
      order by d.tenant_id, d.delegation_id limit ${limit}
    ), old as materialized (
      select d.tenant_id, d.delegation_id from seen d
      where (not ${isThere} or d.ended_at < ${endedBefore}::timestamptz
        and ${ENDED_CALLS_KEPT} <= (select count(*) from (
          select 1 from delegations n where n.parent_session_id = d.parent_session_id
            and n.tenant_id = d.tenant_id and n.delegation_id > d.delegation_id
            and n.ended_at is not null limit ${ENDED_CALLS_KEPT}) newer))
        and not ${hasItems}
    ), units_gone as (
      delete from units u using old o
      where u.delegation_id = o.delegation_id and u.tenant_id = o.tenant_id
    ), calls_gone as (
      delete from delegations d using old o
      where d.tenant_id = o.tenant_id and d.delegation_id = o.delegation_id
    )
    select tenant_id as "tenantId", delegation_id as "delegationId" from seen
    order by tenant_id, delegation_id`);
  return rows.length < limit ? null : (rows.at(-1) ?? null);
}
