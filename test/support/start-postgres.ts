import { randomUUID } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import postgres from 'postgres';
import { MIGRATIONS } from '../../src/migrations.ts';
import { startEmbeddedPostgres } from '../../src/platform/embedded-postgres.ts';
import { migrate } from '../../src/store/migrate.ts';
import { databaseUrl } from './postgres.ts';

/*
 * Runs once for all test files: a PostgreSQL (that of DATABASE_URL, else one of our own without
 * fsync) and in it a migrated database that each file clones. Files find both in the environment.
 */

/** Starts what the files need, and answers what undoes it. */
export default async function startPostgres(): Promise<() => Promise<void>> {
  const server = await findServer();
  const template = `test_template_${randomUUID().replaceAll('-', '')}`;
  const sql = postgres(server.url, { max: 1, onnotice: () => {} });
  await sql`create database ${sql(template)}`;
  await migrate({
    url: databaseUrl(server.url, template),
    folder: MIGRATIONS,
    log: pino({ level: 'warn' }),
  });
  process.env['TEST_DATABASE_URL'] = server.url;
  process.env['TEST_DATABASE_TEMPLATE'] = template;

  return async () => {
    await sql`drop database ${sql(template)} with (force)`;
    await sql.end();
    await server.stop();
  };
}

async function findServer(): Promise<{ url: string; stop(): Promise<void> }> {
  const url = process.env['DATABASE_URL'];
  if (url) return { url, stop: async () => {} };
  const dataDir = await mkdtemp(join(tmpdir(), 'subagent-inbox-test-'));
  const embedded = await startEmbeddedPostgres({ dataDir, durable: false });
  return {
    url: embedded.url,
    stop: async () => {
      await embedded.stop();
      await rm(dataDir, { recursive: true, force: true });
    },
  };
}
