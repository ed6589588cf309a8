import { setTimeout as pause } from 'node:timers/promises';
import { ConfigError, readConfig, type Config } from './config.ts';
import { startEmbeddedPostgres, type EmbeddedPostgres } from './platform/embedded-postgres.ts';
import { createLog, type Log } from './platform/log.ts';
import { startService } from './service.ts';

/*
 * The process: settings, a database, the service, and a graceful end. SIGTERM drains first, so that
 * a load balancer can see it; SIGINT (Ctrl-C) does not, and a second signal cuts off what is under
 * way. A start is given up at the first. However it ends, an embedded PostgreSQL is stopped before.
 */

/** From SIGTERM on requests are still taken for so long, at most; a load balancer looks each second. */
const DRAIN_MS_MAX = 3_000;
/** … and not for longer than this share of the grace: requests under way need the rest. */
const DRAIN_SHARE = 0.3;
/** What closing the database is left of the grace. */
const CLOSING_SHARE = 0.2;
/** Of the grace, what may pass before whatever hangs is left behind. */
const CUT_OFF_SHARE = 0.95;

/** Runs until told to stop; returns the exit code. */
async function main(): Promise<number> {
  const config = readConfig();
  const log = createLog(config.logLevel);
  const signals = receiveSignals();
  const starting = new AbortController();
  void signals.first.then((signal) => {
    log.info({ signal }, 'stopping');
    starting.abort();
  });
  let embedded: EmbeddedPostgres | null = null;
  let code = 0;
  try {
    if (config.databaseUrl === null) embedded = await startEmbedded(config, log, starting.signal);
    code = await serve(config, config.databaseUrl ?? embedded?.url ?? '', log, signals);
  } catch (error) {
    // The embedded PostgreSQL was told to stop while it started, and did.
    if (error !== starting.signal.reason) throw error;
  } finally {
    await embedded?.stop();
  }
  log.info({}, 'stopped');
  return code;
}

/** Serves until the first signal, and ends gracefully for as long as it may; returns the exit code. */
async function serve(
  config: Config,
  databaseUrl: string,
  log: Log,
  signals: Signals,
): Promise<number> {
  const service = await Promise.race([
    startService({ config, databaseUrl, log, measuresProcess: true }),
    // Nothing of a start need be undone: what it holds of the database goes with the connection.
    signals.first.then(() => null),
  ]);
  if (service === null) return 0;
  log.info({ url: service.url }, 'listening');

  const grace = config.shutdownGraceMs;
  const drainMs =
    (await signals.first) === 'SIGTERM' ? Math.min(DRAIN_MS_MAX, grace * DRAIN_SHARE) : 0;
  const gracefully = service.stop({ drainMs, withinMs: grace * (1 - CLOSING_SHARE) });
  const cutOffWith = await Promise.race([
    gracefully.then(() => null),
    // Whatever hangs: what is not answered by then has not been promised to anyone.
    pause(grace * CUT_OFF_SHARE, 0),
    signals.second.then(() => 1),
  ]);
  if (cutOffWith !== null) log.warn({}, 'what is under way is cut off');
  return cutOffWith ?? 0;
}

interface Signals {
  first: Promise<NodeJS.Signals>;
  second: Promise<NodeJS.Signals>;
}

/** npm passes on the Ctrl-C that the terminal has sent to its children already. */
const PASSED_ON_WITHIN_MS = 300;

/** The signals to stop, from now on; a third one changes nothing. */
function receiveSignals(): Signals {
  const awaited: ((name: NodeJS.Signals) => void)[] = [];
  const next = () => new Promise<NodeJS.Signals>((resolve) => awaited.push(resolve));
  let receivedAt = -Infinity;
  const onSignal = (name: NodeJS.Signals) => {
    const isPassedOn = performance.now() < receivedAt + PASSED_ON_WITHIN_MS;
    receivedAt = performance.now();
    if (!isPassedOn) awaited.shift()?.(name);
  };
  process.on('SIGTERM', onSignal);
  process.on('SIGINT', onSignal);
  return { first: next(), second: next() };
}

async function startEmbedded(
  { dataDir }: Config,
  log: Log,
  signal: AbortSignal,
): Promise<EmbeddedPostgres> {
  const embedded = await startEmbeddedPostgres({
    dataDir,
    durable: true,
    signal,
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
  if (syscall === 'mkdir') return `DATA_DIR: is no folder that can be made or used (${code})`;
  if (syscall === 'listen') return `HOST, PORT: cannot be listened on (${code})`;
  const cause = error.cause instanceof Error ? `: ${error.cause.message}` : '';
  return `${error.message}${cause}`.replaceAll(/\s+/g, ' ');
}

try {
  process.exit(await main());
} catch (error) {
  process.stderr.write(`subagent-inbox cannot run: ${explain(error)}\n`);
  process.exit(1);
}
