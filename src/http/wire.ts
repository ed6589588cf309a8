import { z } from '@hono/zod-openapi';
import { fitsName, fitsTitle, NAME_MAX, TITLE_MAX } from '../domain/names.ts';
import { isSessionId, SESSION_ID_MAX } from '../domain/session-id.ts';
import { storable } from '../domain/text.ts';
import { PROBLEM_TYPE } from './problem.ts';

/*
 * Pieces of which the schemas of the wire are made. Schemas of requests and of answers are separate:
 * those of requests clean and default, those of answers only describe (a `default` there would make
 * the field optional in the document).
 */

/** PostgreSQL's JSON parser recurses, and nothing sensible is nested so deeply. */
const JSON_DEPTH_MAX = 64;
/** A list answers so many entries at most. */
const LIST_MAX = 1000;
const LIST_DEFAULT = 20;

// ---- requests: ids and text

/** A session's id, in a path or a body. */
export const sessionId = z
  .string()
  .refine(isSessionId, {
    error: `must be 1 to ${SESSION_ID_MAX} characters, none of them a control character`,
  })
  .meta({
    description: 'Opaque; case counts; percent-encoded in paths',
    examples: ['conv_child1'],
  });

/** Any other id or key that clients choose. */
export const clientKey = z
  .string()
  .refine(isClientKey, { error: `must be 1 to ${NAME_MAX} characters` });

/** The same where an empty one counts as absent. */
export const keyOrEmpty = z.union([clientKey, z.literal('')]);

function isClientKey(key: string): boolean {
  if (key === '' || key.includes('\0') || !key.isWellFormed()) return false;
  return fitsName(key);
}

/** A name, which may be empty; NUL and lone surrogates become U+FFFD. */
export const name = z
  .string()
  .transform(storable)
  .refine(fitsName, { error: `must be at most ${NAME_MAX} characters` });

/** A title or a path, with the rules of `name`. */
export const title = z
  .string()
  .transform(storable)
  .refine(fitsTitle, { error: `must be at most ${TITLE_MAX} characters` });

/** Any text at all; NUL and lone surrogates become U+FFFD. */
export function text() {
  return z.string().transform(storable);
}

/** Any JSON object, kept as it is but for what PostgreSQL cannot store in its strings. */
export function jsonObject() {
  // Not z.record, which drops a member called `__proto__`.
  return z
    .unknown()
    .refine(isObject, { error: 'must be an object' })
    .refine((value) => isDeepAtMost(value, JSON_DEPTH_MAX), { error: 'is nested too deeply' })
    .transform((value) => storableJson(value) as Record<string, unknown>)
    .meta({ type: 'object' });
}

function isObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isDeepAtMost(value: unknown, depth: number): boolean {
  if (typeof value !== 'object' || value === null) return true;
  return depth > 0 && Object.values(value).every((member) => isDeepAtMost(member, depth - 1));
}

function storableJson(value: unknown): unknown {
  if (typeof value === 'string') return storable(value);
  if (Array.isArray(value)) return value.map(storableJson);
  if (typeof value !== 'object' || value === null) return value;
  const members = Object.entries(value);
  return Object.fromEntries(members.map(([key, member]) => [storable(key), storableJson(member)]));
}

// ---- requests: numbers

export interface Range {
  min: number;
  max: number;
}

/** A number: of another type or below `min` it is refused, above `max` it counts as `max`. */
export function clamped({ min, max }: Range) {
  return z
    .number()
    .min(min)
    .transform((value) => Math.min(value, max))
    .meta({ description: `Above ${max} it counts as ${max}` });
}

/** A whole number, with the rules of `clamped`. */
export function clampedWhole({ min, max }: Range) {
  return z
    .number()
    .refine(Number.isInteger, { error: 'must be a whole number' })
    .min(min)
    .transform((value) => Math.min(value, max))
    .meta({ type: 'integer', description: `Above ${max} it counts as ${max}` });
}

/** Ten years: the calendar of the database goes no further than it must. */
export const SECONDS_MAX = 315_360_000;

/** How long something may take. */
export const duration = z
  .number()
  .gt(0)
  .transform((seconds) => Math.min(seconds, SECONDS_MAX))
  .meta({ description: `In seconds, fractions too; above ${SECONDS_MAX} it counts as that` });

/** How many calls of a parent may run at once; one that runs more has no limit worth the name. */
export const maxConcurrent = clampedWhole({ min: 1, max: 10_000 });

/** The query of a list: `limit` and `after`, the id after which it goes on. */
export const listQuery = z.object({
  limit: z
    .string()
    .regex(/^0*[1-9]\d*$/, { error: `must be a whole number of 1 to ${LIST_MAX}` })
    .transform((digits) => Math.min(Number(digits), LIST_MAX))
    .default(LIST_DEFAULT)
    .openapi({ type: 'integer', minimum: 1, maximum: LIST_MAX, default: LIST_DEFAULT }),
  after: clientKey.optional(),
});

/** The path of a session: `/sessions/{id}/…`. */
export const sessionParams = z.object({ id: sessionId });

// ---- answers

/** An instant of an answer: RFC 3339, UTC, milliseconds. */
export const instant = z
  .string()
  .openapi({ format: 'date-time', example: '2026-11-30T14:32:21.688Z' });

/** Epoch milliseconds as answers have them. */
export function instantOut(epochMs: number): string {
  return new Date(epochMs).toISOString();
}

/** The same for what may not have happened. */
export function instantOrNull(epochMs: number | null): string | null {
  return epochMs === null ? null : instantOut(epochMs);
}

/** The schema of a list's answer. */
export function listOf<Entry extends z.ZodType>(entry: Entry) {
  return z.object({
    object: z.literal('list'),
    data: z.array(entry),
    first_id: z.string().nullable(),
    last_id: z.string().nullable(),
    has_more: z.boolean(),
  });
}

/** A list's answer; `idOf` tells what `after` takes to go on behind an entry. */
export function listOut<Entry>(data: Entry[], hasMore: boolean, idOf: (entry: Entry) => string) {
  const [first, last] = [data[0], data.at(-1)];
  return {
    object: 'list' as const,
    data,
    first_id: first === undefined ? null : idOf(first),
    last_id: last === undefined ? null : idOf(last),
    has_more: hasMore,
  };
}

/** An answer with a JSON body, for createRoute. */
export function jsonAnswer<Schema extends z.ZodType>(description: string, schema: Schema) {
  return { description, content: { 'application/json': { schema } } };
}

const problem = z
  .object({
    type: z.string(),
    title: z.string(),
    status: z.int(),
    detail: z.string(),
    instance: z.string(),
    error: z.string().openapi({ description: 'The stable code' }),
    reason: z.string().optional(),
    outcome: z.string().optional(),
    retry_after_seconds: z.int().optional(),
    errors: z.array(z.object({ path: z.string(), message: z.string() })).optional(),
  })
  .openapi('Problem');

const PROBLEM_DESCRIPTIONS = {
  400: 'The request is not valid',
  401: 'A valid token is needed',
  403: 'This is not allowed',
  404: 'There is no such thing',
  409: 'The state does not allow it; `reason` says why',
  413: 'The body is too large',
  415: 'The body must be JSON',
  422: 'The Idempotency-Key was used for another request',
  429: 'A limit is reached',
  500: 'Something went wrong here',
  503: 'The service cannot do this at the moment',
} as const;

type ProblemStatus = keyof typeof PROBLEM_DESCRIPTIONS;

/** The answer of every operation to what its own answers do not say, for the document. */
export const problemAnswer = {
  description: 'Any other refusal',
  content: { [PROBLEM_TYPE]: { schema: { $ref: '#/components/schemas/Problem' } } },
};

interface ProblemResponse {
  description: string;
  content: { [PROBLEM_TYPE]: { schema: typeof problem } };
}

/** The refusals of a route, for createRoute; 500 and 503, which any may give, come with them. */
export function problemResponses<Status extends ProblemStatus>(
  ...statuses: Status[]
): Record<Status | 500 | 503, ProblemResponse> {
  const entries = [...statuses, 500 as const, 503 as const].map((status) => [
    status,
    {
      description: PROBLEM_DESCRIPTIONS[status],
      content: { [PROBLEM_TYPE]: { schema: problem } },
    },
  ]);
  return Object.fromEntries(entries) as Record<Status | 500 | 503, ProblemResponse>;
}
