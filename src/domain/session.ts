import { isBlank } from './text.ts';

/*
 * A session's status, as its forwarder reports it: that of the newest report, except that `failed`
 * stays after an `idle` that trails it. What has failed is shown until `running` clears it.
 */

export type SessionStatus = 'idle' | 'running' | 'waiting' | 'failed';

/** What a status report says, already checked and normalised. */
export interface StatusReport {
  status: SessionStatus;
  output: string | null;
  responseId: string | null;
  /** null: not said, keep what is known. */
  backgroundTaskCount: number | null;
  blockedOn: string | null;
  reauthRequired: boolean;
}

/** The part of a session that status reports change. */
export interface SessionState {
  status: SessionStatus;
  backgroundTaskCount: number;
  blockedOn: string | null;
  errorCode: string | null;
  errorMessage: string | null;
  responseId: string | null;
}

/** `waiting` with background tasks is an ended turn: such a report is an `idle` one. */
export function normaliseStatus(
  status: SessionStatus,
  backgroundTaskCount: number | null,
): SessionStatus {
  return status === 'waiting' && (backgroundTaskCount ?? 0) > 0 ? 'idle' : status;
}

/** True for a report that ends a turn. */
export function isTerminal(status: SessionStatus): boolean {
  return status === 'idle' || status === 'failed';
}

/** True while a turn runs. */
export function isBusy(status: SessionStatus): boolean {
  return status === 'running' || status === 'waiting';
}

/**
 * The session after the report. `afterCompletion`: a completed result of this turn was delivered or
 * parked and nothing has run since; then a failure is a forwarder giving up, and is not shown.
 */
export function applyReport(
  state: SessionState,
  report: StatusReport,
  afterCompletion: boolean,
): SessionState {
  const backgroundTaskCount = report.backgroundTaskCount ?? state.backgroundTaskCount;
  const blockedOn = report.blockedOn ?? (report.status === 'waiting' ? state.blockedOn : null);
  switch (report.status) {
    case 'running':
      return {
        status: 'running',
        backgroundTaskCount,
        blockedOn,
        errorCode: null,
        errorMessage: null,
        responseId: report.responseId ?? state.responseId,
      };
    case 'waiting':
      return {
        ...state,
        status: 'waiting',
        backgroundTaskCount,
        blockedOn,
        responseId: report.responseId ?? state.responseId,
      };
    case 'idle':
      return {
        ...state,
        status: state.status === 'failed' ? 'failed' : 'idle',
        backgroundTaskCount,
        blockedOn,
        responseId: null,
      };
    case 'failed':
      return afterCompletion
        ? { ...state, backgroundTaskCount: 0 }
        : { ...state, ...failure(report), backgroundTaskCount: 0, blockedOn, responseId: null };
  }
}

function failure(report: StatusReport): Partial<SessionState> & { status: 'failed' } {
  if (report.output === null || isBlank(report.output)) return { status: 'failed' };
  const errorCode = report.reauthRequired ? 'reauth_required' : 'turn_error';
  return { status: 'failed', errorCode, errorMessage: report.output };
}

/** True if both show the same. */
export function sameState(a: SessionState, b: SessionState): boolean {
  return (
    a.status === b.status &&
    a.backgroundTaskCount === b.backgroundTaskCount &&
    a.blockedOn === b.blockedOn &&
    a.errorCode === b.errorCode &&
    a.errorMessage === b.errorMessage &&
    a.responseId === b.responseId
  );
}
