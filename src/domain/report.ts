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
import {
  resultFromReport,
  secondsBetween,
  taskResult,
  type Interruption,
  type TaskEnd,
  type TaskResult,
} from './delegation.ts';
import { isBlank } from './text.ts';
import { judge, mayAddSomething, type Turn } from './turn.ts';
import {
  isLive,
  labelFromSnapshot,
  OUTCOMES,
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
  /** What the report says of its end; of those that are parked, also how the service ended it. */
  outcome: EndedStatus | null;
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
  /** What is parked for the child has just been tried and has to stay: this waits behind it. */
  parkedStays?: true;
}

export type ReportOrigin =
  | { kind: 'forwarder' }
  /** The service itself delivers a report that it had parked, as it was after that many tries. */
  | { kind: 'parked'; id: string; afterRunning: boolean; tries: number }
  /** Assistant text that came after its turn had been delivered without any. */
  | { kind: 'late_text' }
  /**
   * The service ends the turn itself: its time is over, or somebody has stopped it. `final`: its
   * child goes away, so it cannot wait for the inbox.
   */
  | { kind: 'end'; as: EndedStatus; task: TaskEnd; final?: true }
  /** Somebody asks for the turn to be stopped; a report within the grace is still its result. */
  | { kind: 'interrupt'; by: Interruption; graceMs: number };

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
  /** What a completion is to its session at this moment. */
  disposition: 'note' | 'turn';
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
  /** Set for a task of a delegation: its result joins its unit's. */
  task: TaskOf | null;
}

/** What makes a work entry a task. */
export interface TaskOf {
  delegationId: string;
  unitId: string;
  taskIndex: number;
  mode: 'background' | 'inline';
  model: string | null;
  /** As the child's heartbeats have it. */
  apiCalls: number | null;
}

export interface ReportState {
  /** null: nothing is known of the session, not even its name. */
  session: ReportedSession | null;
  inbox: ReportedInbox | null;
  /** The current work entry. */
  work: WorkState | null;
  /** The entry that the report names by work_id or response_id, if it is not the current one. */
  named: WorkState | null;
  /** Whose turn the report's response_id, or else the announced one, is known to be. */
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
  /** Of a task that has ended. */
  result: TaskResult | null;
  /** Set when the child is asked to stop: why, and when its grace began. */
  interrupt: { reason: string; at: number; graceMs: number } | null;
  /** It ended without its child's word: the child may have to be stopped still. */
  mayStillRun: boolean;
}

export interface ItemWrite {
  sessionId: string;
  seq: number;
  source: string;
  type: 'sub_agent' | 'async_delegation' | 'task_failed';
  workId: string | null;
  childSessionId: string | null;
  agent: string;
  title: string;
  status: EndedStatus;
  output: string;
  details: Record<string, unknown> | null;
  disposition: 'note' | 'turn';
  /** The parent may be woken for it. */
  wakes: boolean;
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
  outcome: EndedStatus | null;
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
  /**
   * The result goes into the inbox, as the turn's first or as one that follows; that of a task
   * (`item` is null) joins its unit's.
   */
  | ({ kind: 'deliver'; work: WorkWrite; item: ItemWrite | null; usesText: boolean } & Writes)
  /** The turn is to be stopped, within its grace. */
  | { kind: 'interrupt'; work: WorkWrite; session: SessionChange | null }
  /** An interrupt of a session that is not known. */
  | { kind: 'not_known' }
  /** This turn was delivered before; `late` is what stays readable on the entry only. */
  | ({ kind: 'already_delivered'; work: WorkState; late: LateWrite | null } & Writes)
  | ({ kind: 'not_a_subagent' } & Writes)
  /** It cannot be confirmed now: stored, and delivered by the service itself. */
  | ({
      kind: 'park';
      park: ParkWrite;
      answer: 'not_confirmed' | 'parked' | 'not_found';
      usesText: boolean;
    } & Writes)
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
  if (report.origin.kind === 'interrupt' || report.origin.kind === 'end') {
    if (!session?.described || session.deleted) return { kind: 'not_known' };
  }
  if (session?.deleted) return decideDeleted(report, state, session);
  if (!isTerminal(report.status)) return decideSign(report, state);
  if (session === null || !session.described) return decideUnknown(report, state, context);
  if (report.origin.kind === 'interrupt') {
    return decideInterrupt(report, report.origin, state, session, context);
  }
  if (isTopLevel(report.sessionId, session, state.work)) {
    return { kind: 'not_a_subagent', session: changed(report, state, session, {}) };
  }
  if (session.parentSessionId === null && state.work === null) {
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
  if (report.responseId !== null) return report.responseId;
  const isOfEarlier = state.response !== null && state.response.workId !== state.work?.workId;
  return isOfEarlier ? null : session.responseId;
}

function withStatus(work: WorkState, status: LiveStatus): WorkWrite {
  return { ...work, status, endedAt: null, result: null, interrupt: null, mayStillRun: false };
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
      interrupt,
      mayStillRun: false,
    },
    session: work === null ? { ...changeOf(session), currentWorkId: entry.workId } : null,
  };
}

/** The session as it stands, as a change. */
function changeOf(session: ReportedSession): SessionChange {
  const { currentWorkId, lastReport, ranSinceResult } = session;
  const { status, backgroundTaskCount, blockedOn, errorCode, errorMessage, responseId } = session;
  return {
    status,
    backgroundTaskCount,
    blockedOn,
    errorCode,
    errorMessage,
    responseId,
    currentWorkId,
    lastReport,
    ranSinceResult,
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
  const resolved = resolveOutput(report, state, turn, context);
  if (resolved.kind === 'look_up') {
    return { kind: 'look_up_text', notMessageId: turn.work?.upstreamMessageId ?? null };
  }
  const { output } = resolved;
  const responseId = responseIdOf(report, state);
  const status = endedStatus(report, turn.work);
  const shown = output ?? (status === 'failed' ? FAILED_WITHOUT_TEXT : '');
  const verdict = judge(turn, {
    status,
    output: shown,
    responseId,
    digest: resolved.kind === 'unavailable' ? null : context.digest(status, shown),
    named: responseId !== null || isNamedByWorkId(report, turn),
  });
  if (verdict.kind === 'late' && turn.work) {
    const { workId, resultDigest } = turn.work;
    const isNews = !isBlank(shown) && resultDigest !== context.digest(turn.work.status, shown);
    const late = isNews ? { workId, status, output: shown, responseId } : null;
    return { ...already(report, state, session, turn.work), late };
  }
  if ((verdict.kind === 'repeat' || verdict.kind === 'late') && turn.work) {
    return already(report, state, session, turn.work);
  }

  const kept = resolved.kind === 'unavailable' ? report.output : output;
  const inbox = state.inbox;
  const isFinal = report.origin.kind === 'end' && report.origin.final === true;
  if (inbox?.deleted) {
    return isFinal ? { kind: 'settled_elsewhere' } : bury(report, state, session, kept);
  }
  // What is waited for in a request never enters the inbox.
  const entersInbox = turn.work?.task?.mode !== 'inline' && !isFinal;
  if (!inbox || (entersInbox && !inbox.open)) {
    return park(report, state, context, 'missing_parent_inbox', kept);
  }
  if (entersInbox && inbox.room <= 0) return park(report, state, context, 'inbox_full', kept);
  if (resolved.kind === 'unavailable') {
    return park(report, state, context, 'output_unavailable', report.output);
  }
  if (state.parked?.state === 'parked' && report.origin.kind !== 'parked' && !isFinal) {
    return report.parkedStays
      ? park(report, state, context, 'output_unavailable', kept)
      : { kind: 'deliver_parked_first' };
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

/** Late text never takes the place of a report; one parked without text will find it. */
function isLeftToParked({ origin, workId }: Report, { parked }: ReportState): boolean {
  return origin.kind === 'late_text' && parked?.state === 'parked' && parked.workId === workId;
}

/** The agent's id of the turn: the report's, else the one that a `running` of it announced. */
function responseIdOf(report: Report, state: ReportState): string | null {
  if (report.responseId !== null || report.origin.kind !== 'forwarder') return report.responseId;
  const { response, named, session } = state;
  const isNewOfTurn =
    response === null
      ? named === null
      : response.workId === workOf(state)?.workId && !response.delivered;
  return isNewOfTurn ? (session?.responseId ?? null) : null;
}

/** A report that was parked has its entry's id whether it named it or not, so it names nothing. */
function isNamedByWorkId({ workId, origin }: Report, { work }: Turn): boolean {
  return workId !== null && workId === work?.workId && origin.kind !== 'parked';
}

/** The entry of the turn that the report speaks of: the one it names, else the current one. */
function workOf({ named, work }: ReportState): WorkState | null {
  return named ?? work;
}

function turnOf(report: Report, state: ReportState, session: ReportedSession): Turn {
  const work = workOf(state);
  const response = state.response?.workId === work?.workId ? state.response : null;
  return {
    work,
    ranSince: ranSince(report, state, session),
    repeatsParked: repeatsParked(report, state, session),
    response,
  };
}

/** True if the child ran after the last result of the report's turn. */
function ranSince(report: Report, state: ReportState, session: ReportedSession): boolean {
  if (state.named !== null) return isAnnouncedOnly(state, state.named);
  if (report.origin.kind === 'parked') return report.origin.afterRunning;
  return session.ranSinceResult;
}

/** The child went on by itself in an earlier turn, under an id of which nothing was delivered. */
function isAnnouncedOnly({ response }: ReportState, named: WorkState): boolean {
  return response?.workId === named.workId && !response.delivered;
}

/** True for a report of the turn of which one is parked already. */
function repeatsParked(report: Report, state: ReportState, session: ReportedSession): boolean {
  const { parked } = state;
  if (parked?.state !== 'parked' || report.origin.kind === 'parked') return false;
  const workId = workOf(state)?.workId ?? null;
  const responseId = responseIdOf(report, state);
  const isOfDelivered = report.responseId !== null && state.response?.delivered === true;
  if (isOfDelivered && parked.responseId !== responseId) return false;
  return sameTurnAsParked(parked, responseId, workId, session.ranSinceResult);
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
  const atHand = resolveAtHand(report, state);
  if (atHand !== null) return atHand;
  // What upstream has is the newest turn's.
  if (state.named !== null) return { kind: 'own', output: '' };
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

/** What the report says itself, or a text received here; null for an idle of which neither does. */
function resolveAtHand(
  report: Report,
  state: ReportState,
): Extract<Resolved, { kind: 'own' | 'text' }> | null {
  if (report.status === 'failed') {
    return { kind: 'own', output: report.output === '' ? null : report.output };
  }
  if (report.output !== null && !isBlank(report.output)) {
    return { kind: 'own', output: report.output };
  }
  const { text } = state;
  if (text === null || isBlank(text.text) || isTextOfLaterRun(report, state)) return null;
  if (namesOther(text.responseId, report.responseId)) return null;
  return { kind: 'text', output: text.text };
}

/** The newest text is the newest run's: not that of an earlier turn, or of what has waited since. */
function isTextOfLaterRun({ origin }: Report, { named, session }: ReportState): boolean {
  return named !== null || (origin.kind === 'parked' && session?.ranSinceResult === true);
}

function outputAtHand(report: Report, state: ReportState): string | null {
  return resolveAtHand(report, state)?.output ?? report.output;
}

function namesOther(a: string | null, b: string | null): boolean {
  return a !== null && b !== null && a !== b;
}

/** The status of the result: what the report says of itself, else what its status means. */
function endedStatus(report: Report, work: WorkState | null): EndedStatus {
  if (report.origin.kind === 'end') return report.origin.as;
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
  const entry = delivery.turn.work ?? rebuilt(report, session, context);
  const revision = entry.revision + 1;
  const work: WorkWrite = {
    ...entry,
    status: delivery.status,
    endedAt: context.now,
    revision,
    lastItemSeq: entry.task ? null : context.itemSeq,
    result: entry.task && taskResultOf(report, entry, entry.task, delivery, context.now),
    interrupt: null,
    mayStillRun: isSaidInPlace(report, delivery.status),
    resultDigest: context.digest(delivery.status, delivery.output),
    resultResponseId: responseIdOf(report, state),
    provisional: delivery.provisional,
    awaitsText: delivery.status === 'completed' && isBlank(delivery.output),
    upstreamMessageId: delivery.messageId ?? entry.upstreamMessageId,
  };
  const item: ItemWrite | null = entry.task
    ? null
    : {
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
        details: null,
        disposition: delivery.inbox.disposition,
        wakes: true,
        recovered: entry.recovered,
        followsSeq: entry.lastItemSeq,
        revision,
        responseId: work.resultResponseId,
        createdBy: entry.createdBy,
        traceparent: report.traceparent,
        deliveredAt: context.now,
      };
  const change = changed(report, state, session, {
    currentWorkId: state.work === null ? entry.workId : session.currentWorkId,
    ranSinceResult: ranSinceNow(report, state, session),
  });
  const usesText = state.named === null && leavesTextBehind(report, state, delivery);
  return { kind: 'deliver', work, item, usesText, session: change };
}

/** The text kept here came before this result: it is none of the next. */
function leavesTextBehind(report: Report, { text }: ReportState, { fromText }: Delivery): boolean {
  switch (report.origin.kind) {
    case 'forwarder':
      return text !== null;
    case 'parked':
      return fromText;
    case 'late_text':
      return true;
    case 'end':
    case 'interrupt':
      return false;
  }
}

/** The task's result: what its child says of it, or what is said in its place. */
function taskResultOf(
  report: Report,
  entry: WorkState,
  task: TaskOf,
  { status, output }: Delivery,
  now: number,
): TaskResult {
  const durationSeconds = secondsBetween(entry.createdAt, now);
  const { workId, childSessionId: sessionId } = entry;
  const of = { taskIndex: task.taskIndex, sessionId, workId, durationSeconds };
  return taskResult(of, taskEndOf(report, entry, task, status, output));
}

/** The service itself ended the turn; also when it could only park that at first. */
function isSaidInPlace({ origin }: Report, status: EndedStatus): boolean {
  return origin.kind === 'end' || ['stalled', 'timeout', 'unknown'].includes(status);
}

function taskEndOf(
  report: Report,
  entry: WorkState,
  task: TaskOf,
  status: EndedStatus,
  output: string,
): TaskEnd {
  if (report.origin.kind === 'end') return report.origin.task;
  if (isSaidInPlace(report, status)) return report.result as unknown as TaskEnd;
  return resultFromReport({
    ...task,
    reportStatus: report.status === 'failed' ? 'failed' : 'idle',
    outcome: outcomeSaid(report.outcome),
    output,
    result: report.result,
    workStatus: isLive(entry.status) ? entry.status : 'running',
  });
}

function outcomeSaid(outcome: EndedStatus | null): Outcome | null {
  return OUTCOMES.find((known) => known === outcome) ?? null;
}

/** A work entry made from the child's snapshot, where none is there. */
function rebuilt(report: Report, session: ReportedSession, context: DecideContext): WorkState {
  return {
    ...labelFromSnapshot(session),
    workId: context.workId,
    parentSessionId: session.parentSessionId ?? '',
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
    task: null,
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
        ranSinceResult: ranSinceNow(report, state, state.session),
        lastReport: null,
      })
    : null;
  const usesText = resolveAtHand(report, state)?.kind === 'text';
  return { kind: 'park', park: write, answer, usesText, session };
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
  const workId = workOf(state)?.workId ?? null;
  const responseId = responseIdOf(report, state);
  const again = former !== null && isAgain(report, former, { responseId, workId, ran });
  // A try for which no text was found does not take away the one found before.
  const isOnlyAgain =
    isBlank(output ?? '') &&
    report.status === 'idle' &&
    report.status === former?.status &&
    report.outcome === former.outcome;
  return {
    replaces: again ? former : null,
    takesContent:
      !again ||
      (report.origin.kind !== 'end' &&
        supersedes(report.status, report.outcome, former) &&
        !isOnlyAgain),
    state: to,
    turn: again ? former.turn : (former?.turn ?? 0) + 1,
    parentSessionId: state.inbox?.sessionId ?? state.session?.parentSessionId ?? null,
    reason,
    status: report.status === 'failed' ? 'failed' : 'idle',
    outcome: report.origin.kind === 'end' ? report.origin.as : report.outcome,
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
  of: { responseId: string | null; workId: string | null; ran: boolean },
): boolean {
  switch (origin.kind) {
    case 'parked':
      return true;
    case 'end':
      return parked.state === 'parked' && parked.workId === of.workId;
    case 'forwarder':
    case 'late_text':
    case 'interrupt':
      return sameTurnAsParked(parked, of.responseId, of.workId, of.ran);
  }
}

/** A new result of the current turn has the child's running behind it. */
function ranSinceNow(report: Report, state: ReportState, session: ReportedSession): boolean {
  const settles = report.origin.kind === 'forwarder' && state.named === null;
  return settles ? false : session.ranSinceResult;
}

/** The session's columns after the report; null where nothing changes. */
function changed(
  report: Report,
  state: ReportState,
  session: ReportedSession,
  set: Partial<SessionChange>,
): SessionChange | null {
  const forwarded = report.origin.kind === 'forwarder';
  // The end of an earlier turn says nothing of the one that runs now.
  const showsNow = forwarded && !(isTerminal(report.status) && state.named !== null);
  const afterCompletion =
    !session.ranSinceResult &&
    (state.work?.status === 'completed' ||
      (state.parked !== null && isCompleted(state.parked.status, state.parked.outcome)));
  const next: SessionChange = {
    ...(showsNow ? applyReport(session, report, afterCompletion) : session),
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
