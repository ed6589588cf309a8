import { and, asc, eq, gt, lt, sql } from 'drizzle-orm';
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

export interface ParkedKey {
  tenantId: string;
  childId: string;
}

/**
 * Children whose parked reports may be deliverable by now, by id after the given one: what could
 * not be looked up, and what a crash left beside an open inbox.
 */
export function selectChildrenToRetry(
  db: Queryable,
  page: { after: string; limit: number },
): Promise<(ParkedKey & { id: string })[]> {
  return db
    .select({
      id: parkedReports.id,
      tenantId: parkedReports.tenantId,
      childId: parkedReports.childSessionId,
    })
    .from(parkedReports)
    .where(and(eq(parkedReports.state, 'parked'), gt(parkedReports.id, page.after)))
    .orderBy(asc(parkedReports.id))
    .limit(page.limit);
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
    .orderBy(sql`${parkedReports.id} desc`)
    .limit(page.limit);
}
