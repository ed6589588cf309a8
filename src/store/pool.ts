import { setTimeout as pause } from 'node:timers/promises';
import type { Connection } from './connection.ts';
import { StorageUnavailable } from './unavailable.ts';

/** What pool and watchdog say about themselves; pino's logger is one. */
export interface StoreLog {
  info(details: object, message: string): void;
  warn(details: object, message: string): void;
}

export interface Pool {
  /**
   * A connection for the caller alone; rejects with StorageUnavailable: at once when the database
   * is known to be down, and as `saturated` when none became free in time.
   */
  acquire(signal: AbortSignal): Promise<Connection>;
  /** Takes a connection back that is known to be clean, or has ended. */
  release(connection: Connection): void;
  /** Replaces every connection: idle ones now, those in use when they come back. */
  replace(): void;
  /** Rejects whoever waits for a connection. */
  rejectWaiters(reason: StorageUnavailable): void;
  /** Resolves when all that is in use has come back and every connection is closed. */
  close(): Promise<void>;
}

export interface PoolOptions {
  size: number;
  connect: () => Promise<Connection>;
  watchdog: Watchdog;
}

/** Servers and poolers keep memory per session; half an hour bounds it, and follows a moved DNS name. */
const CONNECTION_LIFETIME_MS = 30 * 60_000;
/** More would miss the deadline anyway: refuse them while refusing is cheap. */
const WAITERS_PER_CONNECTION = 100;
/** After the server had no connection left for us, how long to live with those we have. */
const FULL_SERVER_PAUSE_MS = 1_000;

interface Waiter {
  resolve: (connection: Connection) => void;
  reject: (reason: StorageUnavailable) => void;
}

/** Keeps up to `size` connections, opened when first needed and handed out one caller at a time. */
export function openPool({ size, connect, watchdog }: PoolOptions): Pool {
  const idle: Connection[] = [];
  const inUse = new Set<Connection>();
  const retired = new WeakSet<Connection>();
  const waiters = new Set<Waiter>();
  let opening = 0;
  let mayOpenAt = 0;
  let closing: { done: () => void } | undefined;

  async function acquire(signal: AbortSignal): Promise<Connection> {
    if (closing !== undefined) throw new StorageUnavailable('closing');
    const down = watchdog.down();
    if (down !== undefined) throw down;
    if (waiters.size >= size * WAITERS_PER_CONNECTION) throw new StorageUnavailable('saturated');
    signal.throwIfAborted();

    return await new Promise<Connection>((resolve, reject) => {
      const onAbort = () => waiter.reject(new StorageUnavailable('saturated'));
      const waiter: Waiter = {
        resolve: (connection) => {
          forget();
          resolve(connection);
        },
        reject: (reason) => {
          forget();
          reject(reason);
        },
      };
      const forget = () => {
        waiters.delete(waiter);
        signal.removeEventListener('abort', onAbort);
      };
      signal.addEventListener('abort', onAbort, { once: true });
      waiters.add(waiter);
      serve();
    });
  }

  function serve(): void {
    for (const waiter of waiters) {
      const connection = takeIdle();
      if (connection === undefined) break;
      inUse.add(connection);
      waiter.resolve(connection);
    }
    const mayOpen = size - idle.length - inUse.size - opening;
    const wanted = waiters.size - opening;
    if (performance.now() < mayOpenAt) return;
    for (let opened = 0; opened < Math.min(mayOpen, wanted); opened++) void open();
  }

  /** The one used last, so that the rest may grow old. */
  function takeIdle(): Connection | undefined {
    for (;;) {
      const connection = idle.pop();
      if (connection?.ended() === undefined) return connection;
    }
  }

  async function open(): Promise<void> {
    opening++;
    try {
      const connection = await connect();
      opening--;
      put(connection);
    } catch (error) {
      opening--;
      refuse(error as StorageUnavailable);
      endClosing();
    }
  }

  function refuse(failure: StorageUnavailable): void {
    const serverIsFull = failure.sqlState === '53300';
    if (serverIsFull && inUse.size + idle.length > 0) {
      mayOpenAt = performance.now() + FULL_SERVER_PAUSE_MS;
      return;
    }
    watchdog.failed(failure);
  }

  function put(connection: Connection): void {
    const old = performance.now() - connection.openedAt > CONNECTION_LIFETIME_MS;
    if (old || closing !== undefined || retired.has(connection)) connection.end();
    if (connection.ended() === undefined) idle.push(connection);
    endClosing();
    serve();
  }

  function endClosing(): void {
    if (inUse.size + opening === 0) closing?.done();
  }

  function release(connection: Connection): void {
    inUse.delete(connection);
    put(connection);
  }

  function replace(): void {
    for (const connection of idle.splice(0)) connection.end();
    for (const connection of inUse) retired.add(connection);
  }

  function rejectWaiters(reason: StorageUnavailable): void {
    for (const waiter of waiters) waiter.reject(reason);
  }

  async function close(): Promise<void> {
    if (closing !== undefined) return;
    const drained = new Promise<void>((done) => {
      closing = { done };
    });
    rejectWaiters(new StorageUnavailable('closing'));
    replace();
    if (inUse.size + opening > 0) await drained;
  }

  return { acquire, release, replace, rejectWaiters, close };
}

export interface Watchdog {
  /** Why nothing should be tried now; undefined while the database is believed to be up. */
  down(): StorageUnavailable | undefined;
  /** No connection could be opened: nothing is tried until the probe has succeeded. */
  failed(reason: StorageUnavailable): void;
  /** A deadline was missed, or a server turned read-only: look whether the database is there. */
  suspect(): void;
  stop(): void;
}

/** Between two probes of a database that is down. Each is one connection, so no storm. */
const PROBE_PAUSE_MS = 250;

/**
 * Knows whether the database is down and finds out when it is back, so that callers are refused at
 * once meanwhile and none of them is spent on finding out.
 */
export function watchDatabase(options: {
  /** Opens a connection and closes it again; rejects with StorageUnavailable within a deadline. */
  probe: () => Promise<void>;
  onSuspicion: () => void;
  onDown: (reason: StorageUnavailable) => void;
  log: StoreLog;
}): Watchdog {
  const stopping = new AbortController();
  let reason: StorageUnavailable | undefined;
  let watching = false;

  async function watchUntilUp(): Promise<void> {
    if (watching) return;
    watching = true;
    if (reason !== undefined) await pauseBeforeProbe();
    while (!stopping.signal.aborted) {
      try {
        await options.probe();
        if (reason !== undefined) options.log.info({}, 'the database is back');
        reason = undefined;
        break;
      } catch (error) {
        goDown(error as StorageUnavailable);
      }
      await pauseBeforeProbe();
    }
    watching = false;
  }

  async function pauseBeforeProbe(): Promise<void> {
    const until = { ref: false, signal: stopping.signal };
    await pause(PROBE_PAUSE_MS, undefined, until).catch(() => {});
  }

  function goDown(failure: StorageUnavailable): void {
    if (stopping.signal.aborted) return;
    if (reason === undefined) {
      options.log.warn({ code: failure.code, err: failure }, 'the database is down');
    }
    // Refusals made while it is down did not reach it, whatever became of the work that found out.
    reason = new StorageUnavailable(failure.code, { cause: failure.cause });
    options.onDown(reason);
  }

  return {
    down: () => reason,
    failed: (failure) => {
      goDown(failure);
      void watchUntilUp();
    },
    suspect: () => {
      options.onSuspicion();
      void watchUntilUp();
    },
    stop: () => stopping.abort(),
  };
}
