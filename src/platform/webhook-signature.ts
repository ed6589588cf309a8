import { createHmac } from 'node:crypto';

/*
 * Symmetric signatures of Standard Webhooks: HMAC-SHA256 over id, time and body, with the key that
 * the secret `whsec_<base64>` holds, which may also come without its prefix.
 */

const SECRET = /^(?:whsec_)?([A-Za-z0-9+/]+={0,2})$/;
/** How long the specification wants a key to be, in bytes. */
const KEY_MIN_BYTES = 24;
const KEY_MAX_BYTES = 64;

/** True for a secret by which can be signed. */
export function isWebhookSecret(secret: string): boolean {
  const encoded = SECRET.exec(secret)?.[1] ?? '';
  const key = Buffer.from(encoded, 'base64');
  const isWhole = key.toString('base64').replace(/=+$/, '') === encoded.replace(/=+$/, '');
  return isWhole && key.byteLength >= KEY_MIN_BYTES && key.byteLength <= KEY_MAX_BYTES;
}

/** The headers of a message, signed if there is a secret; `sentAtSeconds` since the epoch. */
export function webhookHeaders(
  message: { id: string; sentAtSeconds: number; body: string },
  secret: string | null,
): Record<string, string> {
  const { id, sentAtSeconds, body } = message;
  const headers = { 'webhook-id': id, 'webhook-timestamp': String(sentAtSeconds) };
  if (secret === null) return headers;
  const key = Buffer.from(SECRET.exec(secret)?.[1] ?? '', 'base64');
  const signature = createHmac('sha256', key).update(`${id}.${sentAtSeconds}.${body}`);
  return { ...headers, 'webhook-signature': `v1,${signature.digest('base64')}` };
}
