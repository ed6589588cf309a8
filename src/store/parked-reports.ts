import { and, asc, desc, eq, gt, lt, sql } from 'drizzle-orm';
import type { Queryable } from './database.ts';
import { parkedReports } from './schema.ts';

export type ParkedRow = typeof parkedReports.$inferSelect;

/** The child's parked reports, oldest turn first. */
export function selectParkedOfChild(
  db: Queryable,
  of: { tenantId: string; childId: string },
): Promise<ParkedRow[]> {
  return db
    .select()
    .from(parkedReports)
    .where(
      and(
        eq(parkedReports.tenantId, of.tenantId),
        eq(parkedReports.childSessionId, of.childId),
        eq(parkedReports.state, 'parked'),
      ),
    )
    .orderBy(asc(parkedReports.turn));
}

/** Children with parked reports for this parent, by id, after the given one; at most `limit`. */
export async function selectParkedChildrenOfParent(
  db: Queryable,
  of: { tenantId: string; parentId: string; afterChildId: string; limit: number },
): Promise<string[]> {
  const rows = await db
    .selectDistinct({ childId: parkedReports.childSessionId })
    .from(parkedReports)
    .where(
      and(
        eq(parkedReports.tenantId, of.tenantId),
        eq(parkedReports.parentSessionId, of.parentId),
        eq(parkedReports.state, 'parked'),
        gt(parkedReports.childSessionId, of.afterChildId),
      ),
    )
    .orderBy(asc(parkedReports.childSessionId))
    .limit(of.limit);
  return rows.map((row) => row.childId);
}

/** Those of the children that have parked reports. */
export async function selectChildrenWithParked(
  db: Queryable,
  of: { tenantId: string; ids: string[] },
): Promise<string[]> {
  const rows = await db.execute<{ id: string }>(sql`
    select r.id from unnest(${sql.param(of.ids)}::text[]) as r(id)
    where exists (
      select 1 from parked_reports k where k.tenant_id = ${of.tenantId}
        and k.child_session_id = r.id and k.state = 'parked')`);
  return rows.map(({ id }) => id);
}

export interface ParkedKey {
  tenantId: string;
  childId: string;
}

/** The next reports that wait for upstream to answer again, by id. */
export async function selectReportsToProbe(
  db: Queryable,
  page: { after: string; limit: number },
): Promise<(ParkedKey & { id: string })[]> {
  return await db.execute<ParkedKey & { id: string } & Record<string, unknown>>(sql`
    select tenant_id as "tenantId", child_session_id as "childId", id from parked_reports
    where state = 'parked' and reason in ('snapshot_unavailable', 'output_unavailable')
      and id > ${page.after}
    order by id limit ${page.limit}`);
}

/** A parked report, and whether something says that it could be settled by now. */
export interface SweptReport extends ParkedKey {
  id: string;
  isDue: boolean;
}

/**
 * The next parked reports by id, each with whether it is due: its parent's inbox is open and has
 * room, or its session or parent was deleted. The backstop for what a crash left behind. Each inbox
 * is counted once, however many wait for it.
 */
export async function selectParkedToSweep(
  db: Queryable,
  page: { after: string; limit: number; maxPendingItems: number },
): Promise<SweptReport[]> {
  return await db.execute<SweptReport & Record<string, unknown>>(sql`
    with swept as materialized (
      select k.tenant_id, k.child_session_id, k.id, t.id as inbox_id,
        s.deleted_at is not null or t.deleted_at is not null as is_gone,
        s.described_at is not null and t.inbox_opened_at is not null
          and t.inbox_closed_at is null as is_open
      from (
        select * from parked_reports where state = 'parked' and id > ${page.after}
        order by id limit ${page.limit}
      ) k
      left join sessions s on s.tenant_id = k.tenant_id and s.id = k.child_session_id
      left join work w on w.tenant_id = s.tenant_id and w.work_id = s.current_work_id
      left join sessions p on p.tenant_id = s.tenant_id
        and p.id = coalesce(w.parent_session_id, s.parent_session_id)
      left join sessions t on t.tenant_id = p.tenant_id and t.id = coalesce(p.tip_session_id, p.id)
    ), roomy as materialized (
      select tenant_id, inbox_id
      from (select distinct tenant_id, inbox_id from swept where is_open) q
      where not exists (select 1 from items i where i.tenant_id = q.tenant_id
        and i.session_id = q.inbox_id and i.acked_at is null
        offset ${page.maxPendingItems - 1} limit 1)
    )
    select tenant_id as "tenantId", child_session_id as "childId", id,
      is_gone or (is_open and (tenant_id, inbox_id) in (select * from roomy)) as "isDue"
    from swept order by id`);
}

/** Turns reports that were parked before `parkedBefore` into dead letters; says how many. */
export async function buryOldParked(
  db: Queryable,
  to: { parkedBefore: number; now: number; limit: number },
): Promise<number> {
  const rows = await db.execute(sql`
    update parked_reports set state = 'dead', dead_at = ${to.now}::timestamptz
    where (tenant_id, id) in (
      select tenant_id, id from parked_reports
      where state = 'parked' and first_at < ${to.parkedBefore}::timestamptz
      order by id limit ${to.limit} for update skip locked)
    returning id`);
  return rows.length;
}

/** Removes dead letters that died before `deadBefore`; says how many. */
export async function deleteOldDead(
  db: Queryable,
  to: { deadBefore: number; limit: number },
): Promise<number> {
  const rows = await db.execute(sql`
    delete from parked_reports where (tenant_id, id) in (
      select tenant_id, id from parked_reports
      where state = 'dead' and dead_at < ${to.deadBefore}::timestamptz
      order by id limit ${to.limit} for update skip locked)
    returning id`);
  return rows.length;
}

export interface ParkedListing {
  id: string;
  sessionId: string;
  parentSessionId: string | null;
  status: string;
  reason: string;
  tries: number;
  firstAt: number;
  lastAt: number;
  outputStart: string | null;
}

/** A page of parked or dead reports, newest first; `outputStart` is at most 1,000 characters. */
export function selectParkedPage(
  db: Queryable,
  page: { tenantId: string; state: 'parked' | 'dead'; before: string | null; limit: number },
): Promise<ParkedListing[]> {
  return db
    .select({
      id: parkedReports.id,
      sessionId: parkedReports.childSessionId,
      parentSessionId: parkedReports.parentSessionId,
      status: parkedReports.status,
      reason: parkedReports.reason,
      tries: parkedReports.tries,
      firstAt: parkedReports.firstAt,
      lastAt: parkedReports.lastAt,
      outputStart: sql<string | null>`left(${parkedReports.output}, 1000)`,
    })
    .from(parkedReports)
    .where(
      and(
        eq(parkedReports.tenantId, page.tenantId),
        eq(parkedReports.state, page.state),
        page.before === null ? undefined : lt(parkedReports.id, page.before),
      ),
    )
    .orderBy(desc(parkedReports.id))
    .limit(page.limit);
}

/** How many reports are in the state, of all tenants; reads that many index entries. */
export async function countParked(db: Queryable, state: 'parked' | 'dead'): Promise<number> {
  return await db.$count(parkedReports, eq(parkedReports.state, state));
}
