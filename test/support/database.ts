import { randomUUID } from 'node:crypto';
import postgres from 'postgres';
import { afterAll, beforeAll } from 'vitest';
import { databaseUrl, testServerUrl } from './postgres.ts';

/** A database of this test file alone, with the schema of the service. */
export interface MigratedDatabase {
  readonly url: string;
  /** A client past everything under test: to arrange, to look, to interfere. */
  readonly sql: postgres.Sql;
}

/**
 * At the top of a test file (or a describe): a migrated database for it, cloned before its first
 * test and dropped after its last. Tests share it, so each makes sessions with ids of its own.
 */
export function useDatabase(): MigratedDatabase {
  const database = {} as { url: string; sql: postgres.Sql };
  const name = `test_${randomUUID().replaceAll('-', '')}`;
  let server: postgres.Sql;

  beforeAll(async () => {
    const template = process.env['TEST_DATABASE_TEMPLATE'] ?? 'template1';
    server = postgres(testServerUrl(), { max: 1, onnotice: () => {} });
    await server`create database ${server(name)} template ${server(template)}`;
    database.url = databaseUrl(testServerUrl(), name);
    database.sql = postgres(database.url, { max: 2, onnotice: () => {} });
  });

  afterAll(async () => {
    await database.sql.end();
    await server`drop database if exists ${server(name)} with (force)`;
    await server.end();
  });

  return database;
}
