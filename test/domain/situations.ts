import type {
  DecideContext,
  Report,
  ReportedInbox,
  ReportedSession,
  ReportState,
  WorkState,
} from '../../src/domain/report.ts';
import type { ParkedState } from '../../src/domain/parking.ts';

/*
 * A child that a parent has dispatched, its forwarder's reports, and what is loaded with them. Each
 * says only how it differs from the plainest one.
 */

export const NOW = Date.UTC(2026, 10, 30);

/** Equal for equal results, and readable where a test fails. */
export function digest(status: string, output: string): string {
  return `${status}\n${output}`;
}

export function aReport(said: Partial<Report> = {}): Report {
  return {
    tenantId: 'default',
    sessionId: 'child',
    status: 'idle',
    output: null,
    responseId: null,
    backgroundTaskCount: null,
    blockedOn: null,
    reauthRequired: false,
    outcome: null,
    workId: null,
    result: null,
    traceparent: null,
    fingerprint: JSON.stringify(said),
    origin: { kind: 'forwarder' },
    upstreamText: null,
    upstreamSession: null,
    ...said,
  };
}

export function aSession(set: Partial<ReportedSession> = {}): ReportedSession {
  return {
    described: true,
    deleted: false,
    parentSessionId: 'parent',
    agentName: null,
    subAgentName: null,
    status: 'running',
    backgroundTaskCount: 0,
    blockedOn: null,
    errorCode: null,
    errorMessage: null,
    responseId: null,
    currentWorkId: null,
    lastReport: null,
    ranSinceResult: false,
    lastDigest: null,
    upstreamMessageId: null,
    ...set,
  };
}

export function anInbox(set: Partial<ReportedInbox> = {}): ReportedInbox {
  return { sessionId: 'parent', deleted: false, open: true, disposition: 'turn', room: 10, ...set };
}

/** Work that runs. */
export function aWork(set: Partial<WorkState> = {}): WorkState {
  return {
    workId: 'work-1',
    parentSessionId: 'parent',
    childSessionId: 'child',
    agent: 'coder',
    title: 'tests',
    createdBy: null,
    recovered: false,
    status: 'running',
    createdAt: NOW,
    revision: 0,
    lastItemSeq: null,
    resultDigest: null,
    resultResponseId: null,
    provisional: false,
    awaitsText: false,
    task: null,
    ...set,
  };
}

/** Work whose result lies in the inbox as item 1. */
export function deliveredWork(output: string, set: Partial<WorkState> = {}): WorkState {
  const status = set.status ?? 'completed';
  return aWork({
    status,
    revision: 1,
    lastItemSeq: 1,
    resultDigest: digest(status, output),
    ...set,
  });
}

export function aParked(set: Partial<ParkedState> = {}): ParkedState {
  return {
    id: 'parked-1',
    turn: 1,
    state: 'parked',
    status: 'idle',
    outcome: null,
    responseId: null,
    workId: 'work-1',
    tries: 1,
    ...set,
  };
}

/** A child whose work runs, and whose parent's inbox is open. */
export function aState(set: Partial<ReportState> = {}): ReportState {
  const work = set.work === undefined ? aWork() : set.work;
  return {
    session: aSession({ currentWorkId: work?.workId ?? null }),
    inbox: anInbox(),
    work,
    named: null,
    response: null,
    text: null,
    parked: null,
    parentParked: false,
    ...set,
  };
}

export function aContext(set: Partial<DecideContext> = {}): DecideContext {
  return {
    now: NOW,
    parkAfterAttempts: 12,
    upstream: false,
    itemSeq: 2,
    workId: 'work-rebuilt',
    digest,
    ...set,
  };
}
