import { setTimeout as pause } from 'node:timers/promises';
import type { Resources } from '../resources.ts';
import { selectEndedCalls } from '../store/delegations.ts';
import { selectInboxesWorthALook } from '../store/items.ts';
import { notifyWakeup, WAKEUP_CHANNEL, WAKEUP_PAYLOAD_MAX_BYTES } from '../store/wakeups.ts';
import type { InboxKey, InboxWaiters } from './inbox-waiters.ts';

/** What is announced within this time goes to the other replicas in one statement. */
const GATHER_MS = 5;

/** The payload that names no inbox: there were too many to name. */
const LOOK_EVERYWHERE = '*';

/**
 * Wakes those who wait for these inboxes, here at once and in other replicas within milliseconds.
 * For what has been committed; never throws. A wake that is lost costs time and nothing else.
 */
export function announceDelivered(resources: Resources, inboxes: readonly InboxKey[]): void {
  for (const { tenantId, sessionId } of inboxes) resources.waiters.wake(tenantId, sessionId);
  tellReplicas(resources, inboxes);
}

/** Hears what other replicas announce, until stopped; rejects if it cannot listen at first. */
export function hearAnnouncements(resources: Resources): Promise<{ stop(): Promise<void> }> {
  return resources.database.listen(
    WAKEUP_CHANNEL,
    (payload) => {
      if (payload === LOOK_EVERYWHERE) return wakeEveryone(resources);
      for (const [tenantId, sessionId] of JSON.parse(payload) as [string, string][]) {
        resources.waiters.wake(tenantId, sessionId);
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

function wakeEveryone({ waiters }: Resources): void {
  for (const { tenantId, sessionId } of waiters.waitedFor()) waiters.wake(tenantId, sessionId);
}

/** What each process has still to tell the others. */
const outboxes = new WeakMap<InboxWaiters, Map<string, InboxKey>>();

function tellReplicas(resources: Resources, inboxes: readonly InboxKey[]): void {
  const underWay = outboxes.get(resources.waiters);
  const outbox = underWay ?? new Map<string, InboxKey>();
  for (const inbox of inboxes) outbox.set(`${inbox.tenantId}\0${inbox.sessionId}`, inbox);
  if (underWay !== undefined || outbox.size === 0) return;
  outboxes.set(resources.waiters, outbox);
  void send(resources, outbox);
}

async function send(resources: Resources, outbox: Map<string, InboxKey>): Promise<void> {
  while (outbox.size > 0) {
    await pause(GATHER_MS, undefined, { ref: false });
    const payload = payloadOf([...outbox.values()]);
    outbox.clear();
    try {
      await resources.database.run((db) => notifyWakeup(db, payload));
    } catch (error) {
      resources.log.debug({ err: error }, 'other replicas could not be told of new items');
    }
  }
  outboxes.delete(resources.waiters);
}

function payloadOf(inboxes: readonly InboxKey[]): string {
  const named = JSON.stringify(inboxes.map(({ tenantId, sessionId }) => [tenantId, sessionId]));
  return Buffer.byteLength(named) <= WAKEUP_PAYLOAD_MAX_BYTES ? named : LOOK_EVERYWHERE;
}
