import type { Resources } from '../resources.ts';
import { releaseItemsOf } from '../store/items.ts';
import { inboxesOf, seqsOf, sortItems, type NamedItemsOfSession } from './ack-items.ts';
import { announceDelivered } from './announce.ts';
import type { InboxKey } from './inbox-waiters.ts';

/** Item ids, each once. */
export interface Released {
  released: string[];
  alreadyAcked: string[];
  unknown: string[];
}

/** Hands the items back before their lease ends: the next reader gets them; safe to repeat. */
export async function releaseItems(
  resources: Resources,
  named: NamedItemsOfSession,
): Promise<Released> {
  const { tenantId, itemIds } = named;
  const sessionIds = await inboxesOf(resources, named);
  const found = await resources.database.transaction((tx) =>
    releaseItemsOf(tx, { tenantId, sessionIds, seqs: seqsOf(itemIds) }),
  );
  const { fresh, former, unknown } = sortItems(itemIds, found);
  if (fresh.length > 0) announceReleased(resources, { tenantId, sessionId: sessionIds[0] });
  return { released: fresh, alreadyAcked: former, unknown };
}

/** Wakes who waits for the inbox, and has its wake repeated as if there had been no lease. */
export function announceReleased(resources: Resources, inbox: InboxKey): void {
  announceDelivered(resources, [inbox]);
  resources.wakes.submit([{ ...inbox, kind: 'released' }]);
}
