import type { Clock } from './platform/clock.ts';
import type { Ids } from './platform/ids.ts';
import type { Log } from './platform/log.ts';
import type { Metrics } from './platform/metrics.ts';
import type { Upstream } from './platform/upstream.ts';
import type { Database } from './store/database.ts';
import type { IngestQueue } from './operations/ingest-queue.ts';
import type { Attention } from './operations/attention.ts';
import type { InboxRoom } from './operations/inbox-room.ts';
import type { InboxWaiters } from './operations/inbox-waiters.ts';
import type { WebhookSender } from './operations/send-webhooks.ts';
import type { SessionStreams } from './operations/session-streams.ts';
import type { WakeQueue } from './operations/wake-parents.ts';

/** All that an operation may reach. Made once by `service.ts`, handed down; nothing here is global. */
export interface Resources {
  database: Database;
  clock: Clock;
  ids: Ids;
  log: Log;
  metrics: Metrics;
  policy: Policy;
  /** null: sessions that are not known here are not looked up anywhere. */
  upstream: Upstream | null;
  ingest: IngestQueue;
  inboxRoom: InboxRoom;
  waiters: InboxWaiters;
  streams: SessionStreams;
  wakes: WakeQueue;
  webhooks: WebhookSender;
  attention: Attention;
}

/** The limits and times by which the operations decide; `config.ts` says where each comes from. */
export interface Policy {
  parkAfterAttempts: number;
  maxPendingItems: number;
  parkedRetentionMs: number;
  deadLetterRetentionMs: number;
  ackedItemRetentionMs: number;
  tombstoneRetentionMs: number;
  idempotencyRetentionMs: number;
  /** false: replicas do not tell each other what is new; it is found by looking. */
  notifications: boolean;
}
