import { outcomeKept } from './ended-status.ts';
import { sameTurnAsParked, supersedes, type ParkedState, type ParkReason } from './parking.ts';
import { responseIdOf, workOf } from './reported-turn.ts';
import type {
  DecideContext,
  Decision,
  ParkWrite,
  Report,
  ReportedSession,
  ReportState,
} from './report.ts';
import { resolveAtHand } from './result-output.ts';
import { changed, ranSinceNow } from './session-change.ts';
import { isBlank } from './text.ts';

/* What a result that cannot be delivered writes: a parked report, or a dead letter. */

/**
 * Keeps the report for later, one a turn, and counts the try. `messageId`: of the upstream message
 * that its text is taken from, which is none of the next turn.
 */
export function park(
  report: Report,
  state: ReportState,
  context: DecideContext,
  reason: ParkReason,
  output: string | null,
  messageId: string | null = null,
): Decision {
  const write = parkWrite(report, state, 'parked', reason, output);
  const enough = write.tries >= context.parkAfterAttempts || state.parentParked;
  const answer = reason === 'not_found' ? 'not_found' : enough ? 'parked' : 'not_confirmed';
  const session = state.session?.described
    ? changed(report, state, state.session, {
        ranSinceResult: ranSinceNow(report, state, state.session),
        lastReport: null,
        upstreamMessageId: messageId ?? state.session.upstreamMessageId,
      })
    : null;
  const usesText = resolveAtHand(report, state)?.kind === 'text';
  return { kind: 'park', park: write, answer, usesText, session };
}

/** Keeps the report as a dead letter: nobody is left to read it. */
export function bury(
  report: Report,
  state: ReportState,
  session: ReportedSession,
  output: string | null,
): Decision {
  const write = parkWrite(report, state, 'dead', 'parent_gone', output);
  const change = session.deleted
    ? null
    : changed(report, state, session, {
        ranSinceResult: ranSinceNow(report, state, session),
      });
  return { kind: 'parent_gone', park: write, session: change };
}

function parkWrite(
  report: Report,
  state: ReportState,
  to: 'parked' | 'dead',
  reason: ParkReason,
  output: string | null,
): ParkWrite {
  const former = state.parked;
  const ran = state.named === null && (state.session?.ranSinceResult ?? false);
  const work = workOf(state);
  const workId = work?.workId ?? null;
  const outcome = outcomeKept(report, work);
  const responseId = responseIdOf(report, state);
  // What is dead already stays so; the report is the next one.
  const isOver = to === 'parked' && former?.state === 'dead';
  const again = former !== null && !isOver && isAgain(report, former, { workId, ran });
  // A try for which no text was found does not take away the one found before.
  const isOnlyAgain =
    isBlank(output ?? '') &&
    report.result === null &&
    report.status === former?.status &&
    outcome === former.outcome;
  return {
    replaces: again ? former : null,
    takesContent:
      !again ||
      (report.origin.kind !== 'end' && supersedes(report.status, outcome, former) && !isOnlyAgain),
    state: to,
    turn: again ? former.turn : (former?.turn ?? 0) + 1,
    parentSessionId: state.inbox?.sessionId ?? state.session?.parentSessionId ?? null,
    reason,
    status: report.status === 'failed' ? 'failed' : 'idle',
    outcome,
    output,
    responseId,
    workId,
    afterRunning: report.origin.kind === 'parked' ? report.origin.afterRunning : ran,
    tries: (former?.tries ?? 0) + (report.origin.kind === 'forwarder' ? 1 : 0),
  };
}

/** The report is another try of what is parked; an end adds nothing to a result of its turn. */
function isAgain(
  { origin }: Report,
  parked: ParkedState,
  of: { workId: string | null; ran: boolean },
): boolean {
  switch (origin.kind) {
    case 'parked':
      return true;
    case 'end':
      return parked.state === 'parked' && parked.workId === of.workId;
    case 'forwarder':
    case 'late_text':
    case 'interrupt':
      return sameTurnAsParked(parked, of.workId, of.ran);
  }
}
