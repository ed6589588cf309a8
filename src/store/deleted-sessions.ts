import { and, eq, sql } from 'drizzle-orm';
import type { Queryable } from './database.ts';
import { assistantTexts, parkedReports, work } from './schema.ts';
import type { SessionKey } from './sessions.ts';

/* What goes with a deleted session, and what is set apart where one begins anew under its id. */

/**
 * Deletes the work of these children, and with it what is known of their turns; not the tasks that
 * have ended, which are their units'.
 */
export async function deleteWorkOf(
  tx: Queryable,
  of: { tenantId: string; ids: string[] },
): Promise<void> {
  await tx
    .delete(work)
    .where(
      and(
        eq(work.tenantId, of.tenantId),
        sql`${work.childSessionId} = any(${sql.param(of.ids)}::text[])`,
        sql`(${work.delegationId} is null or ${work.endedAt} is null)`,
      ),
    );
}

/** Forgets which turns the agent's ids of these children belonged to. */
export async function deleteResponsesOf(
  tx: Queryable,
  of: { tenantId: string; ids: string[] },
): Promise<void> {
  await tx.execute(sql`
    delete from turn_responses
    where tenant_id = ${of.tenantId} and child_session_id = any(${sql.param(of.ids)}::text[])`);
}

/** Deletes the newest assistant texts of these sessions. */
export async function deleteAssistantTextsOf(
  tx: Queryable,
  of: { tenantId: string; ids: string[] },
): Promise<void> {
  await tx
    .delete(assistantTexts)
    .where(
      and(
        eq(assistantTexts.tenantId, of.tenantId),
        sql`${assistantTexts.sessionId} = any(${sql.param(of.ids)}::text[])`,
      ),
    );
}

/**
 * Deletes at most `limit` items from the inboxes of these sessions. To be repeated until it says that
 * it found none: one that was leased or acked meanwhile is only deleted the next time.
 */
export async function deleteItemsOf(
  tx: Queryable,
  of: { tenantId: string; ids: string[]; limit: number },
): Promise<number> {
  const rows = await tx.execute<{ found: number }>(sql`
    with found as materialized (
      select i.ctid from items i
      where i.tenant_id = ${of.tenantId} and i.session_id = any(${sql.param(of.ids)}::text[])
      order by i.session_id, i.seq limit ${of.limit} for update
    ), deleted as (
      delete from items where ctid = any(array(select ctid from found))
    )
    select count(*)::int as found from found`);
  return rows[0]?.found ?? 0;
}

/** Turns the parked reports of these children into dead letters. */
export async function buryParkedOf(
  tx: Queryable,
  of: { tenantId: string; ids: string[]; now: number },
): Promise<void> {
  await tx
    .update(parkedReports)
    .set({ state: 'dead', reason: 'parent_gone', deadAt: of.now })
    .where(
      and(
        eq(parkedReports.tenantId, of.tenantId),
        eq(parkedReports.state, 'parked'),
        sql`${parkedReports.childSessionId} = any(${sql.param(of.ids)}::text[])`,
      ),
    );
}

/**
 * Sets the dead letters of a session that begins anew apart from the reports to come: their turns
 * become negative, below those that were set apart before.
 */
export async function setDeadLettersApart(
  tx: Queryable,
  { tenantId, sessionId }: SessionKey,
): Promise<void> {
  await tx.execute(sql`
    update parked_reports k set turn = k.turn - r.shift
    from (
      select max(turn) - least(min(turn), 0) + 1 as shift from parked_reports
      where tenant_id = ${tenantId} and child_session_id = ${sessionId}
    ) r
    where k.tenant_id = ${tenantId} and k.child_session_id = ${sessionId}`);
}
