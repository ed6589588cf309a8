import type { Resources } from '../resources.ts';
import { selectChildrenToProbe, selectParkedToSweep } from '../store/parked-reports.ts';
import { deliverParkedOfChild } from './ingest-report.ts';

const PROBE_LIMIT = 50;
const SWEEP_LIMIT = 500;

/** Tries what waits for upstream once more; stops at the first that still has to wait. */
export async function probeUpstream(resources: Resources): Promise<void> {
  if (resources.upstream === null) return;
  const children = await resources.database.run((db) =>
    selectChildrenToProbe(db, { limit: PROBE_LIMIT }),
  );
  for (const child of children) {
    const settled = await deliverParkedOfChild(resources, child);
    if (!settled) return;
  }
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
