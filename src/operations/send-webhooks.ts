import { afterTry } from '../domain/wake.ts';
import { sessionMessage, standardMessage } from '../domain/webhook-message.ts';
import type { WebhookAnswer, WebhookClient } from '../platform/webhook-client.ts';
import { webhookHeaders } from '../platform/webhook-signature.ts';
import type { Resources } from '../resources.ts';
import { instantToWire } from '../store/column-types.ts';
import {
  claimWebhookWakes,
  deleteWebhook,
  deleteWebhookWake,
  retryWebhookWake,
  type ClaimedWake,
} from '../store/webhooks.ts';

/*
 * Wakes are sent from the table in which their announcement has put them. A replica takes what is
 * due for longer than a try can last: while it lives nobody else sends the same, and when it dies
 * somebody does after that.
 */

/** So long is an answer waited for. */
const ANSWER_WITHIN_MS = 60_000;
/** … and so long nobody else sends the same: the rest is for writing down how it ended. */
const LEASE_MS = 90_000;
/** So many are under way at once from one replica. */
const AT_ONCE = 64;

export interface WebhookSender {
  /** Why a webhook may not be there; null: it may. */
  refuse(url: URL): string | null;
  /** Something is due: sends it, soon. */
  nudge(): void;
  /** Sends what is due, as much as may be under way: one bounded pass. */
  sendDue(): Promise<void>;
  /** Sends nothing more, and cuts off what is not answered within the time: it is sent again. */
  stop(withinMs: number): Promise<void>;
}

/** Sends with the client, over the resources that are handed in when something is due. */
export function createWebhookSender(
  resourcesOf: () => Resources,
  client: WebhookClient,
): WebhookSender {
  const underWay = new Set<Promise<void>>();
  const cutOff = new AbortController();
  let claiming: Promise<void> | null = null;
  let isDueAgain = false;
  const stopping = new AbortController();

  async function sendDue(): Promise<void> {
    isDueAgain = true;
    claiming ??= claimWhileDue();
    await claiming;
  }

  async function claimWhileDue(): Promise<void> {
    try {
      while (isDueAgain && !stopping.signal.aborted && underWay.size < AT_ONCE) {
        isDueAgain = false;
        const { clock, database } = resourcesOf();
        const now = clock.now();
        const claim = { now, leasedUntil: now + LEASE_MS, limit: AT_ONCE - underWay.size };
        const claimed = await database.run((db) => claimWebhookWakes(db, claim));
        for (const wake of claimed) begin(wake);
      }
    } finally {
      claiming = null;
    }
  }

  function begin(wake: ClaimedWake): void {
    const sending = sendOne(wake)
      .catch((error: unknown) => {
        resourcesOf().log.warn({ err: error, wake: wake.id }, 'a wake is sent again later');
      })
      .finally(() => {
        underWay.delete(sending);
        if (underWay.size === AT_ONCE - 1) nudge();
      });
    underWay.add(sending);
  }

  async function sendOne(wake: ClaimedWake): Promise<void> {
    const resources = resourcesOf();
    const answer = await post(resources, wake);
    // It was not the receiver's fault: whoever sends it next begins where this one has.
    if (cutOff.signal.aborted && answer.kind === 'unanswered') return;
    const next = await settle(resources, wake, answer);
    if (next !== null) setTimeout(nudge, next).unref();
  }

  function post({ clock }: Resources, wake: ClaimedWake): Promise<WebhookAnswer> {
    const message = { ...wake, announcedAt: instantToWire(wake.createdAt) };
    const body = JSON.stringify(
      wake.format === 'standard' ? standardMessage(message) : sessionMessage(message),
    );
    const sentAtSeconds = Math.floor(clock.now() / 1000);
    return client.post({
      url: wake.url,
      headers: {
        'content-type': 'application/json',
        'user-agent': 'subagent-inbox',
        ...webhookHeaders({ id: wake.id, sentAtSeconds, body }, wake.secret),
      },
      body,
      timeoutMs: ANSWER_WITHIN_MS,
      signal: cutOff.signal,
    });
  }

  function nudge(): void {
    if (stopping.signal.aborted) return;
    sendDue().catch((error: unknown) => {
      resourcesOf().log.debug({ err: error }, 'wakes are sent later');
    });
  }

  return {
    refuse: (url) => client.refuse(url),
    nudge,
    sendDue,
    stop: async (withinMs) => {
      stopping.abort();
      const timer = setTimeout(() => cutOff.abort(), withinMs);
      await claiming?.catch(() => {});
      await Promise.all(underWay);
      clearTimeout(timer);
    },
  };
}

/** Writes down how a try has ended; answers after what time there is another, or null. */
async function settle(
  resources: Resources,
  wake: ClaimedWake,
  answer: WebhookAnswer,
): Promise<number | null> {
  const { database, clock, log, wakes } = resources;
  const { tenantId, sessionId, number } = wake;
  const next = whatFollows(wake, answer);
  if (next.kind === 'delivered') {
    await database.run((db) => deleteWebhookWake(db, wake));
    return null;
  }
  log.debug({ wake: wake.id, answer, next: next.kind }, 'a webhook did not take its wake');
  if (next.kind === 'retry') {
    const dueAt = clock.now() + next.delayMs;
    const { withCreatedBy } = next;
    await database.run((db) => retryWebhookWake(db, { ...wake, dueAt, withCreatedBy }));
    return next.delayMs;
  }
  if (next.kind === 'remove_webhook') await database.run((db) => deleteWebhook(db, wake));
  await database.run((db) => deleteWebhookWake(db, wake));
  wakes.submit([{ kind: 'announcement_failed', tenantId, sessionId, number }]);
  return null;
}

function whatFollows(
  { tries, format, createdBy, withCreatedBy }: ClaimedWake,
  answer: WebhookAnswer,
): ReturnType<typeof afterTry> {
  if (answer.kind === 'refused') return { kind: 'give_up' };
  const answered = answer.kind === 'answered' ? answer : { status: null, retryAfterMs: null };
  return afterTry({
    tries,
    status: answered.status,
    retryAfterMs: answered.retryAfterMs,
    withCreatedBy: format === 'session_message' && createdBy !== null && withCreatedBy,
  });
}
