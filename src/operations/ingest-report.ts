import { itemId } from '../domain/item-id.ts';
import { retryAfterSeconds, type ParkReason } from '../domain/parking.ts';
import type { Decision, Report } from '../domain/report.ts';
import { Refusal } from '../domain/refusal.ts';
import { isTerminal } from '../domain/session.ts';
import type { Resources } from '../resources.ts';
import { announceDelivered } from './announce.ts';
import { deliverParkedOfChild } from './deliver-parked.ts';
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
    switch (decision.kind) {
      case 'look_up_session': {
        const answer = await lookUpSession(resources, key);
        report = { ...report, upstreamSession: answer === 'stored' ? null : answer };
        break;
      }
      case 'look_up_text':
        report = { ...report, upstreamText: await lookUpText(resources, key) };
        break;
      case 'deliver_parked_first':
        await deliverParkedOfChild(resources, {
          tenantId: report.tenantId,
          childId: report.sessionId,
        });
        break;
      default:
        if (decision.kind === 'deliver') {
          announceDelivered(resources, [
            { tenantId: report.tenantId, sessionId: decision.item.sessionId },
          ]);
        }
        return decision;
    }
  }
  throw new Refusal('unavailable', 'The report kept being overtaken; try again.', {
    retryAfterSeconds: 1,
  });
}

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
  reason: ParkReason | null;
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
        itemId: itemId(decision.item.seq),
      };
    case 'already_delivered': {
      const { workId, lastItemSeq } = decision.work;
      const item = lastItemSeq === null ? null : itemId(lastItemSeq);
      return { ...nothing, outcome: 'already_delivered', workId, itemId: item };
    }
    case 'settled_elsewhere':
      return { ...nothing, outcome: 'already_delivered' };
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
      throw new Refusal('invalid_input', 'data.work_id: it is the work of another session', {
        errors: [{ path: 'data.work_id', message: 'it is the work of another session' }],
      });
    case 'look_up_session':
    case 'look_up_text':
    case 'deliver_parked_first':
      throw new Error(`${decision.kind} is no outcome`);
  }
}
