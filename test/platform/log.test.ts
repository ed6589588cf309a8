import { sql } from 'drizzle-orm';
import { drizzle } from 'drizzle-orm/postgres-js';
import { beforeAll, describe, expect, test } from 'vitest';
import { createLog } from '../../src/platform/log.ts';
import { openDatabase, StorageUnavailable } from '../../src/store/database.ts';
import { useDatabase } from '../support/database.ts';
import { describeChild, freshId, path, reportIdle } from '../support/delivery.ts';
import { startService } from '../support/service.ts';

const SECRET = 's3cret!';
const database = useDatabase();

beforeAll(async () => {
  await database.sql`create table payloads (
    body text unique, number int check (number > 0), constraint short check (length(body) < 10))`;
  await database.sql`insert into payloads (body) values (${SECRET})`;
  await database.sql.unsafe(`create function complain(text) returns text language plpgsql as
    $$ begin raise exception 'cannot take "%"', $1; end $$`);
});

/** Every way in which an error of the database may come to hold what was sent. */
const failures: [string, string, string][] = [
  ['a violated check', `insert into payloads (body) values (repeat($1, 2))`, '23514'],
  ['a violated key', `insert into payloads (body) values ($1)`, '23505'],
  ['a value of another type', `select $1::text::int`, '22P02'],
  ['a time that is none', `select $1::text::timestamptz`, '22007'],
  ['JSON that is none', `select ($1::text || '{')::json`, '22P02'],
  ['an array that is none', `select ('{' || $1::text)::text[]`, '22P02'],
  ['several lines', `select (E'1\n    at ' || $1::text)::int`, '22P02'],
  ['quotes in a value', `select ('"' || $1::text || '"')::int`, '22P02'],
  ['a function that complains', `select complain($1)`, 'P0001'],
];

describe('an error of the database', () => {
  test.each(failures)('by %s is logged without what was sent', async (_, text, code) => {
    const raw = await failure(database.sql.unsafe(text, [SECRET]));
    const wrapped = await failure(drizzle(database.sql).execute(statement(text)));
    expect(`${String(wrapped)} ${JSON.stringify({ ...(raw as object) })}`).toContain(SECRET);
    for (const error of [raw, wrapped, ...(await throughStore(text))]) {
      for (const nested of nestings(error)) {
        const line = logged(nested);
        expect(line).not.toContain(SECRET);
        expect(line).toContain(`"code":"${code}"`);
      }
    }
  });

  test('still says which constraint was violated, and where', async () => {
    const [, text] = failures[0] as [string, string, string];
    const [error] = await throughStore(text);
    expect(JSON.parse(logged(error)).err).toEqual({
      type: 'PostgresError',
      message: 'new row for relation "payloads" violates check constraint "short"',
      code: '23514',
      stack: expect.stringMatching(/^ {4}at .*\.[jt]s/),
    });
  });
});

describe('any other error', () => {
  test('is logged with its type, message, code, stack and causes, and nothing else', () => {
    const cause = Object.assign(new RangeError('inner'), { code: 7, detail: SECRET });
    const error = Object.assign(new Error('outer', { cause }), { code: 'OUTER', query: SECRET });
    const stack = expect.stringMatching(/^ {4}at .*log\.test\.ts/);
    expect(JSON.parse(logged(error)).err).toEqual({
      type: 'Error',
      message: 'outer',
      code: 'OUTER',
      stack,
      cause: { type: 'RangeError', message: 'inner', code: 7, stack },
    });
  });

  test.each<[string, () => unknown]>([
    ['of JSON.parse', () => JSON.parse(SECRET)],
    ['of BigInt', () => BigInt(SECRET)],
    ['that is none', () => throwIt(SECRET)],
    ['with members of its own', () => throwIt(Object.assign(new Error('x'), { code: [SECRET] }))],
    ['with another message than its stack', () => throwIt(renamed(new Error(SECRET)))],
    ['with several', () => throwIt(new AggregateError([new SyntaxError(SECRET)], 'all failed'))],
  ])('%s is logged without what it is about', (_, fail) => {
    for (const nested of nestings(caught(fail))) expect(logged(nested)).not.toContain(SECRET);
  });

  test('that is its own cause is logged', () => {
    const error = new Error('round and round');
    error.cause = new Error('and round', { cause: error });
    expect(logged(error)).toContain('and round');
  });
});

test('a report that the database refuses leaves nothing of itself in the log', async () => {
  const lines: string[] = [];
  const service = await startService(database, { onLogLine: (line) => lines.push(line) });
  const [parent, child] = [freshId('parent'), freshId('child')];
  await service.request('PUT', `${path(parent)}/inbox`);
  await describeChild(service, parent, child);
  await database.sql`alter table items add constraint refused check (false) not valid`;
  expect((await reportIdle(service, child, { output: SECRET })).status).toBe(500);
  await database.sql`alter table items drop constraint refused`;
  await service.stop();
  const said = lines.map((line) => (JSON.parse(line) as { msg: string }).msg);
  expect(said).toEqual(
    expect.arrayContaining(['a batch failed; settling singly', 'a request failed']),
  );
  expect(lines.join('')).not.toContain(SECRET);
  expect(lines.join('')).toContain('violates check constraint \\"refused\\"');
});

/** The line that is logged about the error. */
function logged(err: unknown): string {
  const lines: string[] = [];
  createLog('debug', { write: (line) => lines.push(line) }).warn({ err }, 'it failed');
  expect(lines).toHaveLength(1);
  return lines.join('');
}

/** The error, and others of which it is the cause. */
function nestings(error: unknown): unknown[] {
  return [
    error,
    new StorageUnavailable('contended', { cause: error }),
    new Error('outer', { cause: new Error('inner', { cause: error }) }),
  ];
}

/** How the statement fails in each of the ways in which the service sends one. */
async function throughStore(text: string): Promise<unknown[]> {
  const store = openDatabase({ url: database.url, log: createLog('silent') });
  const strings = Object.assign(text.split('$1'), { raw: text.split('$1') });
  const errors = [
    await failure(store.run((db) => db.execute(statement(text)))),
    await failure(store.transaction((db) => db.execute(statement(text)))),
    await failure(store.lane(async (lane) => await lane.sql(strings, SECRET))),
  ];
  await store.close();
  return errors;
}

function statement(text: string) {
  const [before = '', after = ''] = text.split('$1');
  return sql.join([sql.raw(before), sql`${SECRET}`, sql.raw(after)]);
}

async function failure(work: PromiseLike<unknown>): Promise<unknown> {
  return await work.then(
    () => throwIt(new Error('it did not fail')),
    (error: unknown) => error,
  );
}

function caught(work: () => unknown): unknown {
  try {
    return work();
  } catch (error) {
    return error;
  }
}

function throwIt(error: unknown): never {
  throw error;
}

function renamed(error: Error): Error {
  void error.stack;
  error.message = 'harmless';
  return error;
}
