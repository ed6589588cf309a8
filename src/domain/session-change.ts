import { isCompleted } from './parking.ts';
import type { Report, ReportedSession, ReportState, SessionChange } from './report.ts';
import { applyReport, isTerminal, sameState } from './session.ts';

/* The columns of a session that a report changes. */

/** The session as it stands, as a change. */
export function changeOf(session: ReportedSession): SessionChange {
  const { currentWorkId, lastReport, ranSinceResult, lastDigest, upstreamMessageId } = session;
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
    lastDigest,
    upstreamMessageId,
  };
}

/** A new result of the current turn has the child's running behind it. */
export function ranSinceNow(report: Report, state: ReportState, session: ReportedSession): boolean {
  const settles = report.origin.kind === 'forwarder' && state.named === null;
  return settles ? false : session.ranSinceResult;
}

/** The session's columns after the report; null where nothing changes. */
export function changed(
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
  const shown = showsNow ? applyReport(session, report, afterCompletion) : session;
  const next: SessionChange = {
    status: shown.status,
    backgroundTaskCount: shown.backgroundTaskCount,
    blockedOn: shown.blockedOn,
    errorCode: shown.errorCode,
    errorMessage: shown.errorMessage,
    responseId: shown.responseId,
    currentWorkId: session.currentWorkId,
    lastReport: forwarded ? report.fingerprint : session.lastReport,
    ranSinceResult: session.ranSinceResult,
    lastDigest: session.lastDigest,
    upstreamMessageId: session.upstreamMessageId,
  };
  Object.assign(next, set);
  const same =
    sameState(session, next) &&
    next.currentWorkId === session.currentWorkId &&
    next.ranSinceResult === session.ranSinceResult &&
    next.lastDigest === session.lastDigest &&
    next.upstreamMessageId === session.upstreamMessageId;
  return same && next.lastReport === session.lastReport ? null : next;
}
