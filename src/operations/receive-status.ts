import { hash } from 'node:crypto';
import type { UnstoredReason } from '../domain/parking.ts';
import type { Report } from '../domain/report.ts';
import { outcomeOf, type ReportOutcome } from '../domain/report-outcome.ts';
import { isTerminal, normaliseStatus } from '../domain/session.ts';
import type { Resources } from '../resources.ts';
import { ingestReport } from './ingest-report.ts';
import { Overloaded } from './ingest-queue.ts';
import { isPassing } from './unavailable.ts';

/** A forwarder's report, as it was sent. */
export type StatusEvent = Omit<
  Report,
  'fingerprint' | 'origin' | 'upstreamText' | 'upstreamSession'
>;

/**
 * Takes in a forwarder's report and says what became of it; what is answered as stored has been
 * committed. A terminal report that could not be stored is `not_confirmed`; another one that could
 * not rejects with Overloaded or StorageUnavailable.
 */
export async function receiveStatus(
  resources: Resources,
  event: StatusEvent,
): Promise<ReportOutcome> {
  const status = normaliseStatus(event.status, event.backgroundTaskCount);
  // New members before the spread: after it, each report would cost ten times as much to make.
  const report: Report = {
    fingerprint: fingerprint(event),
    origin: { kind: 'forwarder' },
    upstreamText: null,
    upstreamSession: null,
    ...event,
    status,
  };
  try {
    return outcomeOf(await ingestReport(resources, report));
  } catch (error) {
    if (!isTerminal(status) || !isPassing(error)) throw error;
    return unstored(error instanceof Overloaded ? 'overloaded' : 'storage_unavailable');
  }
}

/** Equal for reports that say the same; which trace they belong to says nothing of the session. */
function fingerprint(event: StatusEvent): string {
  const said = [
    event.status,
    event.output,
    event.outcome,
    event.responseId,
    event.workId,
    event.backgroundTaskCount,
    event.blockedOn,
    event.reauthRequired,
    event.result,
  ];
  return hash('sha256', JSON.stringify(said), 'base64url');
}

function unstored(reason: UnstoredReason): ReportOutcome {
  return {
    outcome: 'not_confirmed',
    workId: null,
    itemId: null,
    reason,
    retryAfterSeconds: 1,
  };
}
