import { appendFile, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { openDatabase } from '../../src/store/database.ts';
import { migrate, MigrationRefused, migrationsState } from '../../src/store/migrate.ts';
import { startFaultProxy } from '../support/fault-proxy.ts';
import { createTestDatabase, type TestDatabase } from '../support/postgres.ts';

const log = { info: () => {}, warn: () => {} };

let server: TestDatabase;
let folder: string;

beforeEach(async () => {
  server = await createTestDatabase();
  folder = await mkdtemp(join(tmpdir(), 'migrations-'));
});

afterEach(async () => {
  await server.drop();
  await rm(folder, { recursive: true });
});

/** Writes the folder anew: each migration makes a table of its name. */
async function release(...migrations: [tag: string, when: number][]): Promise<void> {
  await mkdir(join(folder, 'meta'), { recursive: true });
  const entries = migrations.map(([tag, when], idx) => ({
    idx,
    version: '7',
    when,
    tag,
    breakpoints: true,
  }));
  await writeFile(
    join(folder, 'meta', '_journal.json'),
    JSON.stringify({ version: '7', dialect: 'postgresql', entries }),
  );
  for (const [tag] of migrations) {
    const statements = `create table "${tag}" (id int);\n--> statement-breakpoint\ninsert into "${tag}" values (1);`;
    await writeFile(join(folder, `${tag}.sql`), statements);
  }
}

async function run(options: { url?: string; lockWaitMs?: number; startWaitMs?: number } = {}) {
  await migrate({ url: server.url, folder, log, ...options });
}

async function tables(): Promise<string[]> {
  const rows = await server.admin`select tablename from pg_tables
    where schemaname = 'public' order by tablename`;
  return rows.map((row) => row['tablename'] as string);
}

async function refusal(promise: Promise<unknown>): Promise<MigrationRefused> {
  const error: unknown = await promise.then(
    () => expect.unreachable('resolved'),
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(MigrationRefused);
  return error as MigrationRefused;
}

async function state() {
  const database = openDatabase({ url: server.url, log });
  try {
    return await migrationsState(database, folder);
  } finally {
    await database.close();
  }
}

describe('migrating', () => {
  test('six starts at once on an empty database all succeed, and migrate once', async () => {
    await release(['m_one', 1], ['m_two', 2]);
    await Promise.all(Array.from({ length: 6 }, () => run()));
    expect(await tables()).toEqual(['m_one', 'm_two']);
    expect(await server.admin`select from drizzle.__drizzle_migrations`).toHaveLength(2);
    expect(await server.admin`select from m_one`).toHaveLength(1);
  });

  test('applies what is new, and nothing when all is applied', async () => {
    await release(['m_one', 1]);
    await run();
    await release(['m_one', 1], ['m_two', 2]);
    expect(await state()).toEqual({ pending: ['m_two'], unknown: [] });
    await run();
    await run();
    expect(await tables()).toEqual(['m_one', 'm_two']);
    expect(await state()).toEqual({ pending: [], unknown: [] });
  });

  test('before the first migration everything is pending', async () => {
    await release(['m_one', 1]);
    expect(await state()).toEqual({ pending: ['m_one'], unknown: [] });
  });

  test('one that fails leaves the database as it was', async () => {
    await release(['m_one', 1], ['m_two', 2]);
    await appendFile(join(folder, 'm_two.sql'), '\n--> statement-breakpoint\nselect 1/0');
    await expect(run()).rejects.toThrow();
    expect(await tables()).toEqual([]);
    await release(['m_one', 1], ['m_two', 2]);
    await run();
    expect(await tables()).toEqual(['m_one', 'm_two']);
  });
});

describe('refuses', () => {
  test('a database that a newer release has migrated', async () => {
    await release(['m_one', 1], ['m_two', 2]);
    await run();
    await release(['m_one', 1]);
    const error = await refusal(run());
    expect(error.code).toBe('newer-schema');
    expect(error.message).toContain('does not know');
    expect((await state()).unknown).toHaveLength(1);
  });

  test('a migration that drizzle would skip, before anything is applied', async () => {
    await release(['m_one', 1], ['m_three', 3]);
    await run();
    await release(['m_one', 1], ['m_two', 2], ['m_three', 3], ['m_four', 4]);
    const error = await refusal(run());
    expect(error.code).toBe('skipped-migration');
    expect(error.message).toContain('m_two');
    expect(await tables()).toEqual(['m_one', 'm_three']);
  });

  test('to wait for ever for another process that migrates', async () => {
    await release(['m_one', 1]);
    await server.admin.begin(async (other) => {
      await other`select pg_advisory_xact_lock(('x' || encode('subagent', 'hex'))::bit(64)::bigint)`;
      const error = await refusal(run({ lockWaitMs: 50 }));
      expect(error.code).toBe('locked');
    });
    await run();
    expect(await tables()).toEqual(['m_one']);
  });
});

describe('a server that is not up', () => {
  test.for(['refuse', 'fin', { error: '57P03' }] as const)('is waited for (%j)', async (fault) => {
    await release(['m_one', 1]);
    const proxy = await startFaultProxy(server.url);
    try {
      await proxy.set(fault);
      let waiting: (() => void) | undefined;
      const noticed = new Promise<void>((resolve) => (waiting = resolve));
      const migrated = migrate({
        url: proxy.url,
        folder,
        log: { ...log, info: () => waiting?.() },
      });
      await noticed;
      await proxy.set('pass');
      await migrated;
      expect(await tables()).toEqual(['m_one']);
    } finally {
      await proxy.close();
    }
  });

  test('is not waited for without end, nor when it says something else', async () => {
    await release(['m_one', 1]);
    const proxy = await startFaultProxy(server.url);
    try {
      await proxy.set('refuse');
      await expect(run({ url: proxy.url, startWaitMs: 100 })).rejects.toMatchObject({
        code: 'unreachable',
      });
      await proxy.set({ error: '28P01' });
      await expect(run({ url: proxy.url })).rejects.toMatchObject({ sqlState: '28P01' });
    } finally {
      await proxy.close();
    }
  });
});
