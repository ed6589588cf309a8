import type { Report, WorkState } from './report.ts';
import { resultOf } from './result-output.ts';
import { endSaid } from './task-end.ts';
import type { EndedStatus } from './work.ts';

/**
 * How a report ends its turn: as it says itself, else as its status means; while the turn is being
 * cancelled, only an explicit completion is one. Of a report that was parked that was settled when it
 * came: what has been asked of the child since is no word of its.
 */
export function endedStatus(report: Report, work: WorkState | null): EndedStatus {
  const { origin, outcome } = report;
  if (origin.kind === 'end') return origin.as;
  const said = origin.kind === 'parked' ? outcome : endSaid(outcome, resultOf(report, work));
  if (work?.status === 'cancelling' && origin.kind !== 'parked') {
    return said === 'completed' ? said : 'cancelled';
  }
  return said ?? (report.status === 'idle' ? 'completed' : 'failed');
}

/** What a report that is parked is to end its turn as; null: as its status means. */
export function outcomeKept(report: Report, work: WorkState | null): EndedStatus | null {
  const means = report.status === 'idle' ? 'completed' : 'failed';
  const status = endedStatus(report, work);
  return report.outcome === null && status === means ? null : status;
}
