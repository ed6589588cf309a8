import postgres from 'postgres';

/**
 * Why the database could not be used:
 * - `unreachable`: no connection could be made, or the one in use was lost
 * - `deadline`: no answer in time
 * - `saturated`: every connection was busy until the deadline
 * - `contended`: deadlocks, serialization failures or lock time-outs beyond the retries
 * - `refused`: the server answers, but cannot do the work now (disk full, read-only, shutting down)
 * - `closing`: this process is closing its connections
 */
export type UnavailableCode =
  'unreachable' | 'deadline' | 'saturated' | 'contended' | 'refused' | 'closing';

/**
 * The work was not done for a reason that lies with the database and will pass: answer 503.
 * With `outcome` 'unknown' the connection went while a COMMIT (or, outside a transaction, any
 * statement) was under way: it may have happened. The message names neither SQL nor parameters;
 * `cause` is the driver's error.
 */
export class StorageUnavailable extends Error {
  override readonly name = 'StorageUnavailable';
  readonly code: UnavailableCode;
  readonly sqlState: string | undefined;
  readonly outcome: 'not-done' | 'unknown';

  constructor(
    code: UnavailableCode,
    details: { cause?: unknown; outcome?: 'not-done' | 'unknown' } = {},
  ) {
    const sqlState = sqlStateOf(details.cause);
    const state = sqlState === undefined ? '' : `, SQLSTATE ${sqlState}`;
    super(
      `the database is unavailable (${code}${state})`,
      details.cause === undefined ? undefined : { cause: details.cause },
    );
    this.code = code;
    this.sqlState = sqlState;
    this.outcome = details.outcome ?? 'not-done';
  }
}

/**
 * What an answer of the server means for the work that got it:
 * - `retry`: run the whole transaction again
 * - `reconnect`: the connection is gone; run it again, once, on another one
 * - `unavailable`: StorageUnavailable
 * Anything not named (a violated constraint, a syntax error) belongs to the caller as it is.
 */
export type SqlStateMeaning = 'retry' | 'reconnect' | 'unavailable';

/** The one table of SQLSTATEs; a key of two characters stands for the rest of its class. */
const sqlStateMeanings: Readonly<Record<string, SqlStateMeaning>> = {
  '40001': 'retry', // serialization_failure
  '40P01': 'retry', // deadlock_detected
  '55P03': 'retry', // lock_not_available: lock_timeout, NOWAIT

  '57P01': 'reconnect', // admin_shutdown
  '57P02': 'reconnect', // crash_shutdown
  '57P05': 'reconnect', // idle_session_timeout
  '08': 'reconnect', // connection_exception

  '57P03': 'unavailable', // cannot_connect_now: starting up
  '57014': 'unavailable', // query_canceled: statement_timeout
  '25P03': 'unavailable', // idle_in_transaction_session_timeout
  '25P04': 'unavailable', // transaction_timeout
  '25006': 'unavailable', // read_only_sql_transaction: failed over to, or still on, a standby
  '53': 'unavailable', // insufficient_resources: disk full, out of memory, too many connections
  '58': 'unavailable', // system_error: I/O
};

/** The meaning of a SQLSTATE, or undefined when the error is the caller's own. */
export function meaningOf(sqlState: string): SqlStateMeaning | undefined {
  return sqlStateMeanings[sqlState] ?? sqlStateMeanings[sqlState.slice(0, 2)];
}

/**
 * The SQLSTATE that an error carries, also beneath drizzle's DrizzleQueryError (whose message holds
 * the SQL and its parameters: log the cause, not it).
 */
export function sqlStateOf(error: unknown): string | undefined {
  return serverErrorOf(error)?.code;
}

function serverErrorOf(error: unknown): postgres.PostgresError | undefined {
  for (let at = error; at instanceof Error; at = at.cause) {
    if (at instanceof postgres.PostgresError) return at;
  }
  return undefined;
}
