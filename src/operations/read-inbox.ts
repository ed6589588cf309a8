import { itemId } from '../domain/item-id.ts';
import type { Resources } from '../resources.ts';
import { ackItemsOf, handOutItems, takeBackItems, type ItemRow } from '../store/items.ts';
import { afterAcks, seqsOf } from './ack-items.ts';
import { inboxToRead } from './open-inbox.ts';
import { announceReleased } from './release-items.ts';

/** How much text one answer holds at most, in bytes; a single entry may be longer. */
export const ANSWER_MAX_BYTES = 16 * 1024 * 1024;

/**
 * What another reader was just being given is his or free again within milliseconds, and nobody is
 * woken for it: then to look once more.
 */
const CONTENDED_MS = 50;

export interface InboxRead {
  tenantId: string;
  sessionId: string;
  max: number;
  waitMs: number;
  leaseMs: number;
  /** Ids of items to settle first. */
  ack: readonly string[];
  /** Ack what is handed out, in the same transaction. */
  drain: boolean;
}

export interface InboxReading {
  items: ItemRow[];
  /** How many more could be handed out. */
  remaining: number;
  /** Ids of the items that this read has acked. */
  acked: string[];
}

/**
 * Acks what the reader names and hands out what is there, or waits for it: until the time is up, the
 * service drains, or `left` fires, and then nothing is handed out. Opens an inbox that was never
 * opened; refuses a deleted session.
 */
export async function readInbox(
  resources: Resources,
  read: InboxRead,
  left: AbortSignal,
): Promise<InboxReading> {
  const { tenantId } = read;
  const waitUntil = performance.now() + read.waitMs;
  const acked: string[] = [];
  let inboxId = await inboxToRead(resources, read);
  let waiter = resources.waiters.register(tenantId, inboxId);
  try {
    for (let ack = read.ack, drains = false; ; ack = []) {
      const look = await lookInto(resources, inboxId, { ...read, ack }, left);
      acked.push(...look.acked);
      const timeLeft = waitUntil - performance.now();
      if (look.items.length > 0 || timeLeft <= 0 || drains || left.aborted) {
        return { items: look.items, remaining: look.remaining, acked };
      }
      const end = await waiter.wait(Math.min(timeLeft, look.nextLookMs), left);
      drains = end === 'released';
      const goesOnIn = await inboxToRead(resources, read);
      if (goesOnIn !== inboxId) {
        waiter.close();
        inboxId = goesOnIn;
        waiter = resources.waiters.register(tenantId, inboxId);
      }
    }
  } finally {
    waiter.close();
  }
}

interface Look extends InboxReading {
  /** After what time something may be there without anybody being woken for it. */
  nextLookMs: number;
}

const NOTHING: Look = { items: [], remaining: 0, acked: [], nextLookMs: Infinity };

/** One transaction, and what follows from it. */
async function lookInto(
  resources: Resources,
  inboxId: string,
  read: InboxRead,
  left: AbortSignal,
): Promise<Look> {
  if (left.aborted) return NOTHING;
  const of = { tenantId: read.tenantId, sessionId: inboxId };
  const now = resources.clock.now();
  const ackedAt = read.drain ? now : null;
  const { named, handed } = await resources.database.transaction(async (tx) => {
    const sessionIds = [inboxId, read.sessionId];
    return {
      named:
        read.ack.length === 0
          ? []
          : await ackItemsOf(tx, { ...of, sessionIds, seqs: seqsOf(read.ack), now }),
      handed: await handOutItems(tx, {
        ...of,
        now,
        leasedUntil: now + Math.ceil(read.leaseMs),
        ackedAt,
        max: read.max,
        maxBytes: ANSWER_MAX_BYTES,
      }),
    };
  });
  const { remaining, nextLeaseEnd } = handed;
  const items = left.aborted ? await takeBack(resources, of, handed.items, ackedAt) : handed.items;
  const drained = read.drain ? items : [];
  const acked = [...named.filter((item) => !item.wasAcked), ...drained].map(({ seq }) =>
    itemId(seq),
  );
  if (acked.length > 0) await afterAcks(resources, of);
  const leaseEndsIn = nextLeaseEnd === null ? Infinity : nextLeaseEnd - now;
  return { items, remaining, acked, nextLookMs: remaining > 0 ? CONTENDED_MS : leaseEndsIn };
}

/** The reader left while its items were being handed out: they never were. */
async function takeBack(
  resources: Resources,
  of: { tenantId: string; sessionId: string },
  items: readonly ItemRow[],
  ackedAt: number | null,
): Promise<[]> {
  if (items.length > 0) {
    const seqs = items.map((item) => item.seq);
    const deliveryCounts = items.map((item) => item.deliveryCount);
    await resources.database.run((db) =>
      takeBackItems(db, { ...of, seqs, deliveryCounts, ackedAt }),
    );
    announceReleased(resources, of);
  }
  return [];
}
