import type { Decision, Report } from '../domain/report.ts';
import type { Resources } from '../resources.ts';
import {
  selectParkedChildrenOfParent,
  selectParkedOfChild,
  type ParkedRow,
} from '../store/parked-reports.ts';
import { ingestReport } from './ingest-report.ts';

/** So many children's parked reports are delivered at a time, which fills a batch of the ingest. */
const CHILDREN_AT_A_TIME = 128;

/**
 * Delivers what is parked for the child, oldest turn first, as far as it can be by now. Safe to
 * repeat and to run anywhere at once: a parked report is settled under the child's lock.
 */
export async function deliverParkedOfChild(
  resources: Resources,
  of: { tenantId: string; childId: string },
): Promise<void> {
  const rows = await resources.database.run((db) => selectParkedOfChild(db, of));
  for (const row of rows) {
    const decision = await ingestReport(resources, reportOf(row));
    if (!isSettled(decision)) return;
  }
}

/** Delivers what is parked for the parent's inbox, in bounded chunks of children. */
export async function deliverParkedForParent(
  resources: Resources,
  of: { tenantId: string; parentId: string },
): Promise<void> {
  let afterChildId = '';
  for (;;) {
    const page = { ...of, afterChildId, limit: CHILDREN_AT_A_TIME };
    const children = await resources.database.run((db) =>
      selectParkedChildrenOfParent(db, page),
    );
    await Promise.all(
      children.map((childId) =>
        deliverParkedOfChild(resources, { tenantId: of.tenantId, childId }),
      ),
    );
    const last = children.at(-1);
    if (last === undefined || children.length < CHILDREN_AT_A_TIME) return;
    afterChildId = last;
  }
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

function isSettled(decision: Decision): boolean {
  return decision.kind !== 'park';
}
