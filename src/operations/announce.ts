import { setTimeout as pause } from 'node:timers/promises';
import type { Resources } from '../resources.ts';
import { selectEndedCalls } from '../store/delegations.ts';
import { selectInboxesWorthALook } from '../store/items.ts';
import { notifyReplicas, REPLICAS_CHANNEL, PAYLOAD_MAX_BYTES } from '../store/notify.ts';
import type { InboxKey, InboxWaiters } from './inbox-waiters.ts';
import { SESSION_HASH_LENGTH, sessionHash } from './session-hash.ts';

/*
 * Who waits for a session's inbox, and who watches the session, is told that it is worth a look:
 * here at once, in other replicas by a message. A message lists the sessions by their hashes, each
 * behind a letter that says for whom it is.
 */

/** What is announced within this time goes to the other replicas in one statement. */
const GATHER_MS = 5;

/** The payload that names no session: there were too many to name. */
const LOOK_EVERYWHERE = '*';

/** For readers and streams: its inbox may hold something new. */
const INBOX = 'i';
/** For streams only: something else about it has changed. */
const CHANGED = 's';
const ENTRY_LENGTH = INBOX.length + SESSION_HASH_LENGTH;

/**
 * Wakes those who wait for these inboxes, here at once and in other replicas within milliseconds.
 * For what has been committed; never throws. A wake that is lost costs time and nothing else.
 */
export function announceDelivered(resources: Resources, inboxes: readonly InboxKey[]): void {
  const { waiters, streams } = resources;
  for (const { tenantId, sessionId } of inboxes) {
    waiters.wake(tenantId, sessionId);
    streams.hint(tenantId, sessionId);
  }
  tellReplicas(resources, INBOX, inboxes);
}

/** The same for what only those see who stream these sessions. */
export function announceChanged(resources: Resources, sessions: readonly InboxKey[]): void {
  for (const { tenantId, sessionId } of sessions) resources.streams.hint(tenantId, sessionId);
  tellReplicas(resources, CHANGED, sessions);
}

/** Hears what other replicas announce, until stopped; rejects if it cannot listen at first. */
export function hearAnnouncements(resources: Resources): Promise<{ stop(): Promise<void> }> {
  const { waiters, streams } = resources;
  return resources.database.listen(
    REPLICAS_CHANNEL,
    (payload) => {
      if (payload === LOOK_EVERYWHERE) return wakeEveryone(resources);
      for (let at = 0; at < payload.length; at += ENTRY_LENGTH) {
        const hash = payload.slice(at + 1, at + ENTRY_LENGTH);
        if (payload[at] === INBOX) waiters.wakeHashed(hash);
        streams.hintHashed(hash);
      }
    },
    () => wakeEveryone(resources),
  );
}

/** Wakes those who wait here for an inbox that holds something, or a call that has ended: one pass. */
export async function wakeWhereItemsAre(resources: Resources): Promise<void> {
  const waitedFor = resources.waiters.waitedFor();
  if (waitedFor.length === 0) return;
  const now = resources.clock.now();
  const calls = waitedFor.filter(({ sessionId }) => sessionId.startsWith('deleg_'));
  const found = await resources.database.run(async (db) => [
    ...(await selectInboxesWorthALook(db, waitedFor, now)),
    ...(calls.length === 0 ? [] : await selectEndedCalls(db, calls)),
  ]);
  for (const { tenantId, sessionId } of found) resources.waiters.wake(tenantId, sessionId);
}

function wakeEveryone({ waiters, streams }: Resources): void {
  for (const { tenantId, sessionId } of waiters.waitedFor()) waiters.wake(tenantId, sessionId);
  streams.hintAll();
}

/** What each process has still to tell the others. */
const outboxes = new WeakMap<InboxWaiters, Set<string>>();

function tellReplicas(
  resources: Resources,
  letter: typeof INBOX | typeof CHANGED,
  sessions: readonly InboxKey[],
): void {
  if (!resources.policy.notifications) return;
  const underWay = outboxes.get(resources.waiters);
  const outbox = underWay ?? new Set<string>();
  for (const { tenantId, sessionId } of sessions) {
    outbox.add(letter + sessionHash(tenantId, sessionId));
  }
  if (underWay !== undefined || outbox.size === 0) return;
  outboxes.set(resources.waiters, outbox);
  void send(resources, outbox);
}

async function send(resources: Resources, outbox: Set<string>): Promise<void> {
  while (outbox.size > 0) {
    await pause(GATHER_MS, undefined, { ref: false });
    const fits = outbox.size * ENTRY_LENGTH <= PAYLOAD_MAX_BYTES;
    const payload = fits ? [...outbox].join('') : LOOK_EVERYWHERE;
    outbox.clear();
    try {
      await resources.database.run((db) => notifyReplicas(db, payload));
    } catch (error) {
      resources.log.debug({ err: error }, 'other replicas could not be told of what is new');
    }
  }
  outboxes.delete(resources.waiters);
}
