import { createHash } from 'node:crypto';
import { Refusal } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import type { Queryable } from '../store/database.ts';
import { claimKey, freeKey, keepAnswer, selectKeptAnswer } from '../store/idempotency-keys.ts';

/** A request that its client may repeat. */
export interface KeyedRequest {
  tenantId: string;
  /** The path with its ids: keys of different paths have nothing to do with each other. */
  path: string;
  /** null: the client gave none, so each request is a new one. */
  key: string | null;
  /** What is asked for, as it was validated. */
  body: unknown;
}

export interface Answer<Value> {
  status: number;
  value: Value;
}

/**
 * Does the work once per key: a repeat gets the first answer again (`replayed`), one with another
 * body is refused. In the transaction of the work and before it takes any lock, so that a second
 * request waits here for the first. `work` answers null when it has come to no answer yet: then the
 * key is free again, as it is when `work` throws and all is rolled back.
 */
export async function oncePerKey<Value extends object>(
  tx: Queryable,
  { clock, policy }: Resources,
  request: KeyedRequest,
  work: () => Promise<Answer<Value> | null>,
): Promise<(Answer<Value> & { replayed: boolean }) | null> {
  if (request.key === null) return first(await work());
  const now = clock.now();
  const requestKey = createHash('sha256').update(`${request.path}\n${request.key}`).digest();
  const key = { tenantId: request.tenantId, requestKey };
  const fingerprint = fingerprintOf(request.body);
  const expiredBefore = now - policy.idempotencyRetentionMs;
  if (!(await claimKey(tx, { ...key, fingerprint, now, expiredBefore }))) {
    const kept = await selectKeptAnswer(tx, key);
    if (kept === null || kept.status === null) throw new Error('a kept key has its answer');
    if (kept.fingerprint !== fingerprint) throw reused();
    return { status: kept.status, value: kept.answer as Value, replayed: true };
  }
  const answer = await work();
  if (answer === null) {
    await freeKey(tx, key);
    return null;
  }
  const { status, value } = answer;
  await keepAnswer(tx, { ...key, status, answer: value as Record<string, unknown> });
  return first(answer);
}

function first<Value>(answer: Answer<Value> | null) {
  return answer && { ...answer, replayed: false };
}

function reused(): Refusal {
  return new Refusal(
    'idempotency_key_reused',
    'This Idempotency-Key was used here for a request with another body.',
  );
}

/** Equal for bodies that say the same, whatever the order of their members. */
function fingerprintOf(body: unknown): string {
  return createHash('sha256').update(JSON.stringify(body, inOrder)).digest('base64url');
}

function inOrder(_: string, value: unknown): unknown {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1)));
}
