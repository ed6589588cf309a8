/* What a webhook is sent when its session is to look into its inbox. */

export interface WebhookMessage {
  sessionId: string;
  notice: string;
  pending: number;
  itemId: string | null;
  /** Who dispatched the work, and whether that is said. */
  createdBy: string | null;
  withCreatedBy: boolean;
  /** RFC 3339. */
  announcedAt: string;
}

/** The event of Standard Webhooks: type, time, data. */
export function standardMessage(message: WebhookMessage): object {
  return {
    type: 'inbox.wake',
    timestamp: message.announcedAt,
    data: {
      session_id: message.sessionId,
      pending: message.pending,
      notice: message.notice,
      item_id: message.itemId,
    },
  };
}

/** The message that a user of the session would send: an agent's server takes it as an event. */
export function sessionMessage(message: WebhookMessage): object {
  return {
    type: 'message',
    ...(saysCreatedBy(message) && { created_by: message.createdBy }),
    data: { role: 'user', content: [{ type: 'input_text', text: message.notice }] },
  };
}

function saysCreatedBy({ createdBy, withCreatedBy }: WebhookMessage): boolean {
  return createdBy !== null && withCreatedBy;
}
