import { ConfigError, readConfig, type Config } from './config.ts';
import { startEmbeddedPostgres, type EmbeddedPostgres } from './platform/embedded-postgres.ts';
import { createLog, type Log } from './platform/log.ts';
import { startService } from './service.ts';

/*
 * The process: settings, a database, the service, and a graceful end. SIGTERM drains first, so that
 * a load balancer can see it; SIGINT (Ctrl-C) does not, and a second signal ends it at once.
 */

/** From SIGTERM on requests are still taken for so long, at most; a load balancer looks each second. */
const DRAIN_MS_MAX = 3_000;
/** … and not for longer than this share of the grace: requests under way need the rest. */
const DRAIN_SHARE = 0.3;
/** What stopping the databases is left of the grace. */
const CLOSING_SHARE = 0.2;

async function main(): Promise<void> {
  const config = readConfig();
  const log = createLog(config.logLevel);
  const signal = nextSignal();
  const embedded = config.databaseUrl === null ? await startEmbedded(config, log) : null;
  try {
    const databaseUrl = config.databaseUrl ?? embedded?.url ?? '';
    const service = await startService({ config, databaseUrl, log, measuresProcess: true });
    log.info({ url: service.url }, 'listening');

    const name = await signal;
    log.info({ signal: name }, 'stopping');
    const grace = config.shutdownGraceMs;
    // Whatever hangs: what is not answered by now has not been promised to anyone.
    setTimeout(() => process.exit(0), grace * 0.95).unref();
    await service.stop({
      drainMs: name === 'SIGTERM' ? Math.min(DRAIN_MS_MAX, grace * DRAIN_SHARE) : 0,
      withinMs: grace * (1 - CLOSING_SHARE),
    });
  } finally {
    await embedded?.stop();
  }
  log.info({}, 'stopped');
}

/** Resolves with the first signal to stop; the second ends the process. */
function nextSignal(): Promise<NodeJS.Signals> {
  return new Promise((resolve) => {
    let stopping = false;
    const onSignal = (name: NodeJS.Signals): void => {
      if (stopping) process.exit(1);
      stopping = true;
      resolve(name);
    };
    process.on('SIGTERM', onSignal);
    process.on('SIGINT', onSignal);
  });
}

async function startEmbedded({ dataDir }: Config, log: Log): Promise<EmbeddedPostgres> {
  const embedded = await startEmbeddedPostgres({
    dataDir,
    durable: true,
    notify: (message) => log.warn({}, message),
  });
  log.info(
    { dataDir },
    'no DATABASE_URL: an embedded PostgreSQL keeps everything in DATA_DIR; it serves this one ' +
      'process only (no replicas), and backups are yours to make',
  );
  return embedded;
}

/** One line that names what is wrong, for whoever starts the service. */
function explain(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  if (error instanceof ConfigError) return error.message;
  const { code, syscall } = error as NodeJS.ErrnoException;
  if (syscall === 'listen' && code === 'EADDRINUSE') return 'PORT: something else listens there';
  if (syscall === 'listen') return `HOST, PORT: cannot be listened on (${code})`;
  const cause = error.cause instanceof Error ? `: ${error.cause.message}` : '';
  return `${error.message}${cause}`.replaceAll(/\s+/g, ' ');
}

try {
  await main();
  process.exit(0);
} catch (error) {
  process.stderr.write(`subagent-inbox cannot run: ${explain(error)}\n`);
  process.exit(1);
}
