import { itemId, itemSeq } from '../domain/item-id.ts';
import { notFound } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import type { Queryable } from '../store/database.ts';
import { isRoomAwaited, selectInbox } from '../store/inboxes.ts';
import {
  ackItemsOf,
  isInboxEmpty,
  type FoundItem,
  type InboxOf,
  type NamedItems,
} from '../store/items.ts';
import { deliverParkedForParent } from './deliver-parked.ts';

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
export async function ackItems(resources: Resources, named: NamedItemsOfSession): Promise<Acked> {
  const { tenantId, itemIds } = named;
  const inboxes = await inboxesOf(resources, named);
  const now = resources.clock.now();
  const inbox = { tenantId, sessionId: inboxes[0] };
  const { found, emptied } = await resources.database.transaction(async (tx) => {
    const items = { tenantId, sessionIds: inboxes, seqs: seqsOf(itemIds), now };
    return await ackIn(tx, inbox, items);
  });
  const { fresh, former, unknown } = sortItems(itemIds, found);
  if (emptied) resources.wakes.submit([{ ...inbox, kind: 'inbox_emptied' }]);
  if (fresh.length > 0) await fillRoom(resources, inbox);
  return { acked: fresh, alreadyAcked: former, unknown };
}

/** Acks the items; says as well whether that has emptied the inbox. */
async function ackIn(
  tx: Queryable,
  inbox: InboxOf,
  named: NamedItems & { now: number },
): Promise<{ found: FoundItem[]; emptied: boolean }> {
  const found = await ackItemsOf(tx, named);
  const some = found.some((item) => !item.wasAcked);
  return { found, emptied: some && (await isInboxEmpty(tx, inbox)) };
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
 * Delivers what waits for room in the inbox, if anything does. After the commit that made the room:
 * what is parked just then has looked at the inbox once more and found it.
 */
export async function fillRoom(
  resources: Resources,
  of: { tenantId: string; sessionId: string },
): Promise<void> {
  if (!(await resources.database.run((db) => isRoomAwaited(db, of)))) return;
  await deliverParkedForParent(resources, { tenantId: of.tenantId, parentId: of.sessionId });
}
