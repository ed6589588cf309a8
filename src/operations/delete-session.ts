import type { Resources } from '../resources.ts';
import type { Queryable } from '../store/database.ts';
import {
  buryParkedOf,
  deleteAssistantTextsOf,
  deleteItemsOf,
  deleteWorkOf,
  lockSessions,
  markSessionsDeleted,
  planAnew,
  selectDeepestOfTree,
  type SessionKey,
} from '../store/sessions.ts';
import { StorageUnavailable } from '../store/unavailable.ts';
import { deleteViewersOf } from '../store/viewers.ts';
import { announceDelivered } from './announce.ts';

/** One transaction takes so many sessions, and one statement so many of their items. */
const SESSIONS_AT_A_TIME = 500;
const ITEMS_AT_A_TIME = 5_000;
/** Each further try means that someone has just named new children. */
const TRIES_MAX = 10;

/**
 * Deletes the session with its descendants, their work, their inboxes and what is parked for them,
 * which goes to the dead letters. What they have delivered elsewhere stays. Does nothing for a
 * session that is deleted or was never named.
 *
 * A large tree is taken away in several transactions, the deepest first and the session itself last:
 * where one fails the rest is still a tree, and the request may be repeated.
 */
export async function deleteSession(resources: Resources, key: SessionKey): Promise<void> {
  const tree = { ...key, limit: SESSIONS_AT_A_TIME };
  for (;;) {
    const ids = await resources.database.transaction(async (tx) => {
      await planAnew(tx);
      return await selectDeepestOfTree(tx, tree);
    });
    if (ids.length === 0) return;
    await emptyInboxes(resources, key.tenantId, ids);
    const deleted = await deletePart(resources, key, tree);
    announceDelivered(
      resources,
      deleted.map((sessionId) => ({ tenantId: key.tenantId, sessionId })),
    );
    if (deleted.includes(key.sessionId)) return;
  }
}

/** Ahead of the transaction that marks them, which could not take 100,000 items within its time. */
async function emptyInboxes(resources: Resources, tenantId: string, ids: string[]): Promise<void> {
  const some = { tenantId, ids, limit: ITEMS_AT_A_TIME };
  let found: number;
  do {
    found = await resources.database.transaction(async (tx) => {
      await planAnew(tx);
      return await deleteItemsOf(tx, some);
    });
  } while (found > 0);
}

/** Deletes the deepest part of the tree; answers which sessions that were. */
async function deletePart(
  resources: Resources,
  { tenantId }: SessionKey,
  tree: SessionKey & { limit: number },
): Promise<string[]> {
  const now = resources.clock.now();
  for (let tries = 0; tries < TRIES_MAX; tries += 1) {
    const deleted = await resources.database.transaction(async (tx) => {
      await planAnew(tx);
      const touched = await selectDeepestOfTree(tx, tree);
      await lockSessions(tx, { tenantId, ids: touched });
      const ids = await selectDeepestOfTree(tx, tree);
      if (ids.some((id) => !touched.includes(id))) return null;
      if (ids.length > 0) await deleteLocked(tx, { tenantId, ids, now });
      return ids;
    });
    if (deleted) return deleted;
  }
  throw new StorageUnavailable('contended');
}

async function deleteLocked(
  tx: Queryable,
  of: { tenantId: string; ids: string[]; now: number },
): Promise<void> {
  await markSessionsDeleted(tx, of);
  await deleteWorkOf(tx, of);
  await deleteAssistantTextsOf(tx, of);
  await buryParkedOf(tx, of);
  await deleteViewersOf(tx, of);
  while ((await deleteItemsOf(tx, { ...of, limit: ITEMS_AT_A_TIME })) > 0);
}
