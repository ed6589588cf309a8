import { and, eq, sql } from 'drizzle-orm';
import type { Queryable } from './database.ts';
import { idempotencyKeys } from './schema.ts';

export interface KeyOf {
  tenantId: string;
  /** SHA-256 of path and key. */
  requestKey: Uint8Array;
}

/**
 * Takes the key for a request, unless it is taken since `expiredBefore`; says whether it is the
 * caller's. Waits for the transaction of another request that has it.
 */
export async function claimKey(
  tx: Queryable,
  row: KeyOf & { fingerprint: string; now: number; expiredBefore: number },
): Promise<boolean> {
  const rows = await tx.execute(sql`
    insert into idempotency_keys as k (tenant_id, request_key, fingerprint, created_at)
    values (${row.tenantId}, ${row.requestKey}, ${row.fingerprint}, ${row.now}::timestamptz)
    on conflict (tenant_id, request_key) do update
      set fingerprint = excluded.fingerprint, created_at = excluded.created_at,
        answer_status = null, answer = null
      where k.created_at < ${row.expiredBefore}::timestamptz
    returning 1`);
  return rows.length > 0;
}

export interface KeptAnswer {
  fingerprint: string;
  status: number | null;
  answer: Record<string, unknown> | null;
}

/** What is kept under the key; null: nothing. */
export async function selectKeptAnswer(tx: Queryable, of: KeyOf): Promise<KeptAnswer | null> {
  const rows = await tx
    .select({
      fingerprint: idempotencyKeys.fingerprint,
      status: idempotencyKeys.answerStatus,
      answer: idempotencyKeys.answer,
    })
    .from(idempotencyKeys)
    .where(isKey(of));
  return rows[0] ?? null;
}

/** Keeps the answer of the request that has the key. */
export async function keepAnswer(
  tx: Queryable,
  { status, answer, ...key }: KeyOf & { status: number; answer: Record<string, unknown> },
): Promise<void> {
  await tx.update(idempotencyKeys).set({ answerStatus: status, answer }).where(isKey(key));
}

/** Gives the key back: the request has come to no answer. */
export async function freeKey(tx: Queryable, key: KeyOf): Promise<void> {
  await tx.delete(idempotencyKeys).where(isKey(key));
}

/** Removes keys taken before `createdBefore`, at most `limit`; says how many. */
export async function deleteOldKeys(
  db: Queryable,
  { createdBefore, limit }: { createdBefore: number; limit: number },
): Promise<number> {
  const rows = await db.execute(sql`
    delete from idempotency_keys where (tenant_id, request_key) in (
      select tenant_id, request_key from idempotency_keys
      where created_at < ${createdBefore}::timestamptz
      order by created_at limit ${limit} for update skip locked)
    returning 1`);
  return rows.length;
}

function isKey({ tenantId, requestKey }: KeyOf) {
  return and(eq(idempotencyKeys.tenantId, tenantId), eq(idempotencyKeys.requestKey, requestKey));
}
