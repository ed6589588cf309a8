import net from 'node:net';
import postgres from 'postgres';
import { wireTypes } from './column-types.ts';
import { dial, type Target } from './dial.ts';
import { StorageUnavailable } from './unavailable.ts';

export interface ConnectionOptions {
  target: Target;
  /** How long connecting may take, in milliseconds. */
  connectDeadlineMs: number;
  /** Whether statements are prepared on the server. */
  prepare: boolean;
  /** Server settings of the session, sent with the start-up message. */
  settings: Readonly<Record<string, string>>;
  onNotify?: (channel: string, payload: string) => void;
}

/** One session on the server, used by one piece of work at a time. */
export interface Connection {
  /**
   * The driver's client, bound to this one connection: what is sent without awaiting goes out
   * together, and BEGIN may be sent like any statement.
   */
  readonly sql: postgres.Sql;
  readonly openedAt: number;
  /** Why it has ended; undefined while it is open. */
  ended(): StorageUnavailable | undefined;
  /** Runs work, and rejects at once when the connection ends first. */
  guard<T>(work: () => Promise<T>): Promise<T>;
  /** Cuts the connection now, whatever is under way on it: its pending queries reject. */
  destroy(reason: StorageUnavailable): void;
  /** Says good-bye to the server, for a connection that nobody uses. */
  end(): void;
}

/** Time zone and formats are what `column-types.ts` reads and writes. */
const wireFormats = { TimeZone: 'UTC', DateStyle: 'ISO', bytea_output: 'hex' };

/** How long a server may take to close its end after a good-bye. */
const GOODBYE_MS = 1_000;

/**
 * Opens a connection, or rejects with StorageUnavailable within the deadline.
 *
 * A client of postgres.js is made per connection and never reconnects. Left to itself the driver
 * reconnects for ever and without a pause when a server closes during start-up, lets queries wait
 * for ever on a silent one, stops flushing after some reconnects, and would carry on a transaction
 * on a new connection. Sockets, deadlines and pooling are ours; the protocol is the driver's.
 */
export async function openConnection(options: ConnectionOptions): Promise<Connection> {
  const watchers = new Set<(reason: StorageUnavailable) => void>();
  const sockets: net.Socket[] = [];
  let ended: StorageUnavailable | undefined;

  const sql = postgres(options.target.url, {
    ssl: false,
    max: 1,
    prepare: options.prepare,
    fetch_types: false,
    types: wireTypes,
    idle_timeout: 0,
    max_lifetime: null,
    connect_timeout: 0,
    keep_alive: 30,
    onnotice: () => {},
    connection: { application_name: 'subagent-inbox', ...wireFormats, ...options.settings },
    onclose: () => destroy(new StorageUnavailable('unreachable')),
    // These two are read by the driver and missing from its typings.
    ...({ socket: connectOnce, onnotify: options.onNotify } as object),
  });

  async function connectOnce(): Promise<net.Socket> {
    if (sockets.length > 0 || ended !== undefined) return failedSocket();
    const dialled = await dial(options.target, (socket) => {
      sockets.push(socket);
      socket.on('error', (cause) => destroy(new StorageUnavailable('unreachable', { cause })));
      socket.on('close', () => destroy(new StorageUnavailable('unreachable')));
    });
    gatherWrites(dialled);
    return dialled;
  }

  function destroy(reason: StorageUnavailable): void {
    if (ended !== undefined) return;
    ended = reason;
    for (const socket of sockets.toReversed()) socket.destroy();
    // Rejects what was queued between the loss and the driver's notice of it.
    void sql.end({ timeout: 0 });
    for (const reject of watchers) reject(reason);
    watchers.clear();
  }

  function guard<T>(work: () => Promise<T>): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      if (ended !== undefined) return reject(ended);
      watchers.add(reject);
      work()
        .then(resolve, reject)
        .finally(() => watchers.delete(reject));
    });
  }

  function end(): void {
    if (ended !== undefined) return;
    ended = new StorageUnavailable('closing');
    void sql.end({ timeout: 0 });
    const socket = sockets.at(-1);
    const goodbye = setTimeout(() => socket?.destroy(), GOODBYE_MS);
    goodbye.unref();
    socket?.once('close', () => clearTimeout(goodbye));
  }

  const deadline = setTimeout(
    () => destroy(new StorageUnavailable('deadline')),
    options.connectDeadlineMs,
  );
  try {
    await guard(async () => await sql.unsafe('select 1'));
  } catch (error) {
    const failure =
      error instanceof StorageUnavailable
        ? error
        : new StorageUnavailable('unreachable', { cause: error });
    destroy(failure);
    throw failure;
  } finally {
    clearTimeout(deadline);
  }

  return { sql, openedAt: performance.now(), ended: () => ended, guard, destroy, end };
}

/**
 * Sends what belongs together as one packet: the driver writes each statement by itself and a short
 * one with the next turn of the event loop, and each write is a system call that wakes the server up
 * for a part of what it is about to get. For a socket that connects already: `connect` puts Node's
 * own `write` back.
 */
function gatherWrites(socket: net.Socket): void {
  const write = socket.write.bind(socket) as (...args: unknown[]) => boolean;
  let gathering = false;
  const flush = () => {
    gathering = false;
    socket.uncork();
  };
  socket.write = (...args: unknown[]) => {
    if (!gathering) {
      gathering = true;
      socket.cork();
      setImmediate(flush);
    }
    return write(...args);
  };
}

/** What the driver gets when it would reconnect: a socket that fails as soon as it is listened to. */
function failedSocket(): net.Socket {
  const socket = new net.Socket();
  setImmediate(() => socket.destroy(new Error('the connection was lost')));
  return socket;
}

/** Whether an error tells of a lost connection rather than of a statement. */
export function isConnectionError(error: unknown): boolean {
  for (let at = error; at instanceof Error; at = at.cause) {
    const { code, syscall } = at as NodeJS.ErrnoException;
    if (syscall !== undefined || code?.startsWith('CONNECTION_') || code?.startsWith('ERR_')) {
      return true;
    }
  }
  return false;
}
