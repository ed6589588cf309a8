import { getTableColumns, sql, type SQL } from 'drizzle-orm';
import type { SessionStatus } from '../domain/session.ts';
import type { WakeState } from '../domain/wake.ts';
import type { Queryable } from './database.ts';
import { wakes } from './schema.ts';

/*
 * What parents were told of their inboxes. A parent's row is the lock of its wakes, over all
 * replicas: whoever steps them locks the rows in order, and reads behind the locks.
 */

export interface WakeKey {
  tenantId: string;
  /** The last session of the chain. */
  sessionId: string;
}

/** The last announcement as it was made. */
export interface Told {
  notice: string;
  pending: number;
  itemId: string | null;
}

export interface WakeRow extends WakeState, WakeKey {
  told: Told | null;
}

/** All columns of `wakes w` under their names here. */
const columns = sql.raw(
  Object.entries(getTableColumns(wakes))
    .map(([field, column]) => `w.${column.name} as "${field}"`)
    .join(', '),
);

function keysOf(keys: readonly WakeKey[]) {
  return sql`unnest(${sql.param(keys.map((key) => key.tenantId))}::text[],
    ${sql.param(keys.map((key) => key.sessionId))}::text[])`;
}

/**
 * The commit of this transaction does not wait for the disk: what is lost with the server is found
 * again by who looks for parents that were not told.
 */
export async function commitWithoutWaiting(tx: Queryable): Promise<void> {
  await tx.execute(sql`select set_config('synchronous_commit', 'off', true)`);
}

/** Makes rows for parents that have never been told anything, unless they were deleted. */
export async function insertMissingWakes(
  tx: Queryable,
  keys: readonly WakeKey[],
  state: WakeState,
): Promise<void> {
  await tx.execute(sql`
    insert into wakes (tenant_id, session_id, pending, repeat_delay_ms, announcements, as_of)
    select k.tenant_id, k.session_id, ${state.pending}, ${state.repeatDelayMs},
      ${state.announcements}, ${state.asOf}
    from ${keysOf(keys)} as k(tenant_id, session_id)
    where exists (select 1 from sessions s
      where s.tenant_id = k.tenant_id and s.id = k.session_id and s.deleted_at is null)
    order by k.tenant_id, k.session_id
    on conflict do nothing`);
}

/** Locks the rows of these parents, those that there are, in order. */
export async function lockWakes(tx: Queryable, keys: readonly WakeKey[]): Promise<WakeRow[]> {
  return await tx.execute<WakeRow & Record<string, unknown>>(sql`
    select ${columns} from wakes w
    where (w.tenant_id, w.session_id) in (
      select tenant_id, session_id from ${keysOf(keys)} as k(tenant_id, session_id))
    order by w.tenant_id, w.session_id for update`);
}

/** An item that a parent is told of. */
export interface WakingItem {
  seq: number;
  type: string;
  agent: string;
  title: string;
  status: string;
  delegationId: string | null;
  createdBy: string | null;
}

/** A parent's inbox, as far as it bears on its wakes. */
export interface LoadedWakingInbox extends WakeKey {
  status: SessionStatus | null;
  /** Items that are not acked, of whatever kind. */
  pending: number;
  /** The newest item that asks for a wake; null: there is none. */
  newest: WakingItem | null;
  /** The same of those that nobody holds a lease of. */
  unread: WakingItem | null;
  /** When the first lease of an item that asks for a wake ends. */
  leasedUntil: number | null;
  hasWebhook: boolean;
}

/** The newest pending item of a parent `k` that asks for a wake, and fulfils the condition. */
function newestWakingItem(condition: SQL): SQL {
  return sql`(
    select json_build_object('seq', i.seq, 'type', i.type,
      'agent', coalesce(nullif(i.agent, ''), w.agent, 'sub-agent'),
      'title', case when i.agent = '' then coalesce(w.title, '') else i.title end,
      'status', i.status, 'delegationId', i.details ->> 'delegation_id',
      'createdBy', i.created_by)
    from (
      select * from items i where i.session_id = k.session_id and i.tenant_id = k.tenant_id
        and i.acked_at is null and i.wakes and ${condition}
      order by i.seq desc limit 1
    ) i
    left join lateral (
      select * from work q where q.tenant_id = i.tenant_id and q.work_id = i.work_id
        and i.type = 'task_failed' limit 1
    ) w on true)`;
}

/** The inboxes of these parents. */
export async function loadWakingInboxes(
  tx: Queryable,
  keys: readonly WakeKey[],
  now: number,
): Promise<LoadedWakingInbox[]> {
  const isFree = sql`(i.leased_until is null or i.leased_until <= ${now}::timestamptz)`;
  return await tx.execute<LoadedWakingInbox & Record<string, unknown>>(sql`
    select k.tenant_id as "tenantId", k.session_id as "sessionId",
      (select s.status from sessions s
        where s.tenant_id = k.tenant_id and s.id = k.session_id) as status,
      (select count(*)::int from items i where i.session_id = k.session_id
        and i.tenant_id = k.tenant_id and i.acked_at is null) as pending,
      ${newestWakingItem(sql`true`)} as newest, ${newestWakingItem(isFree)} as unread,
      (select min(i.leased_until) from items i where i.session_id = k.session_id
        and i.tenant_id = k.tenant_id and i.acked_at is null and i.wakes
        and i.leased_until > ${now}::timestamptz) as "leasedUntil",
      exists (select 1 from webhooks h
        where h.tenant_id = k.tenant_id and h.session_id = k.session_id) as "hasWebhook"
    from ${keysOf(keys)} as k(tenant_id, session_id)`);
}

/** Writes the states; under their locks. */
export async function updateWakes(tx: Queryable, rows: readonly WakeRow[]): Promise<void> {
  await tx.execute(sql`
    update wakes w set pending = r.pending, last_notice = r.last_notice, repeat_at = r.repeat_at,
      repeat_delay_ms = r.repeat_delay_ms, announcements = r.announcements, as_of = r.as_of,
      told = r.told::jsonb
    from unnest(
      ${sql.param(rows.map((r) => r.tenantId))}::text[],
      ${sql.param(rows.map((r) => r.sessionId))}::text[],
      ${sql.param(rows.map((r) => r.pending))}::boolean[],
      ${sql.param(rows.map((r) => r.lastNotice))}::text[],
      ${sql.param(rows.map((r) => r.repeatAt))}::timestamptz[],
      ${sql.param(rows.map((r) => r.repeatDelayMs))}::bigint[],
      ${sql.param(rows.map((r) => r.announcements))}::int[],
      ${sql.param(rows.map((r) => r.asOf))}::bigint[],
      ${sql.param(rows.map((r) => r.told && JSON.stringify(r.told)))}::text[]
    ) as r(tenant_id, session_id, pending, last_notice, repeat_at, repeat_delay_ms, announcements,
      as_of, told)
    where w.tenant_id = r.tenant_id and w.session_id = r.session_id`);
}

/** The parents whose wakes are to be repeated now, longest first. */
export async function selectWakesToRepeat(
  db: Queryable,
  { now, limit }: { now: number; limit: number },
): Promise<WakeKey[]> {
  return await db.execute<WakeKey & Record<string, unknown>>(sql`
    select tenant_id as "tenantId", session_id as "sessionId" from wakes
    where repeat_at <= ${now}::timestamptz order by repeat_at limit ${limit}`);
}

/** The next session with items that ask for a wake, in the order of their index, by one look-up. */
function nextParent(after: SQL): SQL {
  return sql`
    select i.session_id, i.tenant_id from items i
    where i.acked_at is null and i.wakes and (i.session_id, i.tenant_id) > ${after}
    order by i.session_id, i.tenant_id limit 1`;
}

/**
 * So many items of a parent are looked at, the newest. Readers lease the oldest first, and who lives
 * to deliver new ones all the time tells the parent himself.
 */
const NEWEST_LOOKED_AT = 100;

/**
 * The next parents with items that ask for a wake, in the order of the index and after `after`, each
 * with whether it has been left untold: nothing runs, nothing is intended, and something to be told
 * of has been there since before `since`. What it costs does not grow with the inbox.
 */
export async function selectUntoldParents(
  db: Queryable,
  page: { after: WakeKey | null; since: number; now: number; limit: number },
): Promise<(WakeKey & { isUntold: boolean })[]> {
  const start = sql`(${page.after?.sessionId ?? ''}, ${page.after?.tenantId ?? ''})`;
  return await db.execute<WakeKey & { isUntold: boolean } & Record<string, unknown>>(sql`
    with recursive parents(session_id, tenant_id, n) as (
      (select q.session_id, q.tenant_id, 1 from (${nextParent(start)}) q)
      union all
      select q.session_id, q.tenant_id, p.n + 1 from parents p
      cross join lateral (${nextParent(sql`(p.session_id, p.tenant_id)`)}) q
      where p.n < ${page.limit}::int
    )
    select p.session_id as "sessionId", p.tenant_id as "tenantId",
      coalesce(not w.pending and w.repeat_at is null, true)
        and coalesce(s.status in ('idle', 'failed') and s.deleted_at is null, false)
        and exists (
          select 1 from (
            select * from items q where q.session_id = p.session_id
              and q.tenant_id = p.tenant_id and q.acked_at is null and q.wakes
            order by q.seq desc limit ${NEWEST_LOOKED_AT}
          ) i
          where (i.leased_until is null or i.leased_until <= ${page.now}::timestamptz)
            and i.delivered_at <= ${page.since}::timestamptz) as "isUntold"
    from parents p
    left join lateral (
      select * from wakes q
      where q.tenant_id = p.tenant_id and q.session_id = p.session_id limit 1
    ) w on true
    left join lateral (
      select * from sessions q where q.tenant_id = p.tenant_id and q.id = p.session_id limit 1
    ) s on true
    order by p.n`);
}

/** Deletes what these sessions were told. */
export async function deleteWakesOf(
  tx: Queryable,
  of: { tenantId: string; ids: string[] },
): Promise<void> {
  await tx.execute(sql`
    delete from wakes where tenant_id = ${of.tenantId}
      and session_id = any(${sql.param(of.ids)}::text[])`);
}
