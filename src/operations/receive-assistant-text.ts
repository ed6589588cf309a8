import type { Report } from '../domain/report.ts';
import { isBlank } from '../domain/text.ts';
import type { Resources } from '../resources.ts';
import {
  lockSessionForText,
  putAssistantText,
  selectTurnThatAwaitsText,
  type TextlessTurn,
} from '../store/assistant-texts.ts';
import { ingestReport } from './ingest-report.ts';

export interface AssistantText {
  tenantId: string;
  sessionId: string;
  text: string;
  responseId: string | null;
}

/**
 * Keeps the text as the session's newest; if the turn that it belongs to was delivered without any,
 * it follows as an item of its own. Under the session's lock, so that a report that arrives at the
 * same time either sees the text or is seen to have been delivered without it.
 */
export async function receiveAssistantText(
  resources: Resources,
  received: AssistantText,
): Promise<void> {
  const receivedAt = resources.clock.now();
  const turn = await resources.database.transaction(async (tx) => {
    const session = await lockSessionForText(tx, received);
    if (session === 'deleted') return null;
    await putAssistantText(tx, { ...received, receivedAt });
    return await selectTurnThatAwaitsText(tx, received);
  });
  if (turn === null || isBlank(received.text) || namesOther(turn, received)) return;
  await ingestReport(resources, lateText(received, turn));
}

function namesOther(turn: TextlessTurn, text: AssistantText): boolean {
  return (
    turn.responseId !== null && text.responseId !== null && turn.responseId !== text.responseId
  );
}

function lateText(received: AssistantText, turn: TextlessTurn): Report {
  return {
    tenantId: received.tenantId,
    sessionId: received.sessionId,
    status: 'idle',
    output: received.text,
    outcome: 'completed',
    responseId: turn.responseId,
    workId: turn.workId,
    backgroundTaskCount: null,
    blockedOn: null,
    reauthRequired: false,
    result: null,
    traceparent: null,
    fingerprint: `late text ${turn.workId}`,
    origin: { kind: 'late_text' },
    upstreamText: null,
    upstreamSession: null,
  };
}
