import { itemId } from './item-id.ts';
import { retryAfterSeconds, type ParkReason, type UnstoredReason } from './parking.ts';
import { invalid, notFound } from './refusal.ts';
import type { Decision } from './report.ts';

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
  const nothing = { workId: null, itemId: null, reason: null, retryAfterSeconds: null };
  switch (decision.kind) {
    case 'status':
      return { ...nothing, outcome: 'accepted' };
    case 'deliver':
      return {
        ...nothing,
        outcome: 'delivered',
        workId: decision.work.workId,
        itemId: decision.item && itemId(decision.item.seq),
      };
    case 'already_delivered': {
      const { workId, lastItemSeq } = decision.work;
      const item = lastItemSeq === null ? null : itemId(lastItemSeq);
      return { ...nothing, outcome: 'already_delivered', workId, itemId: item };
    }
    case 'settled_elsewhere':
      return { ...nothing, outcome: 'already_delivered' };
    case 'interrupt':
      return { ...nothing, outcome: 'accepted', workId: decision.work.workId };
    case 'not_known':
      throw notFound('The session');
    case 'not_a_subagent':
      return { ...nothing, outcome: 'not_a_subagent' };
    case 'parent_gone':
      return { ...nothing, outcome: 'parent_gone' };
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
