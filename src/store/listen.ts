import { setTimeout as pause } from 'node:timers/promises';
import type { Connection } from './connection.ts';
import type { StoreLog } from './pool.ts';
import { StorageUnavailable } from './unavailable.ts';

export interface Listener {
  /** Resolves when no message will be delivered any more. */
  stop(): Promise<void>;
}

export interface ListenerOptions {
  channel: string;
  onMessage: (payload: string) => void;
  /** Called after each renewed LISTEN: messages may have been missed, so look at the tables. */
  onGap: () => void;
  connect: (onNotify: (channel: string, payload: string) => void) => Promise<Connection>;
  /** How often the connection is tried, and how long it may take to answer, in milliseconds. */
  heartbeatMs: number;
  answerDeadlineMs: number;
  log: StoreLog;
}

/** Between two attempts to listen again. */
const RELISTEN_PAUSE_MS = 500;

/**
 * Listens on a channel until stopped; rejects with StorageUnavailable if it cannot at first.
 *
 * A lost connection delivers nothing and says nothing, so each heartbeat demands an answer: a
 * silent partition is noticed within heartbeat plus deadline. Messages sent meanwhile are lost.
 */
export async function startListener(options: ListenerOptions): Promise<Listener> {
  const { channel, log } = options;
  const stopping = new AbortController();
  const { signal } = stopping;

  let connection = await establish();
  const living = keepAlive();

  async function establish(): Promise<Connection> {
    const fresh = await options.connect((_channel, payload) => deliver(payload));
    const quoted = `"${channel.replaceAll('"', '""')}"`;
    await answered(fresh, `listen ${quoted}`);
    return fresh;
  }

  async function keepAlive(): Promise<void> {
    while (!signal.aborted) {
      try {
        await beatUntilLost();
      } catch (error) {
        if (!signal.aborted) log.warn({ channel, err: error }, 'stopped hearing, listening again');
        await listenAgain();
      }
    }
    connection.end();
  }

  async function beatUntilLost(): Promise<void> {
    // The guard rejects at once when the connection is lost between two beats.
    await connection.guard(async () => {
      while (!signal.aborted) {
        await interruptiblePause(options.heartbeatMs);
        if (!signal.aborted) await answered(connection, 'select 1');
      }
    });
  }

  async function listenAgain(): Promise<void> {
    while (!signal.aborted) {
      try {
        connection = await establish();
        log.info({ channel }, 'listening again');
        guarded(options.onGap);
        return;
      } catch {
        await interruptiblePause(RELISTEN_PAUSE_MS);
      }
    }
  }

  async function answered(on: Connection, statement: string): Promise<void> {
    const deadline = setTimeout(
      () => on.destroy(new StorageUnavailable('deadline')),
      options.answerDeadlineMs,
    );
    try {
      await on.guard(async () => await on.sql.unsafe(statement));
    } catch (error) {
      const failure = new StorageUnavailable('unreachable', { cause: error });
      on.destroy(failure);
      throw error instanceof StorageUnavailable ? error : failure;
    } finally {
      clearTimeout(deadline);
    }
  }

  function deliver(payload: string): void {
    if (!signal.aborted) guarded(() => options.onMessage(payload));
  }

  /** What a receiver throws must not reach the driver's socket handler. */
  function guarded(receive: () => void): void {
    try {
      receive();
    } catch (error) {
      log.warn({ channel, err: error }, 'a receiver of notifications failed');
    }
  }

  async function interruptiblePause(milliseconds: number): Promise<void> {
    await pause(milliseconds, undefined, { ref: false, signal }).catch(() => {});
  }

  return {
    stop: async () => {
      stopping.abort();
      await living;
    },
  };
}
