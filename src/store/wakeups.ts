import { sql } from 'drizzle-orm';
import type { Queryable } from './database.ts';

/** On which replicas tell each other that inboxes may hold something new. */
export const WAKEUP_CHANNEL = 'subagent_inbox_wakeup';

/** PostgreSQL refuses a payload of 8,000 bytes and more. */
export const WAKEUP_PAYLOAD_MAX_BYTES = 7_999;

/**
 * Tells all replicas. Outside of any other transaction: NOTIFY takes a lock of the whole cluster
 * until its transaction has ended (a quarter of the ingest's speed if each report did it).
 */
export async function notifyWakeup(db: Queryable, payload: string): Promise<void> {
  await db.execute(sql`select pg_notify(${WAKEUP_CHANNEL}, ${payload})`);
}
