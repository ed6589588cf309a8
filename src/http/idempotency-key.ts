import { z } from '@hono/zod-openapi';
import { invalid } from '../domain/refusal.ts';
import { clientKey } from './wire.ts';

/** The header by which a client may repeat a request. */
export const idempotencyHeader = z.object({
  'idempotency-key': z
    .string()
    .optional()
    .openapi({ description: 'In double quotes; the same key and body get the first answer again' }),
});

/** The header by which an answer says that it was given before. */
export const idempotencyReplayed = {
  'Idempotency-Replayed': {
    description: '`true`: the first answer to this key, given again',
    schema: { type: 'string' as const },
  },
};

/** A string of RFC 9651: printable ASCII in double quotes, in which `\` goes before `"` and `\`. */
const QUOTED = /^\s*"((?:[\u0020-\u0021\u0023-\u005b\u005d-\u007e]|\\["\\])*)"\s*$/;

/** The key in an `Idempotency-Key` header; null: there is none. Refuses what is no quoted string. */
export function idempotencyKeyOf(header: string | undefined): string | null {
  if (header === undefined) return null;
  const key = QUOTED.exec(header)?.[1]?.replaceAll(/\\(.)/g, '$1');
  if (!clientKey.safeParse(key).success || key === undefined) {
    throw invalid('Idempotency-Key', 'must be 1 to 512 characters in double quotes');
  }
  return key;
}
