import { randomUUID } from 'node:crypto';
import postgres from 'postgres';

/** A server on which databases may be created; the tests' global set-up starts it. */
export function testServerUrl(): string {
  const url = process.env['TEST_DATABASE_URL'];
  if (!url) throw new Error('TEST_DATABASE_URL is not set: see test/support/start-postgres.ts');
  return url;
}

export interface TestDatabase {
  url: string;
  /** A client past everything under test: to arrange, to look, to interfere. */
  admin: postgres.Sql;
  drop(): Promise<void>;
}

/** Creates an empty database of its own for a test file. */
export async function createTestDatabase(): Promise<TestDatabase> {
  const name = `test_${randomUUID().replaceAll('-', '')}`;
  const server = postgres(testServerUrl(), { max: 1, onnotice: () => {} });
  await server`create database ${server(name)}`;
  const url = databaseUrl(testServerUrl(), name);
  const admin = postgres(url, { max: 2, onnotice: () => {} });
  return {
    url,
    admin,
    drop: async () => {
      await admin.end();
      await server`drop database ${server(name)} with (force)`;
      await server.end();
    },
  };
}

/** The same server and user, another database. */
export function databaseUrl(serverUrl: string, database: string): string {
  const url = new URL(serverUrl);
  url.pathname = `/${database}`;
  return url.href;
}
