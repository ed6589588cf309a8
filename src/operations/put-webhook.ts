import { invalid, notFound } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import { selectInbox } from '../store/inboxes.ts';
import { insertStubs } from '../store/sessions.ts';
import {
  deleteWebhook as deleteIt,
  putWebhook as put,
  type WebhookFormat,
} from '../store/webhooks.ts';
import { withLockedInbox } from './open-inbox.ts';

export interface PutWebhook {
  tenantId: string;
  sessionId: string;
  url: string;
  /** null: what is sent is not signed. */
  secret: string | null;
  format: WebhookFormat;
}

/**
 * Has the session, that is the last one of its chain, woken at this URL; takes the place of what was
 * there, also for a wake that is to be tried again. A session never named becomes a stub; a deleted
 * one is refused, and so is a URL that is seen to lead where none may. What its name resolves to is
 * looked at whenever it is called.
 */
export async function putWebhook(resources: Resources, hook: PutWebhook): Promise<void> {
  const refusal = resources.webhooks.refuse(new URL(hook.url));
  if (refusal !== null) throw invalid('url', refusal);
  const { tenantId } = hook;
  const now = resources.clock.now();
  const stub = { tenantId, ids: [hook.sessionId], now };
  await resources.database.run((db) => insertStubs(db, stub));
  await withLockedInbox(
    resources,
    hook,
    async (tx, { sessionId }) => await put(tx, { ...hook, sessionId, now }),
  );
}

/** The session is woken nowhere outside any more; harmless again. Refuses one that is not there. */
export async function removeWebhook(
  resources: Resources,
  of: { tenantId: string; sessionId: string },
): Promise<void> {
  const found = await resources.database.run((db) => selectInbox(db, of));
  if (found === null || found.deleted) throw notFound(`Session ${of.sessionId}`);
  const { sessionId } = found;
  await resources.database.run((db) => deleteIt(db, { tenantId: of.tenantId, sessionId }));
}
