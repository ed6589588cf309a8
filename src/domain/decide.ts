import { deliver, rebuilt } from './delivery.ts';
import { endedStatus } from './ended-status.ts';
import { bury, park } from './park-report.ts';
import { isNamedByWorkId, responseIdOf, turnOf, workOf } from './reported-turn.ts';
import type {
  DecideContext,
  Decision,
  Report,
  ReportedSession,
  ReportOrigin,
  ReportState,
  WorkState,
  WorkWrite,
} from './report.ts';
import {
  digestOf,
  FAILED_WITHOUT_TEXT,
  outputAtHand,
  resolveOutput,
  resultOf,
  textOnceMore,
} from './result-output.ts';
import { changed, changeOf } from './session-change.ts';
import { isTerminal } from './session.ts';
import { contentOf, wordsOf } from './task-end.ts';
import { isBlank } from './text.ts';
import { judgeResult, mayAddSomething } from './turn.ts';
import { isLive, type LiveStatus } from './work.ts';

/*
 * What becomes of one report. Everything that bears on it has been loaded under the child's lock;
 * the decision is a value, and the store writes what it says.
 */

/** What becomes of the report, given all that bears on it. */
export function decide(report: Report, state: ReportState, context: DecideContext): Decision {
  const { session } = state;
  if (state.named !== null && state.named.childSessionId !== report.sessionId) {
    return { kind: 'refuse_work_id' };
  }
  if (isSettledElsewhere(report, state)) return { kind: 'settled_elsewhere' };
  if (report.origin.kind === 'interrupt' || report.origin.kind === 'end') {
    if (!session?.described || session.deleted) return { kind: 'not_known' };
  }
  if (session?.deleted) return decideDeleted(report, state, session);
  if (!isTerminal(report.status)) return decideSign(report, state);
  if (session === null || !session.described) return decideUnknown(report, state, context);
  if (report.origin.kind === 'interrupt') {
    return decideInterrupt(report, report.origin, state, session, context);
  }
  const isOfNobody = isTopLevel(report.sessionId, session, state.work);
  // What is parked for a session stays until it is given a parent, or is a dead letter.
  if (isOfNobody && report.origin.kind !== 'parked') {
    return { kind: 'not_a_subagent', session: changed(report, state, session, {}) };
  }
  if (isOfNobody || (session.parentSessionId === null && state.work === null)) {
    return park(report, state, context, 'missing_work_entry', outputAtHand(report, state));
  }
  return decideResult(report, state, session, context);
}

function isSettledElsewhere(report: Report, state: ReportState): boolean {
  const { origin, workId } = report;
  const { parked } = state;
  if (origin.kind === 'end') return workId !== null && workOf(state)?.workId !== workId;
  if (origin.kind !== 'parked') return false;
  return parked?.state !== 'parked' || parked.tries !== origin.tries;
}

function decideDeleted(report: Report, state: ReportState, session: ReportedSession): Decision {
  if (!isTerminal(report.status)) {
    return { kind: 'status', session: null, work: null, announces: null };
  }
  return bury(report, state, session, report.output);
}

function decideSign(report: Report, state: ReportState): Decision {
  const { session, work } = state;
  if (session === null || !session.described) {
    return { kind: 'status', session: null, work: null, announces: null };
  }
  const promoted = work?.status === 'launching' ? withStatus(work, 'running') : null;
  const ran = report.status === 'running' || session.ranSinceResult;
  const change = changed(report, state, session, {
    ranSinceResult: ran,
    responseId: runningId(report, state, session),
  });
  const announces =
    report.responseId !== null && work !== null && state.response === null
      ? report.responseId
      : null;
  return { kind: 'status', session: change, work: promoted, announces };
}

/** The agent's id of the turn that runs now; that of an earlier turn does not go on in this one. */
function runningId(report: Report, state: ReportState, session: ReportedSession): string | null {
  const { response, work } = state;
  const isOfEarlier = response !== null && response.workId !== work?.workId;
  if (report.responseId === null) return isOfEarlier ? null : session.responseId;
  // A late repeat of what was delivered before: nothing runs under that id.
  return isOfEarlier && response.delivered ? session.responseId : report.responseId;
}

function withStatus(work: WorkState, status: LiveStatus): WorkWrite {
  return {
    ...work,
    status,
    endedAt: null,
    result: null,
    wholeOutput: null,
    interrupt: null,
    mayStillRun: false,
  };
}

/** Asks the current turn to stop; one without an entry gets its entry by it. */
function decideInterrupt(
  report: Report,
  { by, graceMs }: Extract<ReportOrigin, { kind: 'interrupt' }>,
  state: ReportState,
  session: ReportedSession,
  context: DecideContext,
): Decision {
  const { work } = state;
  if (report.workId !== null && work?.workId !== report.workId) {
    return { kind: 'settled_elsewhere' };
  }
  if (
    work === null &&
    (session.parentSessionId === null || isTopLevel(report.sessionId, session, null))
  ) {
    return { kind: 'not_a_subagent', session: null };
  }
  if (work !== null && !isLive(work.status)) return already(report, state, session, work);
  if (work?.status === 'cancelling')
    return { kind: 'status', session: null, work: null, announces: null };
  const entry = work ?? rebuilt(report, session, context);
  const interrupt = { reason: by, at: context.now, graceMs };
  return {
    kind: 'interrupt',
    work: {
      ...entry,
      status: 'cancelling',
      endedAt: null,
      result: null,
      wholeOutput: null,
      interrupt,
      mayStillRun: false,
    },
    session: work === null ? { ...changeOf(session), currentWorkId: entry.workId } : null,
  };
}

function decideUnknown(report: Report, state: ReportState, context: DecideContext): Decision {
  const output = outputAtHand(report, state);
  if (report.upstreamSession === 'absent') {
    return park(report, state, context, 'not_found', output);
  }
  if (report.upstreamSession === 'unavailable') {
    return park(report, state, context, 'snapshot_unavailable', output);
  }
  if (context.upstream) return { kind: 'look_up_session' };
  return park(report, state, context, 'unknown_session', output);
}

function isTopLevel(id: string, session: ReportedSession, work: WorkState | null): boolean {
  if (session.parentSessionId === id) return true;
  return session.parentSessionId === null && session.subAgentName === null && work === null;
}

function decideResult(
  report: Report,
  state: ReportState,
  session: ReportedSession,
  context: DecideContext,
): Decision {
  const turn = turnOf(report, state, session);
  if (turn.work !== null && (!mayAddSomething(turn) || isLeftToParked(report, state))) {
    return already(report, state, session, turn.work);
  }
  // Not even `unknown`, which only the child's own word follows.
  if (report.origin.kind === 'end' && turn.work !== null && !isLive(turn.work.status)) {
    return already(report, state, session, turn.work);
  }
  if (turn.work !== null && isDeliveredText(report, state, turn.work, context)) {
    return already(report, state, session, turn.work);
  }
  const responseId = responseIdOf(report, state);
  const resolved = resolveOutput(report, state, turn, context);
  if (resolved.kind === 'look_up') {
    return { kind: 'look_up_text', responseId };
  }
  const { output } = resolved;
  const status = endedStatus(report, turn.work);
  const shown = output ?? (status === 'failed' ? FAILED_WITHOUT_TEXT : '');
  const words = isBlank(shown) ? (wordsOf(resultOf(report, turn.work)) ?? shown) : shown;
  const digest = digestOf(report, turn.work, { status, output: shown }, context);
  const verdict = judgeResult(turn, {
    status,
    output: words,
    responseId,
    digest: resolved.kind === 'unavailable' ? null : digest,
    named: responseId !== null || isNamedByWorkId(report, turn),
  });
  if (verdict.kind === 'late' && turn.work) {
    const { workId, resultDigest } = turn.work;
    const isNews = !isBlank(words) && resultDigest !== context.digest(turn.work.status, words);
    const late = isNews ? { workId, status, output: words, responseId } : null;
    return { ...already(report, state, session, turn.work), late };
  }
  if ((verdict.kind === 'repeat' || verdict.kind === 'late') && turn.work) {
    return already(report, state, session, turn.work);
  }

  const kept = resolved.kind === 'unavailable' ? report.output : output;
  const messageId = resolved.kind === 'upstream' ? resolved.messageId : null;
  const inbox = state.inbox;
  const isFinal = report.origin.kind === 'end' && report.origin.final === true;
  if (inbox?.deleted) {
    return isFinal ? { kind: 'settled_elsewhere' } : bury(report, state, session, kept);
  }
  // What is waited for in a request never enters the inbox.
  const entersInbox = turn.work?.task?.mode !== 'inline' && !isFinal;
  if (!inbox || (entersInbox && !inbox.open)) {
    return park(report, state, context, 'missing_parent_inbox', kept, messageId);
  }
  if (entersInbox && inbox.room <= 0) {
    return park(report, state, context, 'inbox_full', kept, messageId);
  }
  if (resolved.kind === 'unavailable') {
    return park(report, state, context, 'output_unavailable', report.output);
  }
  if (state.parked?.state === 'parked' && report.origin.kind !== 'parked' && !isFinal) {
    return report.parkedStays
      ? park(report, state, context, 'output_unavailable', kept, messageId)
      : { kind: 'deliver_parked_first' };
  }
  return deliver(report, state, session, context, {
    turn,
    status,
    output: shown,
    digest,
    provisional: verdict.kind === 'provisional',
    inbox,
    fromText: resolved.kind === 'text',
    messageId,
  });
}

/** What the child said last in this turn is what it was delivered with. */
function isDeliveredText(
  report: Report,
  state: ReportState,
  work: WorkState,
  context: DecideContext,
): boolean {
  const text = textOnceMore(report, state);
  const responseId = responseIdOf(report, state);
  const namesAnother = responseId !== null && responseId !== work.resultResponseId;
  if (text === null || namesAnother || contentOf(resultOf(report, work)) !== '') return false;
  return work.resultDigest === context.digest(endedStatus(report, work), text);
}

/** Late text never takes the place of a report; one parked without text will find it. */
function isLeftToParked({ origin, workId }: Report, { parked }: ReportState): boolean {
  return origin.kind === 'late_text' && parked?.state === 'parked' && parked.workId === workId;
}

function already(
  report: Report,
  state: ReportState,
  session: ReportedSession,
  work: WorkState,
): Decision & { kind: 'already_delivered' } {
  const change = changed(report, state, session, {});
  return { kind: 'already_delivered', work, late: null, session: change };
}
