import { and, eq, getTableColumns, isNull, sql } from 'drizzle-orm';
import type { WorkStatus } from '../domain/work.ts';
import type { Queryable } from './database.ts';
import { bytesOf, selectPage, type Page } from './page.ts';
import { lateResults, sessions, work } from './schema.ts';

type WorkRow = typeof work.$inferSelect & { status: WorkStatus };

/** An entry without what may be large and no list shows. */
export type ListedWork = Omit<WorkRow, 'result'>;

/** An entry with what it has put into the inbox, as far as that has not been pruned. */
export interface WorkDetail extends WorkRow {
  /** The whole output of its newest item; null: there is none. */
  output: string | null;
  itemSeqs: number[];
  /** What came after its end, oldest first. */
  lateResults: (typeof lateResults.$inferSelect)[];
}

interface WorkOf {
  tenantId: string;
  workId: string;
}

const { result, ...smallColumns } = getTableColumns(work);
/** The columns that a list shows. */
export const listedWork = smallColumns;

/** All columns of `work w` under their names here, and those that a list shows. */
const columns = named({ ...smallColumns, result });
const listedColumns = named(smallColumns);

function named(fields: Record<string, { name: string }>) {
  const all = Object.entries(fields);
  return sql.raw(all.map(([field, column]) => `w.${column.name} as "${field}"`).join(', '));
}

/** The entry, with its whole output; null: there is none. */
export async function selectWork(db: Queryable, of: WorkOf): Promise<WorkDetail | null> {
  const rows = await db.execute<Omit<WorkDetail, 'lateResults'> & Record<string, unknown>>(sql`
    select ${columns}, newest.output, coalesce(every.seqs, '{}') as "itemSeqs" from work w
    left join items newest on newest.tenant_id = w.tenant_id
      and newest.source = 'work:' || w.work_id || ':' || w.revision
    left join lateral (
      select array_agg(i.seq order by i.seq) as seqs from generate_series(1, w.revision) r
      join items i on i.tenant_id = w.tenant_id and i.source = 'work:' || w.work_id || ':' || r
    ) every on true
    where w.tenant_id = ${of.tenantId} and w.work_id = ${of.workId}`);
  const [row] = rows;
  return row === undefined ? null : { ...row, lateResults: await selectLateResults(db, of) };
}

async function selectLateResults(db: Queryable, of: WorkOf): Promise<WorkDetail['lateResults']> {
  return await db
    .select()
    .from(lateResults)
    .where(and(eq(lateResults.tenantId, of.tenantId), eq(lateResults.workId, of.workId)))
    .orderBy(lateResults.seq);
}

/**
 * Entries dispatched by any session of the chain that ends with the parent, newest first, before
 * `before`: at most `limit` and no more than `maxBytes`, but at least one. Each session's entries
 * are read from the index, and no more of them than can be shown.
 */
export async function selectWorkPage(
  db: Queryable,
  page: {
    tenantId: string;
    parentTip: string;
    status: WorkStatus | null;
    before: string | null;
    limit: number;
    maxBytes: number;
  },
): Promise<Page<ListedWork>> {
  const status = page.status === null ? sql`` : sql`and w.status = ${page.status}`;
  const before = page.before === null ? sql`` : sql`and w.work_id < ${page.before}`;
  const found = page.limit + 1;
  return await selectPage<ListedWork>(db, {
    from: sql`
      select w.* from (
        select id from sessions where tenant_id = ${page.tenantId} and id = ${page.parentTip}
        union all
        select id from sessions
        where tenant_id = ${page.tenantId} and tip_session_id = ${page.parentTip}
      ) chain
      cross join lateral (
        select ${listedColumns} from work w
        where w.tenant_id = ${page.tenantId} and w.parent_session_id = chain.id ${status} ${before}
        order by w.work_id desc limit ${found}
      ) w
      order by w."workId" desc limit ${found}`,
    order: sql`r."workId" desc`,
    bytes: bytesOf('r.agent', 'r.title', 'r.goal'),
    limit: page.limit,
    maxBytes: page.maxBytes,
  });
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
 * repeats are recognised; and a task as long as its call.
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
      select w.tenant_id, w.work_id, w.child_session_id, w.ended_at, w.delegation_id from work w
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
          and s.current_work_id = o.work_id)
        and not exists (select 1 from delegations d where d.tenant_id = o.tenant_id
          and d.delegation_id = o.delegation_id))
    select tenant_id as "tenantId", work_id as "workId" from seen
    order by tenant_id, work_id`);
  return rows.length < limit ? null : (rows.at(-1) ?? null);
}
