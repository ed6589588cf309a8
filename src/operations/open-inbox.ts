import { notFound } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import type { Queryable } from '../store/database.ts';
import { lockInbox, selectInbox, setInboxOpened, type LockedInbox } from '../store/inboxes.ts';
import { countPending } from '../store/items.ts';
import { insertStubs } from '../store/sessions.ts';
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
  const { sessionId, openedAt } = await open(resources, of, 'always');
  await deliverParkedForParent(resources, { tenantId, parentId: sessionId });
  const pending = await resources.database.run((db) => countPending(db, { tenantId, sessionId }));
  return { openedAt, pending };
}

/**
 * The session in whose inbox this session's items lie: it is there, and its inbox has been opened
 * before, or is now, with what waited for it delivered. A closed one is only read.
 */
export async function inboxToRead(resources: Resources, of: InboxOfSession): Promise<string> {
  const inbox = await resources.database.run((db) => selectInbox(db, of));
  if (inbox?.deleted) throw notFound(`Session ${of.sessionId}`);
  if (inbox !== null && inbox.openedAt !== null) return inbox.sessionId;
  const opened = await open(resources, of, 'if_never_opened');
  const parent = { tenantId: of.tenantId, parentId: opened.sessionId };
  await deliverParkedForParent(resources, parent);
  return opened.sessionId;
}

async function open(
  resources: Resources,
  of: InboxOfSession,
  when: 'always' | 'if_never_opened',
): Promise<{ sessionId: string; openedAt: number }> {
  const now = resources.clock.now();
  return await resources.database.transaction(async (tx) => {
    await insertStubs(tx, { tenantId: of.tenantId, ids: [of.sessionId], now });
    const { sessionId, openedAt, closedAt } = await lockedInbox(tx, of);
    const isOpen = openedAt !== null && (closedAt === null || when === 'if_never_opened');
    if (isOpen) return { sessionId, openedAt };
    await setInboxOpened(tx, { tenantId: of.tenantId, sessionId, now });
    return { sessionId, openedAt: now };
  });
}

/** The session's inbox, locked against deliveries; refuses a session unknown or deleted. */
export async function lockedInbox(tx: Queryable, of: InboxOfSession): Promise<LockedInbox> {
  let inbox = await lockInbox(tx, of);
  while (inbox !== null && inbox.goesOnAs !== null) {
    inbox = await lockInbox(tx, { tenantId: of.tenantId, sessionId: inbox.goesOnAs });
  }
  if (inbox === null || inbox.deleted) throw notFound(`Session ${of.sessionId}`);
  return inbox;
}
