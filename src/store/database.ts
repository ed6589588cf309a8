import { setTimeout as pause } from 'node:timers/promises';
import { DrizzleQueryError } from 'drizzle-orm';
import { drizzle, type PostgresJsDatabase } from 'drizzle-orm/postgres-js';
import postgres from 'postgres';
import { arrayLiteral } from './column-types.ts';
import { isConnectionError, openConnection, type Connection } from './connection.ts';
import { readDatabaseUrl } from './dial.ts';
import { startListener, type Listener } from './listen.ts';
import { openPool, watchDatabase, type Pool, type StoreLog } from './pool.ts';
import { meaningOf, StorageUnavailable } from './unavailable.ts';

export type { Listener } from './listen.ts';
export type { StoreLog } from './pool.ts';
export { StorageUnavailable } from './unavailable.ts';

/**
 * Every access to PostgreSQL. Whatever the server or the network does, each call settles within its
 * deadline; when that is the database's fault it rejects with StorageUnavailable, and while the
 * database is known to be down it does so at once. Errors of a statement (a violated constraint)
 * come through as the server's own, with `code`.
 */
export interface Database {
  /**
   * Runs statements outside a transaction, each committed on its own and never repeated: after
   * StorageUnavailable with outcome 'unknown' any of them may have happened.
   */
  run<T>(work: (db: Queryable) => Promise<T>): Promise<T>;

  /**
   * Runs work in one transaction, committed when it returns and rolled back when it throws. Work is
   * run again from the start on the errors that `sqlStateMeanings` calls `retry`, and once when the
   * connection is lost before COMMIT was sent: it must reach nothing outside the transaction.
   */
  transaction<T>(work: (tx: Queryable) => Promise<T>, options?: TransactionOptions): Promise<T>;

  /**
   * Runs work in one transaction on a connection of the ingest path, held to index plans. BEGIN
   * goes out with the first statements, so a load and a commit are two round trips. Work may be run
   * a second time if the connection is lost before COMMIT was sent; conflicts are not retried.
   */
  lane<T>(work: (lane: Lane) => Promise<T>): Promise<T>;

  /**
   * Calls `onMessage` for what is notified on the channel, and `onGap` whenever some may have been
   * missed (after each renewed LISTEN, not after the first). Rejects if it cannot listen at first.
   */
  listen(
    channel: string,
    onMessage: (payload: string) => void,
    onGap: () => void,
  ): Promise<Listener>;

  /** Whether a statement can be run, known within the deadline. */
  ping(): Promise<boolean>;

  /** Refuses new work, waits for what is under way (each within its deadline), closes everything. */
  close(): Promise<void>;
}

/**
 * Drizzle's builders over one connection; statements are prepared.
 *
 * A builder is a lazy thenable: without `await` it is never sent, and nothing says so (oxlint's
 * no-floating-promises with checkThenables does). Do not build statements of varying text
 * (`inArray`): each text is prepared once per connection and kept; use `= any(array)`.
 */
export type Queryable = Pick<
  PostgresJsDatabase,
  | 'select'
  | 'selectDistinct'
  | 'selectDistinctOn'
  | 'insert'
  | 'update'
  | 'delete'
  | 'execute'
  | 'with'
  | '$with'
  | '$count'
>;

export interface TransactionOptions {
  /** Over all attempts, in milliseconds; queryDeadlineMs when not given. */
  deadlineMs?: number;
}

/** A transaction of the ingest path. */
export interface Lane {
  /**
   * Prepares a statement and sends it when it is awaited; statements that do not wait for each
   * other (Promise.all) go out together. An array is one parameter, to be cast:
   * `unnest(${ids}::text[], ${times}::timestamptz[])`. Instants are milliseconds, jsonb is JSON
   * text, and jsonb[] as well as arrays of them may contain null.
   */
  sql: LaneSql;
  /**
   * Sends COMMIT along with the last statements and resolves with their result once both are done.
   * They must all be sent without waiting for an answer: a statement that comes later is refused,
   * and what came before is committed.
   */
  commit: <T>(last: PromiseLike<T>) => Promise<T>;
}

export interface LaneSql {
  <Rows extends readonly (object | undefined)[] = postgres.Row[]>(
    text: TemplateStringsArray,
    ...parameters: readonly postgres.ParameterOrFragment<never>[]
  ): postgres.PendingQuery<Rows>;
  /** A quoted identifier. */
  (identifier: string): postgres.Helper<string>;
}

export interface DatabaseOptions {
  /** See `readDatabaseUrl`; further parameters are settings of every session. */
  url: string;
  /** Where `listen` connects, past a pooler that cannot; default: as `url`. */
  listenUrl?: string;
  /** Connections for `run` and `transaction`; default 10. */
  poolSize?: number;
  /** Connections for `lane`; default LANES. */
  lanes?: number;
  /** The time each call may take, in milliseconds; default 4000, to answer HTTP within five seconds. */
  queryDeadlineMs?: number;
  /** Off for poolers that cannot keep prepared statements; default on. */
  prepare?: boolean;
  /** Between two heartbeats of a listener, in milliseconds; default 5000. */
  heartbeatMs?: number;
  log: StoreLog;
}

/** How many transactions of the ingest path run at once; the queue of reports shares them out. */
export const LANES = 4;

/** Conflicts pass quickly: after five attempts it is load, and the client should wait. */
const TRANSACTION_ATTEMPTS = 5;
/** Up to this long before the second attempt; doubled for each further one. */
const RETRY_PAUSE_MS = 10;

/** Part of the deadline after which a further attempt would more likely miss it than succeed. */
const RETRY_SHARE = 0.5;

/** The protocol counts the parameters of a statement in 16 bits. */
const PARAMETERS_MAX = 65_533;

/**
 * Every statement is over a few keys: planned on tables that are empty or small, it would read them
 * whole, row by row of what it is about.
 */
const planning = {
  enable_seqscan: 'off',
  enable_hashjoin: 'off',
  enable_mergejoin: 'off',
  // A disabled plan looks so costly that it would be compiled.
  jit: 'off',
};

/**
 * In a table of a few rows any index will do, also one that only leads to all of the tenant: a plan
 * that is kept reads as much when there are thousands, until the next ANALYZE. So plans are made for
 * each call, which takes 0.1 ms on average.
 */
const poolPlanning = { ...planning, plan_cache_mode: 'force_custom_plan' };

/** The ingest's plans are large (4 ms a batch): these are kept, but not for long. */
const lanePlanning = { ...planning, plan_cache_mode: 'force_generic_plan' };
const LANE_PLANS_MS = 1_000;

/** Prepares access to the database, connecting when first needed; throws on a URL it cannot read. */
export function openDatabase(options: DatabaseOptions): Database {
  const { log } = options;
  const target = readDatabaseUrl(options.url);
  const listenTarget = readDatabaseUrl(options.listenUrl ?? options.url);
  const deadlineMs = options.queryDeadlineMs ?? 4_000;
  const prepare = options.prepare ?? true;
  const heartbeatMs = options.heartbeatMs ?? 5_000;

  // The server gives up before we do: its answer says why and leaves the connection usable.
  const connectDeadlineMs = Math.ceil(deadlineMs * 0.75);
  const timeouts = {
    statement_timeout: String(Math.ceil(deadlineMs * 0.75)),
    idle_in_transaction_session_timeout: String(Math.ceil(deadlineMs * 0.75)),
    // Leaves time for a second attempt.
    lock_timeout: String(Math.ceil(deadlineMs * 0.375)),
  };
  const connect = (
    settings: Readonly<Record<string, string>>,
    onNotify?: (channel: string, payload: string) => void,
  ) =>
    openConnection({
      target: onNotify === undefined ? target : listenTarget,
      connectDeadlineMs,
      prepare,
      settings,
      ...(onNotify === undefined ? {} : { onNotify }),
    });

  const watchdog = watchDatabase({
    probe: async () => (await connect(timeouts)).end(),
    onSuspicion: () => pools.forEach((each) => each.replace()),
    onDown: (reason) => pools.forEach((each) => each.rejectWaiters(reason)),
    log,
  });
  const pool = openPool({
    size: options.poolSize ?? 10,
    connect: () => connect({ ...timeouts, ...poolPlanning }),
    watchdog,
  });
  const lanes = openPool({
    size: options.lanes ?? LANES,
    connect: () => connect({ ...timeouts, ...lanePlanning }),
    watchdog,
  });
  const pools = [pool, lanes];
  const listeners = new Set<Listener>();
  let closing = false;

  /** Attempts until the work is done, has failed for good, or the deadline has passed. */
  async function perform<T>(
    from: Pool,
    limits: { deadlineMs: number; attempts: number },
    attempt: (connection: Connection, progress: Progress) => Promise<T>,
  ): Promise<T> {
    const deadline = new AbortController();
    const timer = setTimeout(() => deadline.abort(), limits.deadlineMs);
    const retryUntil = performance.now() + limits.deadlineMs * RETRY_SHARE;
    let mayReconnect = true;
    try {
      for (let attempts = 1; ; attempts++) {
        const progress: Progress = { started: false, mayHaveHappened: false };
        try {
          return await performOnce(from, deadline.signal, progress, attempt);
        } catch (error) {
          const failure = judgeFailure(error, progress);
          if (failure.readOnly) watchdog.suspect();
          if (failure.next === 'reconnect' && mayReconnect) {
            mayReconnect = false;
          } else if (
            failure.next !== 'retry' ||
            attempts >= limits.attempts ||
            performance.now() > retryUntil
          ) {
            throw failure.error;
          }
          await pauseBeforeRetry(attempts, deadline.signal, failure.error);
        }
      }
    } finally {
      clearTimeout(timer);
    }
  }

  async function performOnce<T>(
    from: Pool,
    deadline: AbortSignal,
    progress: Progress,
    attempt: (connection: Connection, progress: Progress) => Promise<T>,
  ): Promise<T> {
    const connection = await from.acquire(deadline);
    const giveUp = () => {
      connection.destroy(new StorageUnavailable('deadline'));
      watchdog.suspect();
    };
    deadline.addEventListener('abort', giveUp, { once: true });
    progress.started = true;
    try {
      return await connection.guard(() => attempt(connection, progress));
    } catch (error) {
      if (isConnectionError(error)) {
        connection.destroy(new StorageUnavailable('unreachable', { cause: bare(error) }));
      }
      throw error;
    } finally {
      deadline.removeEventListener('abort', giveUp);
      from.release(connection);
    }
  }

  const once = { deadlineMs, attempts: 1 };

  return {
    run: (work) =>
      perform(pool, once, async (connection, progress) => {
        progress.mayHaveHappened = true;
        return await inScope(connection, (scope) => work(queryable(connection, scope, prepare)));
      }),

    transaction: (work, given) =>
      perform(
        pool,
        { deadlineMs: given?.deadlineMs ?? deadlineMs, attempts: TRANSACTION_ATTEMPTS },
        async (connection, progress) =>
          await inTransaction(connection, progress, ({ scope }) =>
            work(queryable(connection, scope, prepare)),
          ),
      ),

    lane: (work) =>
      perform(
        lanes,
        once,
        async (connection, progress) =>
          await inTransaction(connection, progress, ({ scope, commit }) => {
            forgetOldPlans(connection);
            return work({ sql: laneSql(connection, scope), commit });
          }),
      ),

    listen: async (channel, onMessage, onGap) => {
      if (closing) throw new StorageUnavailable('closing');
      const listener = await startListener({
        channel,
        onMessage,
        onGap,
        connect: (onNotify) => connect({}, onNotify),
        heartbeatMs,
        answerDeadlineMs: connectDeadlineMs,
        log,
      });
      listeners.add(listener);
      return {
        stop: async () => {
          listeners.delete(listener);
          await listener.stop();
        },
      };
    },

    ping: () =>
      perform(pool, once, async ({ sql }) => await sql.unsafe('select 1')).then(
        () => true,
        () => false,
      ),

    close: async () => {
      closing = true;
      watchdog.stop();
      await Promise.all([...listeners].map((listener) => listener.stop()));
      await Promise.all(pools.map((each) => each.close()));
    },
  };
}

/** How far an attempt has come, for the judgement of its failure. */
interface Progress {
  /** Whether a connection was handed to it. */
  started: boolean;
  /** Whether something was sent that takes effect by itself: COMMIT, or a statement of `run`. */
  mayHaveHappened: boolean;
}

interface Failure {
  /** What the caller gets if nothing is tried again. */
  error: unknown;
  next?: 'retry' | 'reconnect';
  readOnly?: boolean;
}

function judgeFailure(error: unknown, progress: Progress): Failure {
  const cause = bare(error);
  const again = progress.started && !progress.mayHaveHappened;

  if (cause instanceof StorageUnavailable) {
    const outcome = progress.mayHaveHappened ? 'unknown' : 'not-done';
    const lost = cause.code === 'unreachable' && again;
    return {
      error: new StorageUnavailable(cause.code, { cause: cause.cause ?? cause, outcome }),
      ...(lost ? { next: 'reconnect' } : {}),
    };
  }
  if (cause instanceof postgres.PostgresError) {
    // An ERROR ends the statement; with FATAL and PANIC the session goes, and a COMMIT may be done.
    const ended = cause.severity !== 'ERROR';
    const outcome = ended && progress.mayHaveHappened ? 'unknown' : 'not-done';
    switch (meaningOf(cause.code)) {
      case 'retry':
        return { error: new StorageUnavailable('contended', { cause }), next: 'retry' };
      case 'reconnect':
        return {
          error: new StorageUnavailable('unreachable', { cause, outcome }),
          ...(again ? { next: 'reconnect' } : {}),
        };
      case 'unavailable':
        return {
          error: new StorageUnavailable('refused', { cause, outcome }),
          readOnly: cause.code === '25006',
        };
      case undefined:
        return { error: cause };
    }
  }
  if (isConnectionError(cause)) {
    return judgeFailure(new StorageUnavailable('unreachable', { cause }), progress);
  }
  return { error: cause };
}

/** Without drizzle's wrapping, whose message holds the SQL and its parameters. */
function bare(error: unknown): unknown {
  return error instanceof DrizzleQueryError ? (error.cause ?? error) : error;
}

async function pauseBeforeRetry(
  attempts: number,
  deadline: AbortSignal,
  failure: unknown,
): Promise<void> {
  // Two that collided must not come back at the same moment, so it is random.
  const milliseconds = Math.random() * RETRY_PAUSE_MS * 2 ** (attempts - 1);
  await pause(milliseconds, undefined, { signal: deadline }).catch(() => {
    throw failure;
  });
}

const plannedAt = new WeakMap<Connection, number>();

/** Not awaited: it goes out with BEGIN, and where it fails all else of the transaction does. */
function forgetOldPlans(connection: Connection): void {
  const now = performance.now();
  if (now - (plannedAt.get(connection) ?? connection.openedAt) < LANE_PLANS_MS) return;
  plannedAt.set(connection, now);
  connection.sql.unsafe('discard plans').catch(() => {});
}

/** While it is open statements may be sent; afterwards the connection may be someone else's. */
interface Scope {
  assertOpen(): void;
}

/** Runs work, and leaves the connection clean or ended. */
async function inScope<T>(connection: Connection, work: (scope: Scope) => Promise<T>): Promise<T> {
  let open = true;
  const assertOpen = () => {
    if (!open) throw new Error('a statement was sent after its transaction: an await is missing');
  };
  try {
    return await work({ assertOpen });
  } catch (error) {
    open = false;
    await clean(connection);
    throw error;
  } finally {
    open = false;
  }
}

/**
 * Ends whatever transaction is open. Being answered last it also tells that nothing of the failed
 * work is still under way on the connection.
 */
async function clean(connection: Connection): Promise<void> {
  try {
    await connection.sql.unsafe('rollback');
  } catch (cause) {
    connection.destroy(new StorageUnavailable('unreachable', { cause }));
  }
}

async function inTransaction<T>(
  connection: Connection,
  progress: Progress,
  work: (transaction: { scope: Scope; commit: Lane['commit'] }) => Promise<T>,
): Promise<T> {
  const { sql } = connection;
  return await inScope(connection, async (connectionScope) => {
    // Not awaited: it goes out with the first statements.
    let beginFailure: unknown;
    const begun = sql.unsafe('begin').execute();
    begun.catch((error: unknown) => (beginFailure = error));

    const scope: Scope = {
      assertOpen: () => {
        connectionScope.assertOpen();
        // Statements would now take effect one by one.
        if (beginFailure !== undefined) throw beginFailure;
        if (progress.mayHaveHappened) throw new Error('a statement was sent after COMMIT');
      },
    };
    const commit = async <V>(last: PromiseLike<V>): Promise<V> => {
      scope.assertOpen();
      const sent = Promise.resolve(last);
      let failed = false;
      sent.catch(() => (failed = true));
      // Statements reach the driver within microtasks, its socket with the next turn: in between.
      await new Promise((resolve) => process.nextTick(resolve));
      // A statement that could not even be sent fails nothing on the server.
      if (failed) return await sent;
      scope.assertOpen();
      progress.mayHaveHappened = true;
      const committed = sql.unsafe('commit').execute();
      // Both settle before either is looked at, and a failed statement is reported rather than its
      // consequence: the server answers COMMIT of a failed transaction with success and ROLLBACK.
      const [result, end] = await Promise.allSettled([sent, committed]);
      if (result.status === 'rejected') throw result.reason;
      if (end.status === 'rejected') throw end.reason;
      if (end.value.command !== 'COMMIT') {
        throw new Error('work went on after a statement of its transaction had failed');
      }
      return result.value;
    };

    const value = await work({ scope, commit });
    if (!progress.mayHaveHappened) {
      await begun;
      await commit(Promise.resolve());
    }
    return value;
  });
}

/**
 * Drizzle sends unprepared statements of two round trips each, and changes the date parsers of the
 * client it is given: so it is given this, which prepares, and keeps the driver's client unchanged.
 */
function queryable(connection: Connection, scope: Scope, prepare: boolean): Queryable {
  const client = {
    options: { parsers: {}, serializers: {} },
    unsafe: (text: string, parameters: unknown[]) => {
      scope.assertOpen();
      if (parameters.length > PARAMETERS_MAX) throw new TypeError('too many statement parameters');
      const sendable = parameters.map(toSendable) as never[];
      return connection.sql.unsafe(text, sendable, { prepare, simple: false } as object);
    },
  };
  return drizzle({ client: client as unknown as postgres.Sql });
}

function laneSql(connection: Connection, scope: Scope): LaneSql {
  const send = (text: TemplateStringsArray | string, ...parameters: never[]) => {
    scope.assertOpen();
    if (typeof text === 'string') return connection.sql(text);
    return connection.sql(text, ...(parameters.map(toSendable) as never[]));
  };
  return send as LaneSql;
}

/**
 * Refuses what the driver would stumble over while it sends: it then rejects another statement than
 * the one at fault and hands all later answers of the connection to the wrong callers. Arrays are
 * written out where the driver would declare the type of the first element as that of the whole.
 */
function toSendable(parameter: unknown): unknown {
  if (Array.isArray(parameter)) {
    parameter.forEach(assertSendable);
    return arrayLiteral(parameter);
  }
  assertSendable(parameter);
  return parameter;
}

function assertSendable(parameter: unknown): void {
  if (isSendable(parameter)) return;
  throw new TypeError(`not a statement parameter: ${typeof parameter} (pass jsonb as text)`);
}

function isSendable(parameter: unknown): boolean {
  if (parameter instanceof Date) return !Number.isNaN(parameter.getTime());
  if (typeof parameter !== 'object' || parameter === null) {
    return !['undefined', 'function', 'symbol'].includes(typeof parameter);
  }
  return Object.getPrototypeOf(parameter) !== Object.prototype;
}
