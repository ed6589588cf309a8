import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { sql } from 'drizzle-orm';
import { readMigrationFiles } from 'drizzle-orm/migrator';
import { drizzle } from 'drizzle-orm/postgres-js';
import { migrate as migrateWithDrizzle } from 'drizzle-orm/postgres-js/migrator';
import { openConnection, type Connection } from './connection.ts';
import type { Database } from './database.ts';
import { readDatabaseUrl } from './dial.ts';
import type { StoreLog } from './pool.ts';
import { sqlStateOf, StorageUnavailable } from './unavailable.ts';

export interface MigrateOptions {
  /** Must reach the server itself: a transaction pooler gives the lock to anybody. */
  url: string;
  /** A folder of drizzle-kit: numbered SQL files and `meta/_journal.json`. */
  folder: string;
  /** How long to wait for another process that migrates; default 60000. */
  lockWaitMs?: number;
  /** How long to wait for a server that is not up yet; default 15000. */
  startWaitMs?: number;
  log: StoreLog;
}

/** The database and the migrations of this code do not fit; `message` says what to do. */
export class MigrationRefused extends Error {
  override readonly name = 'MigrationRefused';
  readonly code: 'newer-schema' | 'skipped-migration' | 'locked';

  constructor(code: MigrationRefused['code'], message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.code = code;
  }
}

export interface MigrationsState {
  /** Tags that the database lacks. */
  pending: string[];
  /** Hashes of applied migrations that this code does not know: a newer release has migrated. */
  unknown: string[];
}

/** `subagent` in ASCII: any number that nothing else locks. */
const MIGRATION_LOCK = '8319664057122909812';
/** Between two attempts to reach a server that is not up yet. */
const START_PAUSE_MS = 200;
const CONNECT_DEADLINE_MS = 5_000;

/**
 * Brings the database to the schema of this code, or rejects and leaves it as it was. Any number of
 * processes may start at once: one migrates, the others wait for it.
 *
 * Pending migrations run in one transaction, so none may CREATE INDEX CONCURRENTLY. A database that
 * is up to date is only read, which a role without rights to create may do.
 */
export async function migrate(options: MigrateOptions): Promise<void> {
  const { folder, log } = options;
  const known = readMigrations(folder);
  const connection = await connectWhenStarted(options);
  try {
    // A lost connection must end the wait: the migrator knows no deadline, and needs none.
    await connection.guard(async () => {
      if (mustMigrate(known, await readApplied(connection))) {
        await lockMigrations(connection);
        const pending = mustMigrate(known, await readApplied(connection));
        if (!pending) return;
        await migrateWithDrizzle(drizzle(connection.sql), { migrationsFolder: folder });
        assertAllApplied(known, await readApplied(connection));
        log.info({ migrations: pending.map(({ tag }) => tag) }, 'the database was migrated');
      }
    });
  } finally {
    // Ends the session, and with it the lock.
    connection.end();
  }
}

/** Compares the database with the migrations in the folder; ready when both lists are empty. */
export async function migrationsState(
  database: Database,
  folder: string,
): Promise<MigrationsState> {
  const known = readMigrations(folder);
  const applied = await database.run(async (db) => {
    const [found] = await db.execute<{ exists: boolean }>(
      sql`select to_regclass('drizzle.__drizzle_migrations') is not null as exists`,
    );
    if (!found?.exists) return [];
    return await db.execute<Applied>(
      sql`select hash, created_at from drizzle.__drizzle_migrations`,
    );
  });
  return compare(known, applied);
}

interface Migration {
  tag: string;
  when: number;
  hash: string;
}

type Applied = { hash: string; created_at: number };

function readMigrations(folder: string): Migration[] {
  const journal = JSON.parse(readFileSync(join(folder, 'meta', '_journal.json'), 'utf8')) as {
    entries: { tag: string }[];
  };
  return readMigrationFiles({ migrationsFolder: folder }).map(({ folderMillis, hash }, at) => ({
    tag: journal.entries[at]?.tag ?? String(at),
    when: folderMillis,
    hash,
  }));
}

async function readApplied({ sql: driver }: Connection): Promise<Applied[]> {
  const [found] =
    await driver`select to_regclass('drizzle.__drizzle_migrations') is not null as exists`;
  if (!found?.['exists']) return [];
  return await driver<Applied[]>`select hash, created_at from drizzle.__drizzle_migrations`;
}

function compare(known: readonly Migration[], applied: readonly Applied[]): MigrationsState {
  const appliedHashes = new Set(applied.map(({ hash }) => hash));
  const knownHashes = new Set(known.map(({ hash }) => hash));
  return {
    pending: known.filter(({ hash }) => !appliedHashes.has(hash)).map(({ tag }) => tag),
    unknown: [...appliedHashes].filter((hash) => !knownHashes.has(hash)),
  };
}

/** The migrations to apply, or undefined when there are none; throws MigrationRefused. */
function mustMigrate(
  known: readonly Migration[],
  applied: readonly Applied[],
): Migration[] | undefined {
  const { pending, unknown } = compare(known, applied);
  if (unknown.length > 0) {
    throw new MigrationRefused(
      'newer-schema',
      `the database has ${unknown.length} migration(s) that this release does not know: run the ` +
        'release that made them or a newer one (or a released migration file was edited)',
    );
  }
  // Drizzle applies what is newer than the newest applied, and says nothing of the rest.
  const newest = Math.max(...applied.map(({ created_at }) => created_at), -Infinity);
  const missing = known.filter(({ tag }) => pending.includes(tag));
  const skipped = missing.filter(({ when }) => when <= newest);
  if (skipped.length > 0) throw skippedError(skipped.map(({ tag }) => tag));
  return missing.length > 0 ? missing : undefined;
}

function assertAllApplied(known: readonly Migration[], applied: readonly Applied[]): void {
  const { pending } = compare(known, applied);
  if (pending.length > 0) throw skippedError(pending);
}

function skippedError(tags: readonly string[]): MigrationRefused {
  return new MigrationRefused(
    'skipped-migration',
    `${tags.join(', ')} would be skipped: "when" in meta/_journal.json is not later than that of ` +
      'the newest applied migration; generate it again on top of that one',
  );
}

async function lockMigrations({ sql: driver }: Connection): Promise<void> {
  try {
    await driver.unsafe(`select pg_advisory_lock(${MIGRATION_LOCK})`);
  } catch (error) {
    if (sqlStateOf(error) !== '55P03') throw error;
    throw new MigrationRefused(
      'locked',
      'another process has been migrating the database for too long: see pg_locks for an advisory lock',
      error,
    );
  }
}

async function connectWhenStarted(options: MigrateOptions): Promise<Connection> {
  const giveUpAt = performance.now() + (options.startWaitMs ?? 15_000);
  for (let waiting = false; ; waiting = true) {
    try {
      return await openConnection({
        target: readDatabaseUrl(options.url),
        connectDeadlineMs: CONNECT_DEADLINE_MS,
        prepare: false,
        settings: {
          application_name: 'subagent-inbox migrate',
          lock_timeout: String(options.lockWaitMs ?? 60_000),
        },
      });
    } catch (error) {
      if (!mayBeStarting(error) || performance.now() > giveUpAt) throw error;
      if (!waiting) options.log.info({ err: error }, 'waiting for the database to start');
      await pause(START_PAUSE_MS);
    }
  }
}

/** Whatever the server says itself (a wrong password), other than that it is starting, is final. */
function mayBeStarting(error: unknown): boolean {
  if (!(error instanceof StorageUnavailable)) return false;
  return error.sqlState === undefined || error.sqlState === '57P03';
}
