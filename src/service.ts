import { setTimeout as pause } from 'node:timers/promises';
import { createApp } from './app.ts';
import type { Config } from './config.ts';
import type { Unready } from './http/operations.ts';
import { serveHttp, type HttpServerOptions } from './http/server.ts';
import { createAttention } from './operations/attention.ts';
import { createInboxWaiters } from './operations/inbox-waiters.ts';
import { countReports } from './operations/list-parked.ts';
import { createSessionStreams } from './operations/session-streams.ts';
import { createInboxRoom } from './operations/inbox-room.ts';
import { createIngestQueue } from './operations/ingest-queue.ts';
import { createWebhookSender } from './operations/send-webhooks.ts';
import { createWakeQueue } from './operations/wake-parents.ts';
import { systemClock, type Clock } from './platform/clock.ts';
import { uuidIds } from './platform/ids.ts';
import type { Log } from './platform/log.ts';
import { isLoopbackAddress } from './platform/loopback.ts';
import { createMetrics } from './platform/metrics.ts';
import { createUpstream } from './platform/upstream.ts';
import { createWebhookClient, type ResolveName } from './platform/webhook-client.ts';
import { MIGRATIONS } from './migrations.ts';
import type { Resources } from './resources.ts';
import { openDatabase, type Database } from './store/database.ts';
import { migrate, migrationsState } from './store/migrate.ts';
import { startInboxListener } from './workers/inbox-listener.ts';
import { startWorkers } from './workers/workers.ts';

export interface ServiceOptions {
  config: Config;
  databaseUrl: string;
  log: Log;
  /** Of several services in one process, one may measure the process. */
  measuresProcess?: boolean;
  clock?: Clock;
  /** How the names of webhooks are resolved. */
  resolveName?: ResolveName;
  http?: Pick<HttpServerOptions, 'headersTimeoutMs' | 'requestTimeoutMs'>;
}

export interface Service {
  url: string;
  resources: Resources;
  /**
   * Stops without losing a report: says that it is not ready and answers what waits, still serves
   * for `drainMs`, then takes no more and ends what is under way, cutting off what is not done
   * `withinMs` after the call.
   */
  stop(times: { drainMs: number; withinMs: number }): Promise<void>;
}

/** Brings the database to its schema and serves HTTP until stopped. */
export async function startService(options: ServiceOptions): Promise<Service> {
  const { config, databaseUrl, log } = options;
  await migrate({ url: databaseUrl, folder: MIGRATIONS, log });
  const database = openDatabase({
    url: databaseUrl,
    prepare: config.databasePrepare,
    log,
    ...(config.listenDatabaseUrl === null ? {} : { listenUrl: config.listenDatabaseUrl }),
  });
  const resources = createResources(options, database);
  let draining = false;
  try {
    const app = createApp(resources, {
      maxBodyBytes: config.maxBodyBytes,
      loopbackOnly: isLoopbackAddress(config.host),
      isDraining: () => draining,
      unready: () => whyUnready(database, draining),
    });
    const ears = await startInboxListener(resources);
    const http = await serveHttp(app.fetch, {
      host: config.host,
      port: config.port,
      ...options.http,
    });
    const workers = startWorkers(resources);
    const stop: Service['stop'] = async ({ drainMs, withinMs }) => {
      const endAt = performance.now() + withinMs;
      draining = true;
      resources.waiters.release();
      resources.streams.release();
      const passesEnded = workers.stop();
      await pause(drainMs);
      const leftMs = Math.max(0, endAt - performance.now());
      await Promise.all([http.stop(leftMs), resources.webhooks.stop(leftMs)]);
      await Promise.all([passesEnded, ears.stop(), resources.wakes.idle()]);
      await database.close();
    };
    return { url: http.url, resources, stop };
  } catch (error) {
    await database.close();
    throw error;
  }
}

function createResources(options: ServiceOptions, database: Database): Resources {
  const { config, log } = options;
  const metrics = createMetrics({ ofProcess: options.measuresProcess ?? false });
  const waiters = createInboxWaiters();
  const resources: Resources = {
    database,
    clock: options.clock ?? systemClock,
    ids: uuidIds,
    log,
    metrics,
    policy: config.policy,
    upstream: config.snapshot && createUpstream({ ...config.snapshot, log }),
    ingest: createIngestQueue(() => resources),
    inboxRoom: createInboxRoom(config.policy.maxPendingItems),
    waiters,
    streams: createSessionStreams(() => resources),
    wakes: createWakeQueue(() => resources),
    webhooks: createWebhookSender(
      () => resources,
      createWebhookClient({
        allowPrivate: config.webhookAllowPrivate,
        ...(options.resolveName === undefined ? {} : { resolve: options.resolveName }),
      }),
    ),
    attention: createAttention(),
  };
  metrics.watch('waiting_readers', () => waiters.count());
  metrics.watch('open_streams', () => resources.streams.count());
  metrics.watch('ingest_queue_length', () => resources.ingest.length());
  metrics.watch('parked_reports', () => countReports(resources, 'parked'));
  metrics.watch('dead_letters', () => countReports(resources, 'dead'));
  return resources;
}

async function whyUnready(database: Database, draining: boolean): Promise<Unready> {
  if (draining) return { reason: 'draining', detail: 'The service is stopping.' };
  try {
    const { pending, unknown } = await migrationsState(database, MIGRATIONS);
    if (pending.length === 0 && unknown.length === 0) return null;
    return { reason: 'migrations', detail: 'The database has another schema than this release.' };
  } catch {
    return { reason: 'database', detail: 'The database cannot be used at the moment.' };
  }
}
