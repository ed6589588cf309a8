import type { Report, ReportOrigin } from '../domain/report.ts';

/** A report that the service makes itself, of the named entry or, with null, of the current turn. */
export function ownReport(
  of: { tenantId: string; sessionId: string; workId: string | null },
  origin: ReportOrigin,
  output: string,
): Report {
  const { tenantId, sessionId, workId } = of;
  return {
    tenantId,
    sessionId,
    status: 'failed',
    output,
    outcome: null,
    responseId: null,
    workId,
    backgroundTaskCount: null,
    blockedOn: null,
    reauthRequired: false,
    // Where it can only be parked, this is what is kept of how the task ended.
    result: origin.kind === 'end' ? { ...origin.task } : null,
    traceparent: null,
    fingerprint: `own ${origin.kind} ${workId ?? ''}`,
    origin,
    upstreamText: null,
    upstreamSession: null,
  };
}
