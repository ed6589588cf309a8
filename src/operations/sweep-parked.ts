import type { Resources } from '../resources.ts';
import { selectParkedToSweep, selectReportsToProbe } from '../store/parked-reports.ts';
import { deliverParkedOfChild } from './ingest-report.ts';

const PROBE_LIMIT = 50;
const SWEEP_LIMIT = 500;

/**
 * Tries the next reports that wait for upstream once more, in the order of their ids, until it is
 * left alone. One of which it will never have an answer holds up none of the others. Answers the id
 * from which to go on ('' when all have been tried), and whether to do so at once: none has stayed.
 */
export async function probeUpstream(
  resources: Resources,
  after: string,
): Promise<{ after: string; more: boolean }> {
  const { upstream, database } = resources;
  if (upstream === null) return { after: '', more: false };
  const page = { after, limit: PROBE_LIMIT };
  const reports = await database.run((db) => selectReportsToProbe(db, page));
  let tried = after;
  let allSettled = true;
  for (const { tenantId, childId, id } of reports) {
    if (upstream.isLeftAlone()) return { after: tried, more: false };
    const settled = await deliverParkedOfChild(resources, { tenantId, childId });
    allSettled &&= settled;
    tried = id;
  }
  return reports.length < PROBE_LIMIT
    ? { after: '', more: false }
    : { after: tried, more: allSettled };
}

/**
 * Looks at the next parked reports, in the order of their ids, and delivers those that can be.
 * Answers the id from which to go on; '' when all have been looked at.
 */
export async function sweepParked(resources: Resources, after: string): Promise<string> {
  const { maxPendingItems } = resources.policy;
  const page = { after, limit: SWEEP_LIMIT, maxPendingItems };
  const reports = await resources.database.run((db) => selectParkedToSweep(db, page));
  for (const { tenantId, childId, isDue } of reports) {
    if (isDue) await deliverParkedOfChild(resources, { tenantId, childId });
  }
  return reports.length < SWEEP_LIMIT ? '' : (reports.at(-1)?.id ?? '');
}
