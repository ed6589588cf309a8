import type { Resources } from '../resources.ts';
import type { Queryable } from '../store/database.ts';
import {
  buryParkedOf,
  deleteAssistantTextsOf,
  deleteItemsOf,
  deleteResponsesOf,
  deleteWorkOf,
} from '../store/deleted-sessions.ts';
import {
  insertStubs,
  lockSessions,
  markSessionsDeleted,
  selectDeepestOfTree,
  type SessionKey,
} from '../store/sessions.ts';
import { deleteCallsOf, retireTasksOf } from '../store/delegations.ts';
import { selectLiveTasksOfChildren } from '../store/live-tasks.ts';
import { deleteBeatsOf } from '../store/heartbeats.ts';
import { StorageUnavailable } from '../store/unavailable.ts';
import { deleteViewersOf } from '../store/viewers.ts';
import { deleteWakesOf } from '../store/wakes.ts';
import { deleteWebhooksOf } from '../store/webhooks.ts';
import { announceDelivered } from './announce.ts';
import { endTasks } from './cancel-turns.ts';

/** One transaction takes so many sessions, and one statement so many of their items. */
const SESSIONS_AT_A_TIME = 500;
const ITEMS_AT_A_TIME = 5_000;
/** Each further try means that someone has just named new children. */
const TRIES_MAX = 10;

/**
 * Deletes the session with its descendants, their work, their inboxes and what is parked for them,
 * which goes to the dead letters. What they have delivered elsewhere stays. Does nothing for a
 * session that is deleted.
 *
 * A large tree is taken away in several transactions, the deepest first and the session itself last:
 * where one fails the rest is still a tree, and the request may be repeated.
 */
export async function deleteSession(resources: Resources, key: SessionKey): Promise<void> {
  const tree = { ...key, limit: SESSIONS_AT_A_TIME };
  // What was never named is marked as deleted too: upstream may know it, and its text may be here.
  const named = { tenantId: key.tenantId, ids: [key.sessionId], now: resources.clock.now() };
  await resources.database.run((db) => insertStubs(db, named));
  await forgetCalls(resources, key);
  for (;;) {
    const ids = await resources.database.run((db) => selectDeepestOfTree(db, tree));
    if (ids.length === 0) return;
    await emptyInboxes(resources, key.tenantId, ids);
    const { deleted, calls } = await deletePart(resources, key, tree);
    const { tenantId } = key;
    announceDelivered(
      resources,
      [...deleted, ...calls].map((sessionId) => ({ tenantId, sessionId })),
    );
    if (deleted.includes(key.sessionId)) return;
  }
}

/**
 * Nobody is there to read what the session's own calls come to: they go first, so that their tasks
 * are not ended one by one. Those of a session that was continued are for the one that goes on.
 */
async function forgetCalls(
  resources: Resources,
  { tenantId, sessionId }: SessionKey,
): Promise<void> {
  const own = { tenantId, ids: [sessionId], now: resources.clock.now() };
  const calls = await resources.database.transaction(async (tx) => {
    await lockSessions(tx, own);
    return await deleteCallsOf(tx, { ...own, ofContinued: 'none' });
  });
  announceDelivered(
    resources,
    calls.map((call) => ({ tenantId, sessionId: call })),
  );
}

/** Ahead of the transaction that marks them, which could not take 100,000 items within its time. */
async function emptyInboxes(resources: Resources, tenantId: string, ids: string[]): Promise<void> {
  const some = { tenantId, ids, limit: ITEMS_AT_A_TIME };
  let found: number;
  do {
    found = await resources.database.transaction((tx) => deleteItemsOf(tx, some));
  } while (found > 0);
}

/** Deletes the deepest part of the tree; answers which sessions and calls that were. */
async function deletePart(
  resources: Resources,
  { tenantId }: SessionKey,
  tree: SessionKey & { limit: number },
): Promise<{ deleted: string[]; calls: string[] }> {
  const now = resources.clock.now();
  const ended = new Set<string>();
  for (let tries = 0; tries < TRIES_MAX; tries += 1) {
    const part = await resources.database.transaction(async (tx) => {
      const touched = await selectDeepestOfTree(tx, tree);
      await lockSessions(tx, { tenantId, ids: touched });
      const ids = await selectDeepestOfTree(tx, tree);
      if (ids.some((id) => !touched.includes(id))) return null;
      const live = await selectLiveTasksOfChildren(tx, { tenantId, ids });
      const toEnd = live.filter((turn) => !ended.has(turn.workId));
      if (toEnd.length > 0) return { kind: 'live' as const, toEnd };
      const calls = ids.length === 0 ? [] : await deleteLocked(tx, { tenantId, ids, now });
      return { kind: 'deleted' as const, deleted: ids, calls };
    });
    if (part?.kind === 'deleted') return part;
    // First, and without the locks: a unit gets the results of its tasks, whatever becomes of them.
    const toEnd = part?.toEnd ?? [];
    await endTasks(resources, toEnd, 'session_deleted');
    for (const { workId } of toEnd) ended.add(workId);
  }
  throw new StorageUnavailable('contended');
}

async function deleteLocked(
  tx: Queryable,
  of: { tenantId: string; ids: string[]; now: number },
): Promise<string[]> {
  await markSessionsDeleted(tx, of);
  const calls = await deleteCallsOf(tx, { ...of, ofContinued: 'active' });
  await deleteWorkOf(tx, of);
  await retireTasksOf(tx, of);
  await deleteResponsesOf(tx, of);
  await deleteBeatsOf(tx, of);
  await deleteAssistantTextsOf(tx, of);
  await buryParkedOf(tx, of);
  await deleteViewersOf(tx, of);
  await deleteWakesOf(tx, of);
  await deleteWebhooksOf(tx, of);
  while ((await deleteItemsOf(tx, { ...of, limit: ITEMS_AT_A_TIME })) > 0);
  return calls;
}
