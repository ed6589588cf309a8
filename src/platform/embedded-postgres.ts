import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, open, readFile, realpath, rename, stat, type FileHandle } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { ended, findBinaries, spawnProgram } from './embedded-postgres-binaries.ts';
import { DATABASE, disownPidFile, openCluster, readyPid } from './embedded-postgres-cluster.ts';
import type { Cluster } from './embedded-postgres-cluster.ts';
import { lockFolder } from './embedded-postgres-lock.ts';
import { stopCluster } from './embedded-postgres-processes.ts';

/** A PostgreSQL server of our own that runs, and is started again when it dies, until stopped. */
export interface EmbeddedPostgres {
  /**
   * What postgres.js and psql connect with, as the owner of the database `subagent_inbox`, who may
   * create others. Holds the password: not to be logged. Stays valid over restarts of the server.
   */
  readonly url: string;
  /** Stops the server and frees the folder; resolves when both are done. Safe to repeat. */
  stop(): Promise<void>;
}

interface EmbeddedPostgresOptions {
  /** Created when missing. One service at a time uses it; a second one is refused. */
  dataDir: string;
  /** False trades survival of a power failure for speed: for tests. */
  durable: boolean;
  /** Told, in a sentence without secrets, when the server died and what became of it. */
  notify?: (message: string) => void;
  /** Gives up the start: what of it runs is ended before it rejects with the signal's reason. */
  signal?: AbortSignal;
}

interface Server {
  port: number;
  /** How the postmaster ended: a signal or an exit code. */
  ended: Promise<string>;
}

const HOST = '127.0.0.1';
/**
 * Below the ranges from which systems hand out ports (Linux from 32768, macOS from 49152): a client
 * that reconnects in a loop can be handed the server's own port, and then holds it against it.
 */
const PORTS = { from: 20_000, to: 32_000 };
const PORT_ATTEMPTS = 10;
/** Recovery after a crash reads all WAL since the last checkpoint; minutes mean it is stuck. */
const START_LIMIT_MS = 180_000;
const READY_POLL_MS = 20;
/** A server that cannot be started again is tried until stopped, at most this far apart. */
const RESTART_DELAY_MS = { first: 100, longest: 5_000 };
/** The log is begun anew beyond this size, and the one before is kept. */
const LOG_LIMIT_BYTES = 5_000_000;
const PORT_TAKEN = /could not bind/;

/**
 * Starts the PostgreSQL that comes with the npm package on a folder, making the database on first
 * use and taking over from whatever a killed service left there. Throws when another service uses
 * the folder, when the platform has no such package, or with the server's own last words.
 */
export async function startEmbeddedPostgres(
  options: EmbeddedPostgresOptions,
): Promise<EmbeddedPostgres> {
  const { durable, signal: giveUp = new AbortController().signal } = options;
  // Others may pass through, because a service that is root runs the server as another user; what
  // must not be read is inside `postgres`, which only that user may enter.
  await mkdir(options.dataDir, { recursive: true, mode: 0o711 });
  const folder = await realpath(options.dataDir);
  const unlock = await lockFolder(folder);
  try {
    const cluster = await openCluster(await findBinaries(folder), folder, { durable, giveUp });
    const log = join(folder, 'postgres.log');
    const launch = (port: number, stopping: AbortSignal): Promise<Server> =>
      launchServer(cluster, { port, log, durable, stopping });
    const server = await launchOnFreePort((port) => launch(port, giveUp));
    const stopping = new AbortController();
    const supervision = keepRunning(server, {
      launch: (port) => launch(port, stopping.signal),
      stopping: stopping.signal,
      notify: options.notify ?? (() => {}),
    });
    const stop = async (): Promise<void> => {
      stopping.abort();
      await supervision;
      await stopCluster(cluster.name);
      await unlock();
    };
    let stopped: Promise<void> | undefined;
    return {
      url: `postgres://${DATABASE}:${cluster.password}@${HOST}:${server.port}/${DATABASE}`,
      stop: () => (stopped ??= stop()),
    };
  } catch (error) {
    await unlock();
    throw error;
  }
}

/** Starts the server again whenever it has ended; returns when told to stop. */
async function keepRunning(
  first: Server,
  {
    launch,
    stopping,
    notify,
  }: {
    launch: (port: number) => Promise<Server>;
    stopping: AbortSignal;
    notify: (message: string) => void;
  },
): Promise<void> {
  const told = once(stopping, 'abort');
  let server = first;
  for (;;) {
    const ending = await Promise.race([server.ended, told]);
    if (stopping.aborted) return;
    notify(`The embedded PostgreSQL ended by itself (${String(ending)}); starting it again`);
    const successor = await launchUntilItRuns();
    if (successor === undefined) return;
    server = successor;
    notify('The embedded PostgreSQL runs again');
  }

  async function launchUntilItRuns(): Promise<Server | undefined> {
    let pause = RESTART_DELAY_MS.first;
    for (;;) {
      // Also before the first attempt, so that a server that dies at once makes no busy loop.
      await delay(pause, undefined, { signal: stopping }).catch(() => {});
      if (stopping.aborted) return undefined;
      pause = Math.min(pause * 2, RESTART_DELAY_MS.longest);
      try {
        return await launch(first.port);
      } catch (error) {
        if (stopping.aborted) return undefined;
        notify(`The embedded PostgreSQL could not be started: ${(error as Error).message}`);
      }
    }
  }
}

async function launchOnFreePort(launch: (port: number) => Promise<Server>): Promise<Server> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await launch(await findFreePort());
    } catch (error) {
      // Another process took the port between the look and the start.
      if (attempt === PORT_ATTEMPTS || !PORT_TAKEN.test((error as Error).message)) throw error;
    }
  }
}

/** Starts the server and returns when it accepts connections; throws with its last words if not. */
async function launchServer(
  cluster: Cluster,
  {
    port,
    log,
    durable,
    stopping,
  }: { port: number; log: string; durable: boolean; stopping: AbortSignal },
): Promise<Server> {
  await stopCluster(cluster.name);
  await disownPidFile(cluster);
  stopping.throwIfAborted();

  const settings = {
    cluster_name: cluster.name,
    listen_addresses: HOST,
    port,
    // A socket's path has a limit of about 100 bytes, and postgres.js cannot be given one in a URL.
    unix_socket_directories: '',
    max_connections: 200,
    // Without failed statements, which the service hears of and which can hold its users' data.
    log_min_messages: 'log',
    log_checkpoints: 'off',
    ...(durable ? {} : { fsync: 'off', synchronous_commit: 'off', full_page_writes: 'off' }),
  };
  const args = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
  const output = await openLog(log);
  try {
    const { user } = cluster.binaries;
    // So that a folder of an ordinary user, once used by root, can be used by that user again.
    if (user !== undefined) await output.chown(user.uid, user.gid);
    const { size: before } = await output.stat();
    const child = spawnProgram(cluster.binaries, 'postgres', ['-D', cluster.pgdata, ...args], {
      stdio: ['ignore', output.fd, output.fd],
      // Ctrl-C in a terminal reaches the whole process group: the service shall end first.
      detached: true,
    });
    const server: Server = { port, ended: ended(child) };
    const deadline = performance.now() + START_LIMIT_MS;
    for (;;) {
      const ending = await Promise.race([server.ended, delay(READY_POLL_MS)]);
      if (typeof ending === 'string') {
        const lastWords = (await readFile(log)).subarray(before).toString().slice(-2000).trim();
        throw new Error(`PostgreSQL did not start (${ending}): ${lastWords}`);
      }
      if ((await readyPid(cluster)) === child.pid) return server;
      if (stopping.aborted || performance.now() > deadline) {
        await stopCluster(cluster.name);
        stopping.throwIfAborted();
        throw new Error(`PostgreSQL was not ready after ${START_LIMIT_MS / 1000} s; see ${log}`);
      }
    }
  } finally {
    await output.close();
  }
}

async function openLog(path: string): Promise<FileHandle> {
  const size = await stat(path).then(
    (it) => it.size,
    () => 0,
  );
  if (size > LOG_LIMIT_BYTES) await rename(path, `${path}.1`);
  return open(path, 'a', 0o600);
}

/** Chosen at random, so that two services that look at the same time seldom see the same one. */
async function findFreePort(): Promise<number> {
  for (let attempt = 1; attempt <= PORT_ATTEMPTS; attempt++) {
    const port = randomInt(PORTS.from, PORTS.to);
    if (await isFree(port)) return port;
  }
  throw new Error(`No free port found on ${HOST} for the embedded PostgreSQL`);
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const probe = createServer();
    probe.once('error', () => resolve(false));
    probe.listen(port, HOST, () => probe.close(() => resolve(true)));
  });
}
