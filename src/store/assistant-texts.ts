import { sql } from 'drizzle-orm';
import type { Queryable } from './database.ts';
import { assistantTexts } from './schema.ts';

/**
 * Keeps the session's newest assistant text in the place of the one before; but text of a turn that
 * was delivered does not take away one that waits for its report.
 */
export async function putAssistantText(
  tx: Queryable,
  row: {
    tenantId: string;
    sessionId: string;
    text: string;
    responseId: string | null;
    receivedAt: number;
  },
): Promise<void> {
  await tx
    .insert(assistantTexts)
    .values({ ...row, fresh: true })
    .onConflictDoUpdate({
      target: [assistantTexts.tenantId, assistantTexts.sessionId],
      setWhere: sql`not ${assistantTexts.fresh} or not exists (
        select 1 from turn_responses tr
        where tr.tenant_id = ${row.tenantId} and tr.child_session_id = ${row.sessionId}
          and tr.response_key = sha256(convert_to(${row.responseId}::text, 'UTF8'))
          and tr.delivered)`,
      set: {
        text: row.text,
        responseId: row.responseId,
        fresh: true,
        receivedAt: row.receivedAt,
      },
    });
}

/** Those of the agent's ids under which a turn of the session was delivered. */
export async function selectDeliveredResponses(
  db: Queryable,
  of: { tenantId: string; sessionId: string; ids: string[] },
): Promise<Set<string>> {
  const rows = await db.execute<{ id: string }>(sql`
    select r.id from unnest(${sql.param(of.ids)}::text[]) as r(id)
    where exists (
      select 1 from turn_responses tr
      where tr.tenant_id = ${of.tenantId} and tr.child_session_id = ${of.sessionId}
        and tr.response_key = sha256(convert_to(r.id, 'UTF8')) and tr.delivered)`);
  return new Set(rows.map(({ id }) => id));
}

export interface TextlessTurn {
  workId: string;
  responseId: string | null;
}

/**
 * The turn of the session that was delivered without text and may have it now: the one that the
 * response_id names, else the current one if nothing has run since; null: there is none. True to the
 * moment only under the session's lock.
 */
export async function selectTurnThatAwaitsText(
  tx: Queryable,
  of: { tenantId: string; sessionId: string; responseId: string | null },
): Promise<TextlessTurn | null> {
  const rows = await tx.execute<TextlessTurn & Record<string, unknown>>(sql`
    select w.work_id as "workId", w.result_response_id as "responseId"
    from (
      select tr.work_id, 1 as place from turn_responses tr
      where tr.tenant_id = ${of.tenantId} and tr.child_session_id = ${of.sessionId}
        and tr.response_key = sha256(convert_to(${of.responseId}::text, 'UTF8')) and tr.delivered
      union all
      select s.current_work_id, 2 from sessions s
      where s.tenant_id = ${of.tenantId} and s.id = ${of.sessionId} and not s.ran_since_result
    ) t
    join work w on w.tenant_id = ${of.tenantId} and w.work_id = t.work_id and w.awaits_text
    order by t.place limit 1`);
  return rows[0] ?? null;
}

/** Locks the session against its reports; says whether it is there and has not been deleted. */
export async function lockSessionForText(
  tx: Queryable,
  of: { tenantId: string; sessionId: string },
): Promise<'live' | 'deleted' | 'unknown'> {
  const rows = await tx.execute<{ deleted: boolean }>(sql`
    select deleted_at is not null as deleted from sessions
    where tenant_id = ${of.tenantId} and id = ${of.sessionId} for no key update`);
  const row = rows[0];
  if (row === undefined) return 'unknown';
  return row.deleted ? 'deleted' : 'live';
}
