import { itemId, itemSeq } from '../domain/item-id.ts';
import { notFound } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import { selectInbox, selectRoom } from '../store/inboxes.ts';
import { ackItemsOf, type FoundItem, type InboxOf } from '../store/items.ts';
import { deliverParkedForParent } from './deliver-parked.ts';
import { isPassing } from './unavailable.ts';

export interface NamedItemsOfSession {
  tenantId: string;
  sessionId: string;
  itemIds: readonly string[];
}

/** Item ids, each once. */
export interface Acked {
  acked: string[];
  alreadyAcked: string[];
  unknown: string[];
}

/**
 * Settles the items, leased or not; safe to repeat. Where the inbox was full, what waited for room
 * has been delivered before this resolves.
 */
export async function ackItems(resources: Resources, of: NamedItemsOfSession): Promise<Acked> {
  const { tenantId, itemIds } = of;
  const inboxes = await inboxesOf(resources, of);
  const now = resources.clock.now();
  const inbox = { tenantId, sessionId: inboxes[0] };
  const named = { tenantId, sessionIds: inboxes, seqs: seqsOf(itemIds), now };
  const found = await resources.database.transaction((tx) => ackItemsOf(tx, named));
  const { fresh, former, unknown } = sortItems(itemIds, found);
  if (fresh.length > 0) await afterAcks(resources, inbox);
  return { acked: fresh, alreadyAcked: former, unknown };
}

/**
 * The sessions in whose inboxes a session's items may lie: the last one of its chain, where all
 * that is pending is, and the session itself, where the acked ones have stayed. Refuses a session
 * that was never named or was deleted.
 */
export async function inboxesOf(
  resources: Resources,
  { tenantId, sessionId }: { tenantId: string; sessionId: string },
): Promise<[string, ...string[]]> {
  const inbox = await resources.database.run((db) => selectInbox(db, { tenantId, sessionId }));
  if (inbox === null || inbox.deleted) throw notFound(`Session ${sessionId}`);
  return inbox.sessionId === sessionId ? [sessionId] : [inbox.sessionId, sessionId];
}

/** The places of the items with these ids; an id that no item can have is left out. */
export function seqsOf(itemIds: readonly string[]): number[] {
  return itemIds.map(itemSeq).filter((seq) => seq !== null);
}

/** The ids asked for, by what was found: not acked before, acked before, not there. */
export function sortItems(
  itemIds: readonly string[],
  found: readonly FoundItem[],
): { fresh: string[]; former: string[]; unknown: string[] } {
  const fresh = found.filter((item) => !item.wasAcked).map((item) => itemId(item.seq));
  const former = found.filter((item) => item.wasAcked).map((item) => itemId(item.seq));
  const known = new Set([...fresh, ...former]);
  return { fresh, former, unknown: [...new Set(itemIds)].filter((id) => !known.has(id)) };
}

/**
 * Takes note of an inbox that is empty, and delivers what waits for room in it, if anything does.
 * After the commit that acked something: of several that empty it together the last one sees it, and
 * what is parked just then has looked at the inbox once more and found the room. What was acked and
 * handed out by then is the reader's whatever becomes of this: the sweeps see to the rest.
 */
export async function afterAcks(resources: Resources, of: InboxOf): Promise<void> {
  try {
    const { isEmpty, isAwaited } = await resources.database.run((db) => selectRoom(db, of));
    const { tenantId, sessionId } = of;
    if (isEmpty) resources.wakes.submit([{ kind: 'inbox_emptied', tenantId, sessionId }]);
    if (isAwaited) await deliverParkedForParent(resources, { tenantId, parentId: sessionId });
  } catch (error) {
    if (!isPassing(error)) throw error;
  }
}
