import type { Decision, Report } from '../domain/report.ts';
import { isTerminal } from '../domain/session.ts';
import type { Resources } from '../resources.ts';
import { selectParkedOfChild, type ParkedRow } from '../store/parked-reports.ts';
import { StorageUnavailable } from '../store/unavailable.ts';
import { lookUpSession, lookUpText } from './look-up-session.ts';

/** Rounds of looking something up and coming back; each is needed at most once, or after a race. */
const ROUNDS_MAX = 8;

/**
 * Takes in one status report: what it answers has been committed. Where something must first be
 * asked upstream or delivered, it is, without a lock, and the report comes back to the queue.
 * Rejects with Overloaded or StorageUnavailable where nothing was stored.
 */
export async function ingestReport(resources: Resources, first: Report): Promise<Decision> {
  let report = first;
  const key = { tenantId: report.tenantId, sessionId: report.sessionId };
  for (let round = 0; round < ROUNDS_MAX; round += 1) {
    const decision = await resources.ingest.submit(report, isTerminal(report.status));
    if (decision.kind === 'look_up_session') {
      const answer = await lookUpSession(resources, key);
      report = { ...report, upstreamSession: answer === 'stored' ? null : answer };
    } else if (decision.kind === 'look_up_text') {
      report = {
        ...report,
        upstreamText: await lookUpText(resources, { ...key, responseId: decision.responseId }),
      };
    } else if (decision.kind === 'deliver_parked_first') {
      const settled = await deliverParkedOfChild(resources, { ...key, childId: key.sessionId });
      if (!settled) report = { ...report, parkedStays: true };
    } else if (decision.kind === 'park' && report.parkedStays && bringsText(decision)) {
      const last = await deliverParked(resources, { ...key, childId: key.sessionId });
      return last?.kind === 'deliver' ? last : decision;
    } else {
      return decision;
    }
  }
  // Overtaken again and again: the forwarder's next try will find it settled.
  throw new StorageUnavailable('contended');
}

/** It took the place of the one that stayed because its text was not to be had. */
function bringsText({ park }: Extract<Decision, { kind: 'park' }>): boolean {
  return park.replaces !== null && park.takesContent;
}

/**
 * Delivers what is parked for the child, oldest turn first; false where some has to stay parked.
 * Safe to repeat and to run anywhere at once: a parked report is settled under the child's lock.
 */
export async function deliverParkedOfChild(
  resources: Resources,
  of: { tenantId: string; childId: string },
): Promise<boolean> {
  return (await deliverParked(resources, of))?.kind !== 'park';
}

/** The same; returns what became of the last, or of the first that stays. */
async function deliverParked(
  resources: Resources,
  of: { tenantId: string; childId: string },
): Promise<Decision | null> {
  const rows = await resources.database.run((db) => selectParkedOfChild(db, of));
  let last: Decision | null = null;
  for (const row of rows) {
    last = await ingestReport(resources, reportOf(row));
    if (last.kind === 'park') break;
  }
  return last;
}

function reportOf(row: ParkedRow): Report {
  return {
    tenantId: row.tenantId,
    sessionId: row.childSessionId,
    status: row.status === 'failed' ? 'failed' : 'idle',
    output: row.output,
    outcome: row.outcome as Report['outcome'],
    responseId: row.responseId,
    workId: row.workId,
    backgroundTaskCount: null,
    blockedOn: null,
    reauthRequired: false,
    result: row.result,
    traceparent: row.traceparent,
    fingerprint: `parked ${row.id}`,
    origin: { kind: 'parked', id: row.id, afterRunning: row.afterRunning, tries: row.tries },
    upstreamText: null,
    upstreamSession: null,
  };
}
