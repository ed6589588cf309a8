import {
  isCompleted,
  sameTurnAsParked,
  supersedes,
  type ParkedState,
  type ParkReason,
} from './parking.ts';
import {
  applyReport,
  isTerminal,
  sameState,
  type SessionState,
  type StatusReport,
} from './session.ts';
import { isBlank } from './text.ts';
import { judge, mayAddSomething, type Turn } from './turn.ts';
import {
  labelFromSnapshot,
  type EndedStatus,
  type LiveStatus,
  type Outcome,
  type WorkStatus,
} from './work.ts';

/*
 * What becomes of one status report. Everything that bears on it has been loaded under the child's
 * lock; the decision is a value, and the store writes what it says.
 */

export const FAILED_WITHOUT_TEXT = 'Error: native sub-agent turn failed';

/** A status report on its way in. */
export interface Report extends StatusReport {
  tenantId: string;
  sessionId: string;
  outcome: Outcome | null;
  workId: string | null;
  result: Record<string, unknown> | null;
  traceparent: string | null;
  /** Fingerprint of the report as it was sent: an equal one that follows changes nothing. */
  fingerprint: string;
  origin: ReportOrigin;
  /** What upstream said when it was asked for this report's text; null: not asked. */
  upstreamText: UpstreamText | null;
  /** What upstream said of the session when it was asked; null: not asked, or since stored. */
  upstreamSession: 'absent' | 'unavailable' | null;
}

export type ReportOrigin =
  | { kind: 'forwarder' }
  /** The service itself delivers a report that it had parked, as it was after that many tries. */
  | { kind: 'parked'; id: string; afterRunning: boolean; tries: number }
  /** Assistant text that came after its turn had been delivered without any. */
  | { kind: 'late_text' };

export type UpstreamText =
  | { kind: 'found'; messageId: string | null; text: string }
  | { kind: 'none' }
  | { kind: 'unavailable' };

/** The child session as it stands. A session not described is a stub. */
export interface ReportedSession extends SessionState {
  described: boolean;
  deleted: boolean;
  parentSessionId: string | null;
  agentName: string | null;
  subAgentName: string | null;
  currentWorkId: string | null;
  lastReport: string | null;
  ranSinceResult: boolean;
}

/** The inbox that a result would go to: that of the last session of the parent's chain. */
export interface ReportedInbox {
  sessionId: string;
  deleted: boolean;
  open: boolean;
  /** How many more items it takes. */
  room: number;
}

export interface WorkState {
  workId: string;
  parentSessionId: string;
  childSessionId: string;
  agent: string;
  title: string;
  createdBy: string | null;
  recovered: boolean;
  status: WorkStatus;
  createdAt: number;
  revision: number;
  lastItemSeq: number | null;
  /** Fingerprint of the last result of the turn before this one. */
  formerDigest: string | null;
  resultDigest: string | null;
  resultResponseId: string | null;
  provisional: boolean;
  awaitsText: boolean;
  upstreamMessageId: string | null;
}

export interface ReportState {
  /** null: nothing is known of the session, not even its name. */
  session: ReportedSession | null;
  inbox: ReportedInbox | null;
  /** The current work entry. */
  work: WorkState | null;
  /** The entry that the report names by work_id or response_id, if it is not the current one. */
  named: WorkState | null;
  /** Whose turn the report's response_id is known to be. */
  response: { workId: string; delivered: boolean } | null;
  /** The newest assistant text that came since the last result; null: none that counts. */
  text: { text: string; responseId: string | null } | null;
  /** The child's newest parked (or, for a deleted parent, dead) report. */
  parked: ParkedState | null;
  /** A parked report for the same parent has been tried as often as is worth it. */
  parentParked: boolean;
}

export interface DecideContext {
  now: number;
  parkAfterAttempts: number;
  upstream: boolean;
  /** Items are numbered and work is named by the caller, so that the decision stays a value. */
  itemSeq: number;
  workId: string;
  digest: (status: string, output: string) => string;
}

/** The session's columns after the report; null: nothing to write. */
export interface SessionChange extends SessionState {
  currentWorkId: string | null;
  lastReport: string | null;
  ranSinceResult: boolean;
}

/** A work entry as it is to be written: inserted if it is new. */
export interface WorkWrite extends WorkState {
  endedAt: number | null;
}

export interface ItemWrite {
  sessionId: string;
  seq: number;
  source: string;
  type: 'sub_agent';
  workId: string;
  childSessionId: string;
  agent: string;
  title: string;
  status: EndedStatus;
  output: string;
  recovered: boolean;
  followsSeq: number | null;
  revision: number;
  responseId: string | null;
  createdBy: string | null;
  traceparent: string | null;
  deliveredAt: number;
}

export interface ParkWrite {
  /** The parked row that is replaced; null: a new row. */
  replaces: ParkedState | null;
  /** The report's own content is kept; false: only the try is counted. */
  takesContent: boolean;
  state: 'parked' | 'dead';
  turn: number;
  parentSessionId: string | null;
  reason: ParkReason;
  status: 'idle' | 'failed';
  outcome: Outcome | null;
  output: string | null;
  responseId: string | null;
  workId: string | null;
  afterRunning: boolean;
  tries: number;
}

export interface LateWrite {
  workId: string;
  status: string;
  output: string;
  responseId: string | null;
}

interface Writes {
  session: SessionChange | null;
}

export type Decision =
  /** Not a terminal report, or of a session that is not known: only its status is kept. */
  | ({ kind: 'status'; work: WorkWrite | null; announces: string | null } & Writes)
  /** The result goes into the inbox, as the turn's first or as one that follows. */
  | ({ kind: 'deliver'; work: WorkWrite; item: ItemWrite; usesText: boolean } & Writes)
  /** This turn was delivered before; `late` is what stays readable on the entry only. */
  | ({ kind: 'already_delivered'; work: WorkState; late: LateWrite | null } & Writes)
  | ({ kind: 'not_a_subagent' } & Writes)
  /** It cannot be confirmed now: stored, and delivered by the service itself. */
  | ({ kind: 'park'; park: ParkWrite; answer: 'not_confirmed' | 'parked' | 'not_found' } & Writes)
  /** The session or its parent was deleted: a dead letter. */
  | ({ kind: 'parent_gone'; park: ParkWrite } & Writes)
  /** The entry named by work_id is another child's. */
  | { kind: 'refuse_work_id' }
  /** First something must be asked or done without a lock; then the report comes back. */
  | { kind: 'look_up_session' }
  | { kind: 'look_up_text'; notMessageId: string | null }
  | { kind: 'deliver_parked_first' }
  /** A parked report that has been delivered, or replaced, by another hand meanwhile. */
  | { kind: 'settled_elsewhere' };

/** What becomes of the report, given all that bears on it. */
export function decide(report: Report, state: ReportState, context: DecideContext): Decision {
  const { session } = state;
  if (state.named !== null && state.named.childSessionId !== report.sessionId) {
    return { kind: 'refuse_work_id' };
  }
  if (isSettledElsewhere(report, state)) return { kind: 'settled_elsewhere' };
  if (session?.deleted) return decideDeleted(report, state, session);
  if (!isTerminal(report.status)) return decideSign(report, state);
  if (session === null || !session.described) return decideUnknown(report, state, context);
  if (isTopLevel(report.sessionId, session, state.work)) {
    return { kind: 'not_a_subagent', session: changed(report, state, session, {}) };
  }
  if (session.parentSessionId === null && state.work === null) {
    return park(report, state, context, 'missing_work_entry', report.output);
  }
  return decideResult(report, state, session, context);
}

function isSettledElsewhere({ origin }: Report, { parked }: ReportState): boolean {
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
  const change = changed(report, state, session, { ranSinceResult: ran });
  const announces =
    report.responseId !== null && work !== null && state.response === null
      ? report.responseId
      : null;
  return { kind: 'status', session: change, work: promoted, announces };
}

function withStatus(work: WorkState, status: LiveStatus): WorkWrite {
  return { ...work, status, endedAt: null };
}

function decideUnknown(report: Report, state: ReportState, context: DecideContext): Decision {
  if (report.upstreamSession === 'absent') {
    return park(report, state, context, 'not_found', report.output);
  }
  if (report.upstreamSession === 'unavailable') {
    return park(report, state, context, 'snapshot_unavailable', report.output);
  }
  if (context.upstream) return { kind: 'look_up_session' };
  return park(report, state, context, 'unknown_session', report.output);
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
  if (turn.work !== null && !mayAddSomething(turn)) {
    return already(report, state, session, turn.work);
  }
  const resolved = resolveOutput(report, state, turn, context);
  if (resolved.kind === 'look_up') {
    return { kind: 'look_up_text', notMessageId: turn.work?.upstreamMessageId ?? null };
  }
  const responseId = responseIdOf(report, session);
  const output = resolved.output;
  const status = endedStatus(report, turn.work);
  const shown = output ?? (status === 'failed' ? FAILED_WITHOUT_TEXT : '');
  const verdict = judge(turn, {
    status,
    output: shown,
    responseId,
    digest: context.digest(status, shown),
    named: report.workId !== null || responseId !== null || report.origin.kind !== 'forwarder',
  });
  if (verdict.kind === 'late' && turn.work) {
    const late = {
      workId: turn.work.workId,
      status,
      output: shown,
      responseId,
    };
    return { ...already(report, state, session, turn.work), late };
  }
  if (verdict.kind === 'repeat' && turn.work) return already(report, state, session, turn.work);

  const kept = resolved.kind === 'unavailable' ? report.output : output;
  const inbox = state.inbox;
  if (inbox?.deleted) return bury(report, state, session, kept);
  if (!inbox?.open) return park(report, state, context, 'missing_parent_inbox', kept);
  if (inbox.room <= 0) return park(report, state, context, 'inbox_full', kept);
  if (resolved.kind === 'unavailable') {
    return park(report, state, context, 'output_unavailable', report.output);
  }
  if (state.parked?.state === 'parked' && report.origin.kind !== 'parked') {
    return { kind: 'deliver_parked_first' };
  }
  return deliver(report, state, session, context, {
    turn,
    status,
    output: shown,
    provisional: verdict.kind === 'provisional',
    inbox,
    fromText: resolved.kind === 'text',
    messageId: resolved.kind === 'upstream' ? resolved.messageId : null,
  });
}

/** The agent's id of the turn: the report's, else the one that a `running` announced. */
function responseIdOf(report: Report, session: ReportedSession | null): string | null {
  if (report.responseId !== null || report.origin.kind !== 'forwarder') return report.responseId;
  return session?.responseId ?? null;
}

/** The turn that the report speaks of: the one it names, else the current one. */
function turnOf(report: Report, state: ReportState, session: ReportedSession): Turn {
  const earlier = state.named !== null && state.named.workId !== state.work?.workId;
  const work = earlier ? state.named : state.work;
  const ranSince = earlier
    ? false
    : report.origin.kind === 'parked'
      ? report.origin.afterRunning
      : session.ranSinceResult;
  const response = state.response?.workId === work?.workId ? state.response : null;
  return { work, ranSince, response };
}

type Resolved =
  /** The report's own text, or null where it has none and none is looked for. */
  | { kind: 'own'; output: string | null }
  | { kind: 'text'; output: string }
  | { kind: 'upstream'; output: string; messageId: string | null }
  | { kind: 'look_up'; output: null }
  | { kind: 'unavailable'; output: string };

/** The text of the result: an idle without one takes the newest assistant text of its turn. */
function resolveOutput(
  report: Report,
  state: ReportState,
  turn: Turn,
  context: DecideContext,
): Resolved {
  if (report.status === 'failed') {
    return { kind: 'own', output: report.output === '' ? null : report.output };
  }
  if (report.output !== null && !isBlank(report.output)) {
    return { kind: 'own', output: report.output };
  }
  const { text } = state;
  if (text && !isBlank(text.text) && !namesOther(text.responseId, report.responseId)) {
    return { kind: 'text', output: text.text };
  }
  const found = report.upstreamText;
  if (found === null) {
    return context.upstream ? { kind: 'look_up', output: null } : { kind: 'own', output: '' };
  }
  if (found.kind === 'unavailable') return { kind: 'unavailable', output: '' };
  const isOld =
    found.kind === 'found' &&
    found.messageId !== null &&
    found.messageId === turn.work?.upstreamMessageId;
  if (found.kind === 'none' || isOld) return { kind: 'own', output: '' };
  return { kind: 'upstream', output: found.text, messageId: found.messageId };
}

function namesOther(a: string | null, b: string | null): boolean {
  return a !== null && b !== null && a !== b;
}

/** The status of the result: what the report says of itself, else what its status means. */
function endedStatus(report: Report, work: WorkState | null): EndedStatus {
  if (work?.status === 'cancelling') {
    return report.outcome === 'completed' ? 'completed' : 'cancelled';
  }
  if (report.outcome !== null) return report.outcome;
  return report.status === 'idle' ? 'completed' : 'failed';
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

interface Delivery {
  turn: Turn;
  status: EndedStatus;
  output: string;
  provisional: boolean;
  inbox: ReportedInbox;
  fromText: boolean;
  messageId: string | null;
}

function deliver(
  report: Report,
  state: ReportState,
  session: ReportedSession,
  context: DecideContext,
  delivery: Delivery,
): Decision {
  const entry = delivery.turn.work ?? rebuilt(report, session, context, delivery.inbox);
  const revision = entry.revision + 1;
  const work: WorkWrite = {
    ...entry,
    status: delivery.status,
    endedAt: context.now,
    revision,
    lastItemSeq: context.itemSeq,
    resultDigest: context.digest(delivery.status, delivery.output),
    resultResponseId: responseIdOf(report, session),
    provisional: delivery.provisional,
    awaitsText: delivery.status === 'completed' && isBlank(delivery.output) && !entry.awaitsText,
    upstreamMessageId: delivery.messageId ?? entry.upstreamMessageId,
  };
  const item: ItemWrite = {
    sessionId: delivery.inbox.sessionId,
    seq: context.itemSeq,
    source: `work:${entry.workId}:${revision}`,
    type: 'sub_agent',
    workId: entry.workId,
    childSessionId: report.sessionId,
    agent: entry.agent,
    title: entry.title,
    status: delivery.status,
    output: delivery.output,
    recovered: entry.recovered,
    followsSeq: entry.lastItemSeq,
    revision,
    responseId: work.resultResponseId,
    createdBy: entry.createdBy,
    traceparent: report.traceparent,
    deliveredAt: context.now,
  };
  const isCurrent = state.work === null || entry.workId === state.work.workId;
  const change = changed(report, state, session, {
    currentWorkId: isCurrent ? entry.workId : session.currentWorkId,
    ranSinceResult:
      isCurrent && report.origin.kind === 'forwarder' ? false : session.ranSinceResult,
  });
  return { kind: 'deliver', work, item, usesText: state.text !== null, session: change };
}

/** A work entry made from the child's snapshot, where none is there. */
function rebuilt(
  report: Report,
  session: ReportedSession,
  context: DecideContext,
  inbox: ReportedInbox,
): WorkState {
  return {
    ...labelFromSnapshot(session),
    workId: context.workId,
    parentSessionId: inbox.sessionId,
    childSessionId: report.sessionId,
    createdBy: null,
    recovered: true,
    status: 'running',
    createdAt: context.now,
    revision: 0,
    lastItemSeq: null,
    formerDigest: null,
    resultDigest: null,
    resultResponseId: null,
    provisional: false,
    awaitsText: false,
    upstreamMessageId: null,
  };
}

function park(
  report: Report,
  state: ReportState,
  context: DecideContext,
  reason: ParkReason,
  output: string | null,
): Decision {
  const write = parkWrite(report, state, 'parked', reason, output);
  const enough = write.tries >= context.parkAfterAttempts || state.parentParked;
  const answer = reason === 'not_found' ? 'not_found' : enough ? 'parked' : 'not_confirmed';
  const session = state.session?.described
    ? changed(report, state, state.session, {
        ranSinceResult: report.origin.kind === 'forwarder' ? false : state.session.ranSinceResult,
        lastReport: null,
      })
    : null;
  return { kind: 'park', park: write, answer, session };
}

function bury(
  report: Report,
  state: ReportState,
  session: ReportedSession,
  output: string | null,
): Decision {
  const write = parkWrite(report, state, 'dead', 'parent_gone', output);
  const change = session.deleted
    ? null
    : changed(report, state, session, {
        ranSinceResult: report.origin.kind === 'forwarder' ? false : session.ranSinceResult,
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
  const ranSince = state.session?.ranSinceResult ?? false;
  const workId = state.named?.workId ?? state.work?.workId ?? null;
  const responseId = responseIdOf(report, state.session);
  const again =
    former !== null &&
    (report.origin.kind === 'parked' || sameTurnAsParked(former, responseId, workId, ranSince));
  return {
    replaces: again ? former : null,
    takesContent: !again || supersedes(report.status, report.outcome, former),
    state: to,
    turn: again ? former.turn : (former?.turn ?? 0) + 1,
    parentSessionId: state.inbox?.sessionId ?? state.session?.parentSessionId ?? null,
    reason,
    status: report.status === 'failed' ? 'failed' : 'idle',
    outcome: report.outcome,
    output,
    responseId,
    workId,
    afterRunning: report.origin.kind === 'parked' ? report.origin.afterRunning : ranSince,
    tries: (former?.tries ?? 0) + (report.origin.kind === 'forwarder' ? 1 : 0),
  };
}

/** The session's columns after the report; null where nothing changes. */
function changed(
  report: Report,
  state: ReportState,
  session: ReportedSession,
  set: Partial<Pick<SessionChange, 'currentWorkId' | 'ranSinceResult' | 'lastReport'>>,
): SessionChange | null {
  const forwarded = report.origin.kind === 'forwarder';
  const afterCompletion =
    !session.ranSinceResult &&
    (state.work?.status === 'completed' ||
      (state.parked !== null && isCompleted(state.parked.status, state.parked.outcome)));
  const next: SessionChange = {
    ...(forwarded ? applyReport(session, report, afterCompletion) : session),
    currentWorkId: session.currentWorkId,
    lastReport: forwarded ? report.fingerprint : session.lastReport,
    ranSinceResult: session.ranSinceResult,
    ...set,
  };
  const same =
    sameState(session, next) &&
    next.currentWorkId === session.currentWorkId &&
    next.ranSinceResult === session.ranSinceResult;
  return same && next.lastReport === session.lastReport ? null : next;
}
