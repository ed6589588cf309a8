import { and, eq, getTableColumns, isNull, sql } from 'drizzle-orm';
import type { DispatchedChild, DispatchingParent } from '../domain/dispatch.ts';
import type { WorkStatus } from '../domain/work.ts';
import type { Queryable } from './database.ts';
import { assistantTexts, sessions, work } from './schema.ts';

export type WorkRow = typeof work.$inferSelect & { status: WorkStatus };

/** An entry with what it has put into the inbox, as far as that has not been pruned. */
export interface WorkDetail extends WorkRow {
  /** The whole output of its newest item; null: there is none. */
  output: string | null;
  itemSeqs: number[];
}

interface WorkOf {
  tenantId: string;
  workId: string;
}

interface DispatchOf {
  tenantId: string;
  parentId: string;
  childId: string;
}

/** All columns of `work w` under their names here. */
const columns = sql.raw(
  Object.entries(getTableColumns(work))
    .map(([field, column]) => `w.${column.name} as "${field}"`)
    .join(', '),
);

/** The entry, with its whole output; null: there is none. */
export async function selectWork(db: Queryable, of: WorkOf): Promise<WorkDetail | null> {
  const rows = await db.execute<WorkDetail & Record<string, unknown>>(sql`
    select ${columns}, newest.output, coalesce(every.seqs, '{}') as "itemSeqs" from work w
    left join items newest on newest.tenant_id = w.tenant_id
      and newest.source = 'work:' || w.work_id || ':' || w.revision
    left join lateral (
      select array_agg(i.seq order by i.seq) as seqs from generate_series(1, w.revision) r
      join items i on i.tenant_id = w.tenant_id and i.source = 'work:' || w.work_id || ':' || r
    ) every on true
    where w.tenant_id = ${of.tenantId} and w.work_id = ${of.workId}`);
  return rows[0] ?? null;
}

/**
 * Entries dispatched by any session of the chain that ends with the parent, newest first, before
 * `before`. Each session's entries are read from the index, and no more of them than can be shown.
 */
export function selectWorkPage(
  db: Queryable,
  page: {
    tenantId: string;
    parentTip: string;
    status: WorkStatus | null;
    before: string | null;
    limit: number;
  },
): Promise<WorkRow[]> {
  const status = page.status === null ? sql`` : sql`and w.status = ${page.status}`;
  const before = page.before === null ? sql`` : sql`and w.work_id < ${page.before}`;
  return db.execute<WorkRow & Record<string, unknown>>(sql`
    select w.* from (
      select id from sessions where tenant_id = ${page.tenantId} and id = ${page.parentTip}
      union all
      select id from sessions
      where tenant_id = ${page.tenantId} and tip_session_id = ${page.parentTip}
    ) chain
    cross join lateral (
      select ${columns} from work w
      where w.tenant_id = ${page.tenantId} and w.parent_session_id = chain.id ${status} ${before}
      order by w.work_id desc limit ${page.limit}
    ) w
    order by w."workId" desc limit ${page.limit}`);
}

/** What bears on a dispatch. Both sessions must have been named. */
export async function loadForDispatch(
  tx: Queryable,
  of: DispatchOf,
): Promise<{ parent: DispatchingParent; child: DispatchedChild }> {
  const rows = await tx.execute<{ parent: DispatchingParent; child: DispatchedChild }>(sql`
    select
      json_build_object(
        'id', t.id,
        'deleted', p.deleted_at is not null or t.deleted_at is not null,
        'closed', t.closed_at is not null,
        'inboxEverOpened', t.inbox_opened_at is not null) as parent,
      json_build_object(
        'id', c.id,
        'described', c.described_at is not null,
        'deleted', c.deleted_at is not null,
        'parentTip', case when c.parent_session_id is not null then
          coalesce(cp.tip_session_id, c.parent_session_id) end,
        'agentName', c.agent_name,
        'subAgentName', c.sub_agent_name,
        'work', case when w.work_id is not null then
          json_build_object('status', w.status, 'resultDigest', w.result_digest) end,
        'hasParked', exists (
          select 1 from parked_reports k where k.tenant_id = c.tenant_id
            and k.child_session_id = c.id and k.state = 'parked')) as child
    from sessions p
    join sessions t on t.tenant_id = p.tenant_id and t.id = coalesce(p.tip_session_id, p.id)
    join sessions c on c.tenant_id = p.tenant_id and c.id = ${of.childId}
    left join sessions cp on cp.tenant_id = c.tenant_id and cp.id = c.parent_session_id
    left join work w on w.tenant_id = c.tenant_id and w.work_id = c.current_work_id
    where p.tenant_id = ${of.tenantId} and p.id = ${of.parentId}`);
  const [row] = rows;
  if (row === undefined) throw new Error('the sessions of a dispatch have been named before');
  return row;
}

/**
 * Locks these sessions, in id order, against reports of them as children, other dispatches, changes
 * and deletion. Deliveries into their inboxes go on.
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

/** Gives the child its parent, and describes it by these names if it was only a stub. */
export async function adoptChild(
  tx: Queryable,
  child: {
    tenantId: string;
    childId: string;
    parentSessionId: string;
    names: { agent: string | null; title: string | null } | null;
    now: number;
  },
): Promise<void> {
  const { names, parentSessionId } = child;
  const described =
    names === null ? {} : { describedAt: child.now, agentName: names.agent, title: names.title };
  await tx
    .update(sessions)
    .set({ parentSessionId, ...described })
    .where(and(eq(sessions.tenantId, child.tenantId), eq(sessions.id, child.childId)));
}

/** Puts a new entry there. */
export async function insertDispatchedWork(
  tx: Queryable,
  row: {
    tenantId: string;
    workId: string;
    parentSessionId: string;
    childSessionId: string;
    agent: string;
    title: string;
    createdBy: string | null;
    createdAt: number;
    deadlineAt: number | null;
    formerDigest: string | null;
  },
): Promise<void> {
  await tx.insert(work).values({ ...row, status: 'launching' });
}

/** Makes the entry the child's current one: a new turn, in which any report counts as a new one. */
export async function setCurrentWork(
  tx: Queryable,
  { tenantId, childId, workId }: WorkOf & { childId: string },
): Promise<void> {
  await tx
    .update(sessions)
    .set({ currentWorkId: workId, lastReport: null })
    .where(and(eq(sessions.tenantId, tenantId), eq(sessions.id, childId)));
}

/** The text that the child has written so far belongs to earlier turns. */
export async function leaveTextToEarlierTurns(
  tx: Queryable,
  { tenantId, childId }: { tenantId: string; childId: string },
): Promise<void> {
  await tx
    .update(assistantTexts)
    .set({ fresh: false })
    .where(and(eq(assistantTexts.tenantId, tenantId), eq(assistantTexts.sessionId, childId)));
}

/** Locks the child whose work it is against its reports; null: there is no such work. */
export async function lockChildOfWork(tx: Queryable, of: WorkOf): Promise<string | null> {
  const rows = await tx.execute<{ id: string }>(sql`
    select s.id from work w
    join sessions s on s.tenant_id = w.tenant_id and s.id = w.child_session_id
    where w.tenant_id = ${of.tenantId} and w.work_id = ${of.workId}
    for no key update of s`);
  return rows[0]?.id ?? null;
}

/** Removes the entry if it has not ended; under the child's lock. Says whether it did. */
export async function deleteLiveWork(tx: Queryable, of: WorkOf): Promise<boolean> {
  const deleted = await tx
    .delete(work)
    .where(and(eq(work.tenantId, of.tenantId), eq(work.workId, of.workId), isNull(work.endedAt)))
    .returning({ workId: work.workId });
  return deleted.length > 0;
}

/** Leaves the child without a current entry, if this is it. */
export async function clearCurrentWork(
  tx: Queryable,
  { tenantId, childId, workId }: WorkOf & { childId: string },
): Promise<void> {
  await tx
    .update(sessions)
    .set({ currentWorkId: null })
    .where(
      and(
        eq(sessions.tenantId, tenantId),
        eq(sessions.id, childId),
        eq(sessions.currentWorkId, workId),
      ),
    );
}

/**
 * Removes tombstones that ended before `endedBefore`, looking at `limit` entries after the cursor;
 * answers where to go on, null at the end. The newest entry of a session that lives stays: by it
 * repeats are recognised.
 */
export async function deleteOldTombstones(
  db: Queryable,
  {
    after,
    endedBefore,
    limit,
  }: { after: { tenantId: string; workId: string } | null; endedBefore: number; limit: number },
): Promise<{ tenantId: string; workId: string } | null> {
  const rows = await db.execute<{ tenantId: string; workId: string }>(sql`
    with seen as (
      select w.tenant_id, w.work_id, w.child_session_id, w.ended_at from work w
      where (w.tenant_id, w.work_id) > (${after?.tenantId ?? ''}, ${after?.workId ?? ''})
      order by w.tenant_id, w.work_id limit ${limit}
    ), pruned as (
      delete from work w using seen o
      where w.tenant_id = o.tenant_id and w.work_id = o.work_id
        and o.ended_at < ${endedBefore}::timestamptz
        and (
          exists (select 1 from work n where n.tenant_id = o.tenant_id
            and n.child_session_id = o.child_session_id and n.work_id > o.work_id)
          or not exists (select 1 from sessions s where s.tenant_id = o.tenant_id
            and s.id = o.child_session_id and s.deleted_at is null))
        and not exists (select 1 from sessions s where s.tenant_id = o.tenant_id
          and s.id = o.child_session_id and s.deleted_at is null
          and s.current_work_id = o.work_id))
    select tenant_id as "tenantId", work_id as "workId" from seen
    order by tenant_id, work_id`);
  return rows.length < limit ? null : (rows.at(-1) ?? null);
}
