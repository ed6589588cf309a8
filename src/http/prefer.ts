import { z } from '@hono/zod-openapi';

/** No request is held for longer, in seconds. */
export const WAIT_MAX_SECONDS = 60;

/** The header of a request that can be waited for. */
export const preferHeader = z.object({
  prefer: z
    .string()
    .optional()
    .openapi({ description: `wait=N: seconds to wait at most, up to ${WAIT_MAX_SECONDS}` }),
});

/** The header by which its answer says what of it was heeded. */
export const preferenceApplied = {
  'Preference-Applied': {
    description: 'The `wait` that was heeded',
    schema: { type: 'string' as const },
  },
};

/** The seconds of `wait=N` in a `Prefer` header (RFC 7240), capped; null: it asks for none. */
export function preferredWait(prefer: string | undefined): number | null {
  for (const preference of prefer?.split(',') ?? []) {
    const seconds = /^\s*wait\s*=\s*"?(\d+(?:\.\d+)?)"?\s*(?:;.*)?$/i.exec(preference)?.[1];
    if (seconds !== undefined) return Math.min(Number(seconds), WAIT_MAX_SECONDS);
  }
  return null;
}
