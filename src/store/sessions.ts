import { and, eq, getTableColumns, sql, type SQL } from 'drizzle-orm';
import type { SessionStatus } from '../domain/session.ts';
import type { Snapshot } from '../domain/snapshot.ts';
import { TOLD_ERROR_MAX } from '../domain/stream-changes.ts';
import type { WorkStatus } from '../domain/work.ts';
import type { Queryable } from './database.ts';
import { bytesOf, selectPage, type Page } from './page.ts';
import { sessions, work } from './schema.ts';
import { listedWork, type ListedWork } from './work.ts';

/*
 * The statements on sessions outside of the ingest. Whoever changes what others decide by (a parent,
 * a chain, an inbox, a deletion) locks all rows that it touches with `lockSessions`, once, and reads
 * again behind it.
 */

export interface SessionKey {
  tenantId: string;
  sessionId: string;
}

export type SessionRow = typeof sessions.$inferSelect & { status: SessionStatus };

/** What a session loses when it is deleted. Its place in a chain stays: others go on through it. */
const CLEARED = {
  describedAt: null,
  parentSessionId: null,
  agentId: null,
  agentName: null,
  subAgentName: null,
  title: null,
  workspace: null,
  runnerId: null,
  channel: null,
  maxConcurrent: null,
  status: 'idle',
  backgroundTaskCount: 0,
  blockedOn: null,
  errorCode: null,
  errorMessage: null,
  responseId: null,
  closedAt: null,
  endReason: null,
  inboxOpenedAt: null,
  inboxClosedAt: null,
  currentWorkId: null,
  lastReport: null,
  ranSinceResult: false,
  lastDigest: null,
  upstreamMessageId: null,
} satisfies Partial<typeof sessions.$inferInsert>;

// ---- reading

/** The session's row, be it a stub or deleted; null if it was never named. */
export async function selectSession(db: Queryable, key: SessionKey): Promise<SessionRow | null> {
  const rows = await db.select().from(sessions).where(hasKey(key));
  return (rows[0] as SessionRow | undefined) ?? null;
}

/** A session with what is shown of it besides its own row. */
export interface ShownSession {
  session: SessionRow;
  /** The topmost session to which its parents lead. */
  rootSessionId: string;
  /** The inbox in which the items for it lie: that of the last session of its chain. */
  inboxOpenedAt: number | null;
  inboxClosedAt: number | null;
  pending: number;
  /** Some report of it is parked. */
  hasParked: boolean;
  /** Its current work entry. */
  work: ListedWork | null;
}

/** The session and what is shown with it, if it is known; null for a stub and a deleted one. */
export async function selectShownSession(
  db: Queryable,
  key: SessionKey,
): Promise<ShownSession | null> {
  const tip = sql`coalesce(sessions.tip_session_id, sessions.id)`;
  const ofTip = (column: string) => sql<number | null>`(
    select t.${sql.identifier(column)} from sessions t
    where t.tenant_id = sessions.tenant_id and t.id = ${tip})`;
  const current = db
    .select(listedWork)
    .from(work)
    .where(sql`tenant_id = sessions.tenant_id and work_id = sessions.current_work_id`)
    .limit(1)
    .as('current');
  const rows = await db
    .select({
      session: getTableColumns(sessions),
      rootSessionId: sql<string>`(
        ${wayUp(sql`sessions.tenant_id`, sql`sessions.id`)}
        select id from up where coalesce(parent, id) = id limit 1)`,
      inboxOpenedAt: ofTip('inbox_opened_at'),
      inboxClosedAt: ofTip('inbox_closed_at'),
      pending: sql<number>`(
        select count(*)::int from items i
        where i.tenant_id = sessions.tenant_id and i.session_id = ${tip}
          and i.acked_at is null)`,
      hasParked: sql<boolean>`exists (
        select 1 from parked_reports k where k.tenant_id = sessions.tenant_id
          and k.child_session_id = sessions.id and k.state = 'parked')`,
      work: current._.selectedFields,
    })
    .from(sessions)
    .leftJoinLateral(current, sql`true`)
    .where(and(hasKey(key), sql`${sessions.describedAt} is not null`));
  return (rows[0] as ShownSession | undefined) ?? null;
}

/** A child as its parent's list shows it. */
export interface ShownChild {
  id: string;
  agentId: string | null;
  title: string | null;
  status: SessionStatus;
  errorCode: string | null;
  errorMessage: string | null;
  /** Of its current work entry. */
  workStatus: WorkStatus | null;
  /** The first 4,000 code points of its newest assistant text, or else of its turn's result. */
  messageStart: string | null;
}

const shownChild = {
  id: sessions.id,
  agentId: sessions.agentId,
  title: sessions.title,
  status: sessions.status,
  errorCode: sessions.errorCode,
  errorMessage: sessions.errorMessage,
  workStatus: sql<WorkStatus | null>`(
    select w.status from work w
    where w.tenant_id = sessions.tenant_id and w.work_id = sessions.current_work_id)`,
  messageStart: sql<string | null>`(
    select left(coalesce(
      (select x.text from assistant_texts x
        where x.tenant_id = sessions.tenant_id and x.session_id = sessions.id),
      (select coalesce(w.result ->> 'summary', (select i.output from items i
          where i.tenant_id = w.tenant_id
            and i.source = 'work:' || w.work_id || ':' || w.revision))
        from work w
        where w.tenant_id = sessions.tenant_id and w.work_id = sessions.current_work_id
          and w.status = 'completed')
    ), 4000))`,
};

const shownChildColumns = sql.join(
  Object.entries(shownChild).map(([field, column]) => sql`${column} as ${sql.identifier(field)}`),
  sql`, `,
);

/**
 * A page of direct children, newest first; the own parent of itself is no child. At most `limit`
 * and no more than `maxBytes`, but at least one.
 */
export async function selectChildren(
  db: Queryable,
  page: SessionKey & {
    after: { createdAt: number; id: string } | null;
    limit: number;
    maxBytes: number;
  },
): Promise<Page<ShownChild>> {
  const { after } = page;
  const older =
    after === null
      ? sql``
      : sql`and (created_at, id) < (${after.createdAt}::timestamptz, ${after.id})`;
  return await selectPage<ShownChild>(db, {
    from: sql`
      select created_at, ${shownChildColumns} from sessions
      where tenant_id = ${page.tenantId} and parent_session_id = ${page.sessionId}
        and id <> ${page.sessionId} ${older}
      order by created_at desc, id desc limit ${page.limit + 1}`,
    order: sql`r.created_at desc, r.id desc`,
    bytes: bytesOf('r.title', 'r."errorMessage"'),
    limit: page.limit,
    maxBytes: page.maxBytes,
  });
}

/** These children, with as much of their errors as streams tell. */
export async function selectChildrenById(
  db: Queryable,
  of: { tenantIds: string[]; ids: string[] },
): Promise<(ShownChild & { tenantId: string })[]> {
  const rows = await db
    .select({
      ...shownChild,
      errorMessage: sql<string | null>`left(${sessions.errorMessage}, ${TOLD_ERROR_MAX}::int)`,
      tenantId: sessions.tenantId,
    })
    .from(sessions)
    .where(
      sql`(${sessions.tenantId}, ${sessions.id}) in (
        select * from unnest(${sql.param(of.tenantIds)}::text[], ${sql.param(of.ids)}::text[]))`,
    );
  return rows as (ShownChild & { tenantId: string })[];
}

/**
 * `up`: the session and its ancestors, each with its parent. Each step, here and in the recursions
 * below, is one look-up by key: joined, a planner without statistics reads the table at every step.
 */
function wayUp(tenantId: SQL, id: SQL): SQL {
  const parentOf = (child: SQL) => sql`(
    select s.parent_session_id from sessions s where s.tenant_id = ${tenantId} and s.id = ${child})`;
  return sql`
    with recursive up(id, parent) as (
      select ${id}, ${parentOf(id)}
      union
      select up.parent, ${parentOf(sql`up.parent`)} from up where up.parent <> up.id
    )`;
}

/** The topmost ancestor of a session, and whether another one is among them or is itself. */
export async function selectAncestry(
  db: Queryable,
  of: SessionKey & { soughtId: string },
): Promise<{ rootId: string; passesSought: boolean }> {
  const rows = await db.execute<{ rootId: string; passesSought: boolean }>(sql`
    ${wayUp(sql`${of.tenantId}`, sql`${of.sessionId}::text`)}
    select min(id) filter (where coalesce(parent, id) = id) as "rootId",
      bool_or(id = ${of.soughtId}) as "passesSought"
    from up`);
  const [row] = rows;
  if (row === undefined) throw new Error('an aggregate answers one row');
  return row;
}

/** The topmost ancestor of a session, and which of the sought ones are among them or are itself. */
export async function selectAncestorsAmong(
  db: Queryable,
  of: SessionKey & { soughtIds: string[] },
): Promise<{ rootId: string; found: string[] }> {
  const rows = await db.execute<{ rootId: string; found: string[] | null }>(sql`
    ${wayUp(sql`${of.tenantId}`, sql`${of.sessionId}::text`)}
    select min(id) filter (where coalesce(parent, id) = id) as "rootId",
      array_agg(id) filter (where id = any(${sql.param(of.soughtIds)}::text[])) as found
    from up`);
  const [row] = rows;
  if (row === undefined) throw new Error('an aggregate answers one row');
  return { rootId: row.rootId, found: row.found ?? [] };
}

/** The sessions whose chains pass through this one on their way to `tipId`. */
export async function selectPredecessors(
  db: Queryable,
  of: SessionKey & { tipId: string },
): Promise<string[]> {
  const rows = await db.execute<{ id: string }>(sql`
    with recursive before(id) as (
      select s.id from sessions s
      where s.tenant_id = ${of.tenantId} and s.tip_session_id = ${of.tipId}
        and s.continued_as = ${of.sessionId}
      union
      select s.id from before cross join lateral (
        select id from sessions
        where tenant_id = ${of.tenantId} and tip_session_id = ${of.tipId}
          and continued_as = before.id offset 0
      ) s
    )
    select id from before`);
  return rows.map(({ id }) => id);
}

/**
 * The session, unless it was deleted, and its descendants, the deepest first, at most `limit`: taken
 * away in this order, what is left is always a whole tree.
 */
export async function selectDeepestOfTree(
  db: Queryable,
  of: SessionKey & { limit: number },
): Promise<string[]> {
  const rows = await db.execute<{ id: string }>(sql`
    with recursive tree(id, depth) as (
      select s.id, 0 from sessions s
      where s.tenant_id = ${of.tenantId} and s.id = ${of.sessionId} and s.deleted_at is null
      union all
      select s.id, tree.depth + 1 from tree cross join lateral (
        select id from sessions
        where parent_session_id = tree.id and tenant_id = ${of.tenantId} and id <> tree.id offset 0
      ) s
    )
    select id from tree order by depth desc, id limit ${of.limit}`);
  return rows.map(({ id }) => id);
}

/** Those of the sessions that are described, or were deleted. */
export async function selectDescribedAmong(
  db: Queryable,
  of: { tenantId: string; ids: string[] },
): Promise<Set<string>> {
  const rows = await db.execute<{ id: string }>(sql`
    select id from sessions
    where tenant_id = ${of.tenantId} and id = any(${sql.param(of.ids)}::text[])
      and (described_at is not null or deleted_at is not null)`);
  return new Set(rows.map(({ id }) => id));
}

// ---- locking

/** Makes stubs of those that were never named, in id order; answers which it made. */
export async function insertStubs(
  tx: Queryable,
  stubs: { tenantId: string; ids: string[]; now: number },
): Promise<string[]> {
  const rows = await tx.execute<{ id: string }>(sql`
    insert into sessions (tenant_id, id, created_at)
    select ${stubs.tenantId}, n.id, ${stubs.now}::timestamptz
    from unnest(${sql.param(stubs.ids)}::text[]) as n(id) order by n.id
    on conflict do nothing returning id`);
  return rows.map(({ id }) => id);
}

/** Locks the rows of these sessions against reports, deliveries and each other, in id order. */
export async function lockSessions(
  tx: Queryable,
  rows: { tenantId: string; ids: string[] },
): Promise<void> {
  await tx.execute(sql`
    select 1 from sessions where tenant_id = ${rows.tenantId}
      and id = any(${sql.param(rows.ids)}::text[])
    order by tenant_id, id for update`);
}

// ---- writing: under the locks

/** Writes what is said of the session; with `tipId`, the last session of its chain. */
export async function updateSnapshot(
  tx: Queryable,
  { tenantId, sessionId, snapshot, tipId }: SessionKey & { snapshot: Snapshot; tipId: string },
): Promise<void> {
  await tx
    .update(sessions)
    .set(snapshotColumns(snapshot, tipId))
    .where(hasKey({ tenantId, sessionId }));
}

/** The same for a stub that becomes known by it: created now, whatever it had as a stub stays. */
export async function describeStub(
  tx: Queryable,
  to: SessionKey & { snapshot: Snapshot; tipId: string; now: number },
): Promise<void> {
  await tx
    .update(sessions)
    .set({ ...snapshotColumns(to.snapshot, to.tipId), createdAt: to.now, describedAt: to.now })
    .where(hasKey(to));
}

/** The same for a deleted session, which begins anew. */
export async function recreateSession(
  tx: Queryable,
  to: SessionKey & { snapshot: Snapshot; tipId: string; now: number },
): Promise<void> {
  await tx
    .update(sessions)
    .set({
      ...CLEARED,
      ...snapshotColumns(to.snapshot, to.tipId),
      createdAt: to.now,
      describedAt: to.now,
      deletedAt: null,
    })
    .where(hasKey(to));
}

function snapshotColumns(snapshot: Snapshot, tipId: string) {
  return {
    ...snapshot,
    channel: snapshot.channel === null ? null : { ...snapshot.channel },
    tipSessionId: snapshot.continuedAs === null ? null : tipId,
  };
}

/** Sets the last session of these sessions' chains. */
export async function updateTips(
  tx: Queryable,
  { tenantId, ids, tipId }: { tenantId: string; ids: string[]; tipId: string },
): Promise<void> {
  await tx.update(sessions).set({ tipSessionId: tipId }).where(hasAnyKey({ tenantId, ids }));
}

/** How many items of the inbox are not acked; counted as far as `limit`. */
export async function countUnreadItems(
  db: Queryable,
  of: SessionKey & { limit: number },
): Promise<number> {
  const [row] = await db.execute<{ unread: number }>(sql`
    select count(*)::int as unread from (
      select 1 from items where tenant_id = ${of.tenantId} and session_id = ${of.sessionId}
        and acked_at is null limit ${of.limit}) u`);
  return row?.unread ?? 0;
}

/**
 * Moves at most `limit` items that are not acked into another session's inbox, free to be read
 * there: those of children of the `ownerIds`, or, with `owners` 'all', any. To be repeated until it
 * says that it found none: one that was leased or released meanwhile is only moved the next time.
 *
 * A child that was deleted since is known by its items only: those stay where they are, but for 'all'.
 */
export async function moveUnreadItems(
  tx: Queryable,
  move: {
    tenantId: string;
    fromId: string;
    toId: string;
    owners: 'all' | 'named';
    ownerIds: string[];
    limit: number;
  },
): Promise<number> {
  // By their place on disk, which is a look-up however the planner errs; locked in order.
  const rows = await tx.execute<{ found: number }>(sql`
    with found as materialized (
      select i.ctid from items i
      where i.tenant_id = ${move.tenantId} and i.session_id = ${move.fromId}
        and i.acked_at is null and (${move.owners} = 'all' or coalesce(
          (select c.parent_session_id from sessions c
            where c.tenant_id = i.tenant_id and c.id = i.child_session_id),
          (select w.parent_session_id from work w
            where w.tenant_id = i.tenant_id and w.work_id = i.work_id)
        ) = any(${sql.param(move.ownerIds)}::text[]))
      order by i.seq limit ${move.limit} for update of i
    ), moved as (
      update items set session_id = ${move.toId}, leased_until = null
      where ctid = any(array(select ctid from found))
    )
    select count(*)::int as found from found`);
  return rows[0]?.found ?? 0;
}

/** Takes note that unread items have moved into the session's inbox, for all who have counted it. */
export async function countMove(tx: Queryable, key: SessionKey): Promise<void> {
  await tx
    .update(sessions)
    .set({ inboxMoves: sql`${sessions.inboxMoves} + 1` })
    .where(hasKey(key));
}

/** Leaves nothing of these sessions but a marker. */
export async function markSessionsDeleted(
  tx: Queryable,
  { now, ...rows }: { tenantId: string; ids: string[]; now: number },
): Promise<void> {
  await tx
    .update(sessions)
    .set({ ...CLEARED, deletedAt: now })
    .where(hasAnyKey(rows));
}

/**
 * Removes the markers of sessions that were deleted before `deletedBefore`, at most `limit`; says how
 * many. Those stay that a session which lives names as its parent, or goes on as or through.
 */
export async function deleteOldMarkers(
  db: Queryable,
  to: { deletedBefore: number; limit: number },
): Promise<number> {
  const rows = await db.execute(sql`
    delete from sessions where (tenant_id, id) in (
      select s.tenant_id, s.id from sessions s
      where s.deleted_at < ${to.deletedBefore}::timestamptz
        and not exists (select 1 from sessions c
          where c.parent_session_id = s.id and c.tenant_id = s.tenant_id)
        and not exists (select 1 from sessions c
          where c.tip_session_id = coalesce(s.tip_session_id, s.id) and c.tenant_id = s.tenant_id
            and (c.continued_as = s.id or c.tip_session_id = s.id))
      order by s.deleted_at limit ${to.limit} for update skip locked)
    returning 1`);
  return rows.length;
}

function hasKey({ tenantId, sessionId }: SessionKey) {
  return and(eq(sessions.tenantId, tenantId), eq(sessions.id, sessionId));
}

function hasAnyKey({ tenantId, ids }: { tenantId: string; ids: string[] }) {
  return and(eq(sessions.tenantId, tenantId), sql`${sessions.id} = any(${sql.param(ids)}::text[])`);
}
