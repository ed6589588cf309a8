import { and, count, eq, getTableColumns, isNull, sql } from 'drizzle-orm';
import type { Queryable } from './database.ts';
import { bytesOf, selectPage, type Page } from './page.ts';
import { delegations, items } from './schema.ts';

/** The columns of its call that an item repeats. */
const REPEATED = [
  'sessionKey',
  'originUiSessionId',
  'originSessionId',
  'parentSessionId',
  'goals',
  'context',
  'toolsets',
  'role',
  'model',
] as const;

type CallRow = typeof delegations.$inferSelect;
/** An item with what it repeats of its call: null where it is an item of none. */
export type ItemRow = typeof items.$inferSelect & {
  [Field in (typeof REPEATED)[number]]: CallRow[Field] | null;
};

export interface InboxOf {
  tenantId: string;
  /** The session in whose inbox the items lie: the last one of its chain. */
  sessionId: string;
}

/** All columns of `items i` under their names here. */
const columns = sql.raw(
  Object.entries(getTableColumns(items))
    .map(([field, column]) => `i.${column.name} as "${field}"`)
    .join(', '),
);

/** What they repeat of `delegations d`. */
const callColumns = sql.raw(
  REPEATED.map((field) => `d.${delegations[field].name} as "${field}"`).join(', '),
);

/** The call `d` of an item, by key: what is large of it is read only where it is sent. */
function joinCall(tenantId: string, delegationId: string) {
  return sql`left join lateral (
    select * from delegations q where q.tenant_id = ${sql.raw(tenantId)}
      and q.delegation_id = ${sql.raw(delegationId)} limit 1
  ) d on true`;
}

/** Pending and not leased by anybody: what a reader can be given. */
const isFree = (now: number) =>
  sql`i.acked_at is null and (i.leased_until is null or i.leased_until <= ${now}::timestamptz)`;

export interface HandedOut {
  items: ItemRow[];
  /** Pending, not leased, and not among these. */
  remaining: number;
  /** When the first lease of another reader ends; null: nothing is leased. */
  nextLeaseEnd: number | null;
}

/**
 * Hands out the first free items, in the order of delivery: leased until `leasedUntil`, or acked at
 * once. At most `max`, and no more text than `maxBytes`, but at least one. What another reader is
 * being given at this moment is passed over, so that nobody waits and none gets the same item.
 *
 * The calls are joined last: beside rows that are locked they would be read whole for each of them.
 */
export async function handOutItems(
  db: Queryable,
  to: InboxOf & {
    now: number;
    leasedUntil: number;
    ackedAt: number | null;
    max: number;
    maxBytes: number;
  },
): Promise<HandedOut> {
  const rows = await db.execute<
    ItemRow & { seq: number | null; remaining: number; nextLeaseEnd: number | null }
  >(sql`
    with picked as (
      select i.seq, ${bytesOf('i.output', 'i.details')} + coalesce((
          select d.text_bytes from delegations d
          where d.tenant_id = i.tenant_id and d.delegation_id = i.delegation_id), 0) as bytes
      from items i
      where i.tenant_id = ${to.tenantId} and i.session_id = ${to.sessionId} and ${isFree(to.now)}
      order by i.seq limit ${to.max} for update skip locked
    ), kept as (
      select seq from (
        select seq, row_number() over (order by seq) as place,
          sum(bytes) over (order by seq) as total from picked
      ) p where place = 1 or total <= ${to.maxBytes}
    ), handed as (
      update items i set leased_until = ${to.leasedUntil}::timestamptz,
        acked_at = ${to.ackedAt}::timestamptz, delivery_count = i.delivery_count + 1
      where i.tenant_id = ${to.tenantId} and i.session_id = ${to.sessionId}
        and i.seq = any(array(select seq from kept))
      returning ${columns}
    ), pending as (
      select count(*) filter (where ${isFree(to.now)}) as free,
        min(i.leased_until) filter (where i.leased_until > ${to.now}::timestamptz) as lease_end
      from items i
      where i.tenant_id = ${to.tenantId} and i.session_id = ${to.sessionId} and i.acked_at is null
    )
    select h.*, ${callColumns}, (p.free - (select count(*) from handed))::int as remaining,
      p.lease_end as "nextLeaseEnd"
    from pending p left join handed h on true ${joinCall('h."tenantId"', 'h."delegationId"')}
    order by h.seq`);
  const [first] = rows;
  if (first === undefined) throw new Error('an aggregate answers one row');
  const { remaining, nextLeaseEnd } = first;
  return { items: rows.filter((row) => row.seq !== null), remaining, nextLeaseEnd };
}

/**
 * Undoes a handing out that reached nobody. Items that have been handed out or acked by another
 * hand since stay as they are.
 */
export async function takeBackItems(
  db: Queryable,
  from: InboxOf & { seqs: number[]; deliveryCounts: number[]; ackedAt: number | null },
): Promise<void> {
  await db.execute(sql`
    update items i
    set leased_until = null, acked_at = null, delivery_count = i.delivery_count - 1
    from unnest(
      ${sql.param(from.seqs.map(() => from.tenantId))}::text[],
      ${sql.param(from.seqs.map(() => from.sessionId))}::text[],
      ${sql.param(from.seqs)}::bigint[], ${sql.param(from.deliveryCounts)}::int[]
    ) as h(tenant_id, session_id, seq, delivery_count)
    where i.tenant_id = h.tenant_id and i.session_id = h.session_id and i.seq = h.seq
      and i.delivery_count = h.delivery_count
      and i.acked_at is not distinct from ${from.ackedAt}::timestamptz`);
}

export interface NamedItems {
  tenantId: string;
  /** The sessions in whose inboxes they may lie. */
  sessionIds: string[];
  seqs: number[];
}

export interface FoundItem {
  seq: number;
  wasAcked: boolean;
}

/** Acks the pending ones among the named items, leased or not; answers all that there are. */
export function ackItemsOf(tx: Queryable, to: NamedItems & { now: number }): Promise<FoundItem[]> {
  return tx.execute<FoundItem & Record<string, unknown>>(sql`
    with ${lockedItems(to)}, acked as (
      update items i set acked_at = ${to.now}::timestamptz
      where ${isAnyOf(to)} and i.seq = any(array(select seq from found where acked_at is null)))
    select f.seq, f.acked_at is not null as "wasAcked" from found f order by f.seq`);
}

/** Ends the leases of the pending ones among the named items; answers all that there are. */
export function releaseItemsOf(tx: Queryable, to: NamedItems): Promise<FoundItem[]> {
  return tx.execute<FoundItem & Record<string, unknown>>(sql`
    with ${lockedItems(to)}, released as (
      update items i set leased_until = null
      where ${isAnyOf(to)} and i.seq = any(array(
        select seq from found where acked_at is null and leased_until is not null)))
    select f.seq, f.acked_at is not null as "wasAcked" from found f order by f.seq`);
}

/** In order, so that two who name the same items do not wait for each other. */
function lockedItems(named: NamedItems) {
  return sql`found as (
    select i.seq, i.acked_at, i.leased_until from items i
    where ${isAnyOf(named)} and i.seq = any(${sql.param(named.seqs)}::bigint[])
    order by i.session_id, i.seq for update)`;
}

/** Without a join: joined, an inbox may be read whole for each of the items. */
function isAnyOf({ tenantId, sessionIds }: Pick<NamedItems, 'tenantId' | 'sessionIds'>) {
  return sql`i.tenant_id = ${tenantId} and i.session_id = any(${sql.param(sessionIds)}::text[])`;
}

/**
 * A page of the inbox in the order of delivery, after `afterSeq`: at most `limit` items and no more
 * text than `maxBytes`, but at least one.
 */
export async function selectItemPage(
  db: Queryable,
  page: InboxOf & {
    state: 'pending' | 'all';
    afterSeq: number;
    limit: number;
    maxBytes: number;
  },
): Promise<Page<ItemRow>> {
  const pending = page.state === 'pending' ? sql`and i.acked_at is null` : sql``;
  return await selectPage<ItemRow>(db, {
    from: sql`
      select ${columns}, ${callColumns}, d.text_bytes
      from items i ${joinCall('i.tenant_id', 'i.delegation_id')}
      where i.tenant_id = ${page.tenantId} and i.session_id = ${page.sessionId}
        and i.seq > ${page.afterSeq} ${pending}
      order by i.seq limit ${page.limit + 1}`,
    order: sql`r.seq`,
    bytes: sql`${bytesOf('r.output', 'r.details')} + coalesce(r.text_bytes, 0)`,
    limit: page.limit,
    maxBytes: page.maxBytes,
  });
}

/** One item of these inboxes, acked or not; null if it is in none of them. */
export async function selectItem(
  db: Queryable,
  of: { tenantId: string; sessionIds: string[]; seq: number },
): Promise<ItemRow | null> {
  const rows = await db.execute<ItemRow & Record<string, unknown>>(sql`
    select ${columns}, ${callColumns}
    from items i ${joinCall('i.tenant_id', 'i.delegation_id')}
    where ${isAnyOf(of)} and i.seq = ${of.seq}`);
  return rows[0] ?? null;
}

/** How many items of the inbox are not acked. */
export async function countPending(db: Queryable, of: InboxOf): Promise<number> {
  const rows = await db
    .select({ pending: count() })
    .from(items)
    .where(
      and(
        eq(items.tenantId, of.tenantId),
        eq(items.sessionId, of.sessionId),
        isNull(items.ackedAt),
      ),
    );
  return rows[0]?.pending ?? 0;
}

/** Those of the inboxes that hold a free item, or whose session was deleted. */
export function selectInboxesWorthALook(
  db: Queryable,
  inboxes: readonly InboxOf[],
  now: number,
): Promise<InboxOf[]> {
  return db.execute<InboxOf & Record<string, unknown>>(sql`
    select s.tenant_id as "tenantId", s.id as "sessionId"
    from unnest(
      ${sql.param(inboxes.map((inbox) => inbox.tenantId))}::text[],
      ${sql.param(inboxes.map((inbox) => inbox.sessionId))}::text[]) as w(tenant_id, id)
    join sessions s on s.tenant_id = w.tenant_id and s.id = w.id
    where s.deleted_at is not null or exists (
      select 1 from items i
      where i.tenant_id = s.tenant_id and i.session_id = coalesce(s.tip_session_id, s.id)
        and ${isFree(now)})`);
}

/** Removes items that were acked before `ackedBefore`, at most `limit`; says how many. */
export async function deleteOldAckedItems(
  db: Queryable,
  { ackedBefore, limit }: { ackedBefore: number; limit: number },
): Promise<number> {
  const rows = await db.execute(sql`
    delete from items where (tenant_id, session_id, seq) in (
      select tenant_id, session_id, seq from items
      where acked_at < ${ackedBefore}::timestamptz
      order by acked_at limit ${limit} for update skip locked)
    returning seq`);
  return rows.length;
}
