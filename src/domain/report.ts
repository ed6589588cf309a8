import type { TaskResult } from './delegation.ts';
import type { Interruption, TaskEnd } from './task-end.ts';
import type { ParkedState, ParkReason } from './parking.ts';
import type { SessionState, StatusReport } from './session.ts';
import type { EndedStatus, WorkStatus } from './work.ts';

/*
 * The words in which a report is decided: what comes in, what bears on it, and what is decided.
 */

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
  /** Fingerprint of the last result of its own that was delivered. */
  lastDigest: string | null;
  /** Of upstream, from which a result took its text last. */
  upstreamMessageId: string | null;
}

/** The inbox that a result would go to: that of the last session of the parent's chain. */
export interface ReportedInbox {
  sessionId: string;
  deleted: boolean;
  open: boolean;
  /** What a completion is to its session at this moment. */
  disposition: 'note' | 'turn';
  /** How many more items it takes; Infinity where that is known to be enough. */
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
  resultDigest: string | null;
  resultResponseId: string | null;
  provisional: boolean;
  awaitsText: boolean;
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
  text: { text: string; responseId: string | null; fresh: boolean } | null;
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
  lastDigest: string | null;
  upstreamMessageId: string | null;
}

/** A work entry as it is to be written: inserted if it is new. */
export interface WorkWrite extends WorkState {
  endedAt: number | null;
  /** Of a task that has ended. */
  result: TaskResult | null;
  /** Of a task: what its child said besides the words of its result; null: nothing. */
  wholeOutput: string | null;
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
  /** The call that it is an item of; null: of plain work. */
  delegationId: string | null;
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
  | { kind: 'look_up_text'; responseId: string | null }
  | { kind: 'deliver_parked_first' }
  /**
   * A parked report that has been delivered, or replaced, by another hand meanwhile; an end or an
   * interrupt of work that is not the current one any more; a final end whose inbox is deleted.
   */
  | { kind: 'settled_elsewhere' };
