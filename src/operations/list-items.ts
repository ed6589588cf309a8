import { itemSeq } from '../domain/item-id.ts';
import { invalid, notFound } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import { selectItem, selectItemPage, type ItemRow } from '../store/items.ts';
import { inboxesOf } from './ack-items.ts';
import { ANSWER_MAX_BYTES } from './read-inbox.ts';

export type { ItemRow };

export interface ItemPage {
  tenantId: string;
  sessionId: string;
  state: 'pending' | 'all';
  /** The id of the item after which the page begins; null: the oldest item. */
  after: string | null;
  limit: number;
}

/** A page of the session's inbox, in the order of delivery; leases nothing. */
export async function listItems(
  resources: Resources,
  { tenantId, sessionId, state, after, limit }: ItemPage,
): Promise<{ items: ItemRow[]; hasMore: boolean }> {
  const afterSeq = after === null ? 0 : itemSeq(after);
  if (afterSeq === null) throw invalid('after', 'is not the id of an item');
  const [inboxId] = await inboxesOf(resources, { tenantId, sessionId });
  const page = { tenantId, sessionId: inboxId, state, afterSeq, limit };
  const { rows, hasMore } = await resources.database.run((db) =>
    selectItemPage(db, { ...page, maxBytes: ANSWER_MAX_BYTES }),
  );
  return { items: rows, hasMore };
}

/** One item of the session's inbox, acked or not; leases nothing. */
export async function readItem(
  resources: Resources,
  { tenantId, sessionId, itemId }: { tenantId: string; sessionId: string; itemId: string },
): Promise<ItemRow> {
  const sessionIds = await inboxesOf(resources, { tenantId, sessionId });
  const seq = itemSeq(itemId);
  const item =
    seq === null
      ? null
      : await resources.database.run((db) => selectItem(db, { tenantId, sessionIds, seq }));
  if (item === null) throw notFound(`Item ${itemId}`);
  return item;
}
