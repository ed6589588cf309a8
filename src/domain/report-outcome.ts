import { itemId } from './item-id.ts';
import { retryAfterSeconds, type ParkReason, type UnstoredReason } from './parking.ts';
import { invalid, notFound } from './refusal.ts';
import type { Decision, WorkState } from './report.ts';

/** What the forwarder is told of its report. */
export interface ReportOutcome {
  outcome:
    | 'accepted'
    | 'delivered'
    | 'already_delivered'
    | 'not_a_subagent'
    | 'parent_gone'
    | 'not_found'
    | 'not_confirmed'
    | 'parked';
  workId: string | null;
  itemId: string | null;
  reason: ParkReason | UnstoredReason | null;
  retryAfterSeconds: number | null;
}

/** The outcome that a committed decision stands for; refuses a work_id that is another child's. */
export function outcomeOf(decision: Decision): ReportOutcome {
  switch (decision.kind) {
    case 'status':
      return told('accepted');
    case 'deliver':
      return toldOfWork('delivered', decision.work);
    case 'already_delivered':
      return toldOfWork('already_delivered', decision.work);
    case 'settled_elsewhere':
      return told('already_delivered');
    case 'interrupt':
      return told('accepted', decision.work.workId);
    case 'not_known':
      throw notFound('The session');
    case 'not_a_subagent':
      return told('not_a_subagent');
    case 'parent_gone':
      return told('parent_gone');
    case 'park':
      return {
        outcome: decision.answer,
        workId: decision.park.workId,
        itemId: null,
        reason: decision.park.reason,
        retryAfterSeconds: retryAfterSeconds(decision.park.tries),
      };
    case 'refuse_work_id':
      throw invalid('data.work_id', 'it is the work of another session');
    case 'look_up_session':
    case 'look_up_text':
    case 'deliver_parked_first':
      throw new Error(`${decision.kind} is no outcome`);
  }
}

function toldOfWork(
  outcome: ReportOutcome['outcome'],
  { workId, lastItemSeq }: WorkState,
): ReportOutcome {
  return told(outcome, workId, lastItemSeq === null ? null : itemId(lastItemSeq));
}

function told(
  outcome: ReportOutcome['outcome'],
  workId: string | null = null,
  item: string | null = null,
): ReportOutcome {
  return { outcome, workId, itemId: item, reason: null, retryAfterSeconds: null };
}
