import { sql } from 'drizzle-orm';
import type { Queryable } from './database.ts';

/** On which replicas tell each other that inboxes may hold something new. */
export const REPLICAS_CHANNEL = 'subagent_inbox_news';

/** PostgreSQL refuses a payload of 8,000 bytes and more. */
export const PAYLOAD_MAX_BYTES = 7_999;

/**
 * Tells all replicas. Outside of any other transaction: NOTIFY takes a lock of the whole cluster
 * until its transaction has ended (a quarter of the ingest's speed if each report did it).
 */
export async function notifyReplicas(db: Queryable, payload: string): Promise<void> {
  await db.execute(sql`select pg_notify(${REPLICAS_CHANNEL}, ${payload})`);
}
