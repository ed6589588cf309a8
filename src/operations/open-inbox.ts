import { notFound } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import type { Queryable } from '../store/database.ts';
import {
  lockInbox,
  selectInbox,
  setInboxOpened,
  type InboxRow,
  type LockedInbox,
} from '../store/inboxes.ts';
import { countPending } from '../store/items.ts';
import { insertStubs } from '../store/sessions.ts';
import { StorageUnavailable } from '../store/unavailable.ts';
import { deliverParkedForParent } from './deliver-parked.ts';

interface InboxOfSession {
  tenantId: string;
  sessionId: string;
}

/**
 * Opens the session's inbox, that of the last session of its chain, and delivers what waits for it;
 * harmless again. A session never named becomes a stub; a deleted one is refused.
 */
export async function openInbox(
  resources: Resources,
  of: InboxOfSession,
): Promise<{ openedAt: number; pending: number }> {
  const { tenantId } = of;
  const { sessionId, openedAt } = await open(resources, of, 'unless_open');
  await deliverParkedForParent(resources, { tenantId, parentId: sessionId });
  const pending = await resources.database.run((db) => countPending(db, { tenantId, sessionId }));
  return { openedAt, pending };
}

/**
 * The session in whose inbox this session's items lie. An inbox that was never opened is opened, and
 * what waits for it delivered; a closed one stays closed. A deleted session is refused.
 */
export async function inboxToRead(resources: Resources, of: InboxOfSession): Promise<string> {
  const { sessionId, isNew } = await open(resources, of, 'unless_ever_opened');
  if (isNew) {
    await deliverParkedForParent(resources, { tenantId: of.tenantId, parentId: sessionId });
  }
  return sessionId;
}

interface Opened {
  sessionId: string;
  openedAt: number;
  /** It was opened by this call. */
  isNew: boolean;
}

type When = 'unless_open' | 'unless_ever_opened';

async function open(resources: Resources, of: InboxOfSession, when: When): Promise<Opened> {
  const found = await resources.database.run((db) => selectInbox(db, of));
  if (found?.deleted) throw notFound(`Session ${of.sessionId}`);
  const asFound = found && leaveAsItIs(found, when);
  if (asFound) return asFound;

  const now = resources.clock.now();
  const stub = { tenantId: of.tenantId, ids: [of.sessionId], now };
  await resources.database.run((db) => insertStubs(db, stub));
  return await withLockedInbox(resources, of, async (tx, inbox) => {
    const asLocked = leaveAsItIs(inbox, when);
    if (asLocked) return asLocked;
    const { sessionId } = inbox;
    await setInboxOpened(tx, { tenantId: of.tenantId, sessionId, now });
    return { sessionId, openedAt: now, isNew: true };
  });
}

function leaveAsItIs({ sessionId, openedAt, closedAt }: InboxRow, when: When): Opened | null {
  if (openedAt === null || (closedAt !== null && when === 'unless_open')) return null;
  return { sessionId, openedAt, isNew: false };
}

/** Each further try means that the session was continued once more meanwhile. */
const TRIES_MAX = 10;

/**
 * Runs work in a transaction with the session's inbox locked against deliveries; refuses a session
 * unknown or deleted. Where the session was continued while the lock was waited for, another
 * transaction locks the one that goes on: two are never held out of order.
 */
export async function withLockedInbox<T>(
  resources: Resources,
  of: InboxOfSession,
  work: (tx: Queryable, inbox: LockedInbox) => Promise<T>,
): Promise<T> {
  for (let tries = 0; tries < TRIES_MAX; tries += 1) {
    const done = await resources.database.transaction(async (tx) => {
      const inbox = await lockInbox(tx, of);
      if (inbox === null || inbox.deleted) throw notFound(`Session ${of.sessionId}`);
      return inbox.goesOnAs === null ? { value: await work(tx, inbox) } : null;
    });
    if (done) return done.value;
  }
  throw new StorageUnavailable('contended');
}
