import { and, eq, sql } from 'drizzle-orm';
import type { Queryable } from './database.ts';
import { assistantTexts, sessions, work } from './schema.ts';

/** Keeps the session's newest assistant text in the place of the one before. */
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
      set: {
        text: row.text,
        responseId: row.responseId,
        fresh: true,
        receivedAt: row.receivedAt,
      },
    });
}

export interface TextlessTurn {
  workId: string;
  responseId: string | null;
}

/**
 * The session's current turn, if it was delivered without text and nothing has run since; null if
 * not. True to the moment only under the session's lock.
 */
export async function selectTurnThatAwaitsText(
  tx: Queryable,
  of: { tenantId: string; sessionId: string },
): Promise<TextlessTurn | null> {
  const rows = await tx
    .select({ workId: work.workId, responseId: work.resultResponseId })
    .from(sessions)
    .innerJoin(
      work,
      and(eq(work.tenantId, sessions.tenantId), eq(work.workId, sessions.currentWorkId)),
    )
    .where(
      and(
        eq(sessions.tenantId, of.tenantId),
        eq(sessions.id, of.sessionId),
        eq(sessions.ranSinceResult, false),
        eq(work.awaitsText, true),
      ),
    );
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
