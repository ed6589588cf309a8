import { once, EventEmitter } from 'node:events';
import { eq, inArray, sql } from 'drizzle-orm';
import { integer, pgTable, text } from 'drizzle-orm/pg-core';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { bytea, instant, jsonb } from '../../src/store/column-types.ts';
import {
  openDatabase,
  StorageUnavailable,
  type Database,
  type DatabaseOptions,
  type Queryable,
} from '../../src/store/database.ts';
import { meaningOf } from '../../src/store/unavailable.ts';
import { startFaultProxy, type Fault, type FaultProxy } from '../support/fault-proxy.ts';
import { createTestDatabase, type TestDatabase } from '../support/postgres.ts';

const values = pgTable('values', {
  id: integer('id').primaryKey(),
  at: instant('at'),
  body: text('body'),
  data: jsonb('data'),
  bytes: bytea('bytes'),
});

/** For tests that wait for it. Elsewhere the usual one: a machine may stand still for a second. */
const SHORT_DEADLINE_MS = 800;
/** What a busy machine may add to a deadline. */
const SLACK_MS = 3_000;
/** As pool.ts has it. */
const PROBE_PAUSE_MS = 250;

let server: TestDatabase;
let proxy: FaultProxy;
let database: Database;
const opened: Database[] = [];

beforeAll(async () => {
  server = await createTestDatabase();
  await server.admin`create table values (
    id int primary key, at timestamptz, body text, data jsonb, bytes bytea, check (id > 0))`;
  await server.admin`create table counters (id int primary key, n int not null)`;
  await server.admin`insert into counters values (1, 0), (2, 0)`;
  await server.admin`create table children (
    id int primary key references counters deferrable initially deferred)`;
});

afterAll(async () => await server.drop());

beforeEach(async () => {
  await server.admin`truncate values, children`;
  await server.admin`update counters set n = 0`;
  proxy = await startFaultProxy(server.url);
  database = open();
});

afterEach(async () => {
  await proxy.set('pass');
  await Promise.all(opened.splice(0).map((each) => each.close()));
  await proxy.close();
});

function open(options: Partial<DatabaseOptions> = {}): Database {
  const log = { info: () => {}, warn: () => {} };
  const fresh = openDatabase({ url: proxy.url, log, ...options });
  opened.push(fresh);
  return fresh;
}

const shownTimeouts = async (db: Queryable) =>
  await db.execute(sql`select name, setting::int as ms from pg_settings where name in
    ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout')`);

const preparedSelects = async (db: Queryable) =>
  await db.execute(sql`select statement from pg_prepared_statements
    where statement like 'select "id"%'`);

/** A batch as ingest makes them: load, decide, write; its statements partly behind functions. */
const addToCounters = async (on: Database) =>
  await on.lane(async ({ sql: send, commit }) => {
    const [locked, loaded] = await Promise.all([
      send`select id from counters where id = ${1} for update`,
      (async () => await send`select n from counters where id = ${1}`)(),
    ]);
    const write = async () => {
      await Promise.all([
        send`update counters set n = n + ${locked.length} where id = ${1}`,
        send`update counters set n = n + ${loaded.length} where id = ${2}`,
      ]);
    };
    await commit(write());
  });

const selectOne = async (db: Queryable) => await db.execute(sql`select 1 as one`);

/** The three ways in, each running one statement. */
const waysIn = {
  run: () => database.run(selectOne),
  transaction: () => database.transaction(selectOne),
  lane: () => database.lane(async ({ sql: send }) => await send`select 1 as one`),
};

async function rejection(promise: Promise<unknown>): Promise<unknown> {
  return await promise.then(
    () => expect.unreachable('resolved'),
    (error: unknown) => error,
  );
}

async function unavailable(promise: Promise<unknown>): Promise<StorageUnavailable> {
  const error = await rejection(promise);
  expect(error).toBeInstanceOf(StorageUnavailable);
  return error as StorageUnavailable;
}

/** Resolves once a call succeeds; without ever taking longer than a bound. */
async function untilBack(): Promise<void> {
  const giveUpAt = performance.now() + 5_000;
  while (!(await database.ping())) {
    expect(performance.now()).toBeLessThan(giveUpAt);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** An error as PostgreSQL raises it. */
function raise(sqlState: string) {
  return sql.raw(`do $$ begin raise exception using errcode = '${sqlState}'; end $$`);
}

/** Of a server that cannot be reached. */
const faults: [name: string, fault: Fault][] = [
  ['refuses', 'refuse'],
  ['closes during start-up', 'fin'],
  ['accepts and never answers', 'silence'],
  ['resets', 'reset'],
  ['has no connection left', { error: '53300' }],
  ['is starting', { error: '57P03' }],
];

describe('when the server cannot be reached', () => {
  beforeEach(() => {
    database = open({ queryDeadlineMs: SHORT_DEADLINE_MS });
  });

  test.for(faults)('that %s, every call rejects within the deadline', async ([, fault]) => {
    await proxy.set(fault);
    for (const call of Object.values(waysIn)) {
      const began = performance.now();
      await unavailable(call());
      expect(performance.now() - began).toBeLessThan(SHORT_DEADLINE_MS + SLACK_MS);
    }
    await proxy.set('pass');
    await untilBack();
    for (const call of Object.values(waysIn)) expect(await call()).toMatchObject([{ one: 1 }]);
  });

  test.for(faults.slice(0, 3))(
    'goes silent in mid-session, then %s: rejects, recovers',
    async ([, fault]) => {
      for (const call of Object.values(waysIn)) await call();
      await proxy.set('silence');
      const began = performance.now();
      const errors = await Promise.all(Object.values(waysIn).map((call) => unavailable(call())));
      expect(errors.map(({ code }) => code)).toEqual(['deadline', 'deadline', 'deadline']);
      expect(performance.now() - began).toBeLessThan(SHORT_DEADLINE_MS + SLACK_MS);
      await proxy.set(fault);
      await unavailable(waysIn.run());
      await proxy.set('pass');
      await untilBack();
      for (const call of Object.values(waysIn)) expect(await call()).toMatchObject([{ one: 1 }]);
    },
  );

  test('many calls make few connections: one, and those of the probe', async () => {
    await proxy.set('fin');
    const began = performance.now();
    for (let round = 0; round < 50; round += 1) {
      await Promise.all(Array.from({ length: 20 }, () => unavailable(waysIn.run())));
      await new Promise(setImmediate);
    }
    const probes = 1 + (performance.now() - began) / PROBE_PAUSE_MS;
    // Of the first round, up to the size of the pool.
    expect(proxy.accepted()).toBeLessThanOrEqual(10 + probes);
  });

  test('known to be down, a silent server costs nobody the deadline', async () => {
    await proxy.set('silence');
    await unavailable(waysIn.run());
    const began = performance.now();
    for (let calls = 0; calls < 50; calls += 1) await unavailable(waysIn.transaction());
    expect(await database.ping()).toBe(false);
    expect(performance.now() - began).toBeLessThan(10 * SHORT_DEADLINE_MS);
  });

  test('a late answer is not a lost one', async () => {
    await proxy.set(30);
    for (const call of Object.values(waysIn)) expect(await call()).toMatchObject([{ one: 1 }]);
  });

  test('connections that are replaced or lost leave no socket behind', async () => {
    await Promise.all(Array.from({ length: 10 }, () => database.run((db) => sleep(db, 0.02))));
    expect(proxy.open()).toBeGreaterThan(5);
    await proxy.set('silence');
    await unavailable(waysIn.run());
    await proxy.set('pass');
    await untilBack();
    await database.close();
    await untilTrue(() => proxy.open() === 0);
  });

  test('the message names neither statement nor parameter, and the cause is kept', async () => {
    const error = await unavailable(
      database.run((db) =>
        db.execute(sql`select ${'secret'}, pg_terminate_backend(pg_backend_pid())`),
      ),
    );
    expect(error.message).toBe('the database is unavailable (unreachable)');
    expect(error).toMatchObject({ outcome: 'unknown', cause: expect.any(Error) });
    expect(String(error.cause)).not.toContain('secret');
  });
});

describe('after a restart of the server', () => {
  test('the next calls succeed', async () => {
    for (const call of Object.values(waysIn)) await call();
    await terminateAll();
    for (const call of Object.values(waysIn)) expect(await call()).toMatchObject([{ one: 1 }]);
  });

  test.for(['transaction', 'lane'] as const)(
    'a %s that had not begun to commit is run again',
    async (kind) => {
      let runs = 0;
      const count = async (increment: () => PromiseLike<unknown>) => {
        await increment();
        if (++runs === 1) await terminateAll();
      };
      if (kind === 'lane') {
        await database.lane(async ({ sql: send }) => {
          await count(() => send`update counters set n = n + 1 where id = 1`);
          await send`select 1`;
        });
      } else {
        await database.transaction(async (tx) => {
          await count(() => tx.execute(sql`update counters set n = n + 1 where id = 1`));
          await tx.execute(sql`select 1`);
        });
      }
      expect(runs).toBe(2);
      expect(await counter(1)).toBe(1);
    },
  );

  test('a commit whose answer is lost is not repeated: its outcome is unknown', async () => {
    let runs = 0;
    const error = await unavailable(
      database.lane(async ({ sql: send, commit }) => {
        runs++;
        await send`update counters set n = n + 1 where id = 1`;
        const done = commit(Promise.resolve());
        await new Promise(setImmediate);
        await proxy.set('reset');
        return await done;
      }),
    );
    expect(error).toMatchObject({ code: 'unreachable', outcome: 'unknown' });
    expect(runs).toBe(1);
  });

  test('a statement of run is not repeated', async () => {
    let runs = 0;
    const error = await unavailable(
      database.run(async (db) => {
        runs++;
        await terminateAll();
        await db.execute(sql`update counters set n = n + 1 where id = 1`);
      }),
    );
    expect([runs, error.outcome]).toEqual([1, 'unknown']);
  });
});

describe('errors of the server', () => {
  test.for([
    ['40001', 'retry'],
    ['40P01', 'retry'],
    ['55P03', 'retry'],
    ['57P01', 'reconnect'],
    ['08006', 'reconnect'],
    ['57P03', 'unavailable'],
    ['57014', 'unavailable'],
    ['53100', 'unavailable'],
    ['53300', 'unavailable'],
    ['25006', 'unavailable'],
    ['23505', undefined],
    ['22021', undefined],
    ['42P01', undefined],
  ] as const)('%s means %s', ([sqlState, meaning]) => {
    expect(meaningOf(sqlState)).toBe(meaning);
  });

  test.for(['40001', '40P01', '55P03'])('%s is retried as a whole transaction', async (state) => {
    let runs = 0;
    const result = await database.transaction(async (tx) => {
      runs++;
      await tx.execute(sql`update counters set n = n + 1 where id = 1`);
      if (runs < 3) await tx.execute(raise(state));
      return runs;
    });
    expect([result, await counter(1)]).toEqual([3, 1]);
  });

  test('retries end: contended', async () => {
    let runs = 0;
    const error = await unavailable(
      database.transaction(async (tx) => {
        runs++;
        await tx.execute(raise('40001'));
      }),
    );
    expect(error).toMatchObject({ code: 'contended', sqlState: '40001', outcome: 'not-done' });
    expect(runs).toBe(5);
  });

  test('two transactions that deadlock both commit', async () => {
    // The server looks for deadlocks after a second of waiting: locks must be waited for longer.
    database = open({ queryDeadlineMs: 8_000 });
    const met = new EventEmitter();
    const both = Promise.all([once(met, '1'), once(met, '2')]);
    let runs = 0;
    const cross = (first: number, second: number) =>
      database.transaction(async (tx) => {
        runs++;
        await tx.execute(sql`update counters set n = n + 1 where id = ${first}`);
        met.emit(String(first));
        await both;
        await tx.execute(sql`update counters set n = n + 1 where id = ${second}`);
      });
    await Promise.all([cross(1, 2), cross(2, 1)]);
    expect([await counter(1), await counter(2)]).toEqual([2, 2]);
    expect(runs).toBeGreaterThan(2);
  });

  test.for(['53100', '25006', '58030', '53200'])('%s is StorageUnavailable', async (sqlState) => {
    const error = await unavailable(database.transaction((tx) => tx.execute(raise(sqlState))));
    expect(error).toMatchObject({ code: 'refused', sqlState, outcome: 'not-done' });
    expect(await waysIn.run()).toMatchObject([{ one: 1 }]);
  });

  test('after a read-only answer other connections are made', async () => {
    const before = await backendPid();
    await unavailable(database.run((db) => db.execute(raise('25006'))));
    expect(await backendPid()).not.toBe(before);
  });

  test('a violated constraint reaches the caller as it is, and nothing is written', async () => {
    for (const way of ['run', 'transaction'] as const) {
      const error = await rejection(
        database[way]((db) => db.insert(values).values({ id: -1, body: 'secret' })),
      );
      expect(error).toMatchObject({ name: 'PostgresError', code: '23514' });
      expect(String(error)).not.toContain('secret');
    }
    await server.admin`insert into values (id) values (1)`;
    const error = await rejection(
      database.lane(
        async ({ sql: send, commit }) => await commit(send`insert into values (id) values (1)`),
      ),
    );
    expect(error).toMatchObject({ code: '23505' });
  });

  test('a constraint checked at commit is reported as well', async () => {
    const error = await rejection(
      database.transaction((tx) => tx.execute(sql`insert into children values (7)`)),
    );
    expect(error).toMatchObject({ code: '23503' });
  });

  test('what work throws is what the caller gets, and is rolled back', async () => {
    const refusal = new Error('no');
    const error = await rejection(
      database.transaction(async (tx) => {
        await tx.insert(values).values({ id: 1 });
        throw refusal;
      }),
    );
    expect(error).toBe(refusal);
    expect(await server.admin`select from values`).toHaveLength(0);
  });

  test('going on after a failed statement does not pass for a commit', async () => {
    const error = await rejection(
      database.transaction(async (tx) => {
        await tx.execute(sql`select 1/0`).catch(() => {});
      }),
    );
    expect(String(error)).toContain('had failed');
  });
});

describe('time-outs', () => {
  beforeEach(() => {
    database = open({ queryDeadlineMs: SHORT_DEADLINE_MS });
  });

  test('the server gives up before the client, and the connection stays', async () => {
    const before = await backendPid();
    const error = await unavailable(database.run((db) => sleep(db, 5)));
    expect(error).toMatchObject({ code: 'refused', sqlState: '57014' });
    expect(await backendPid()).toBe(before);
  });

  test('waiting for a lock ends before the statement time-out', async () => {
    await server.admin.begin(async (holder) => {
      await holder`select from counters where id = 1 for update`;
      const error = await unavailable(
        database.transaction((tx) => tx.execute(sql`select from counters where id = 1 for update`)),
      );
      expect(error).toMatchObject({ code: 'contended', sqlState: '55P03' });
    });
  });

  test('are set on every connection, below the deadline', async () => {
    const rows = [
      ...(await database.run(shownTimeouts)),
      ...(await database.transaction(shownTimeouts)),
    ];
    expect(rows).toHaveLength(6);
    for (const row of rows) {
      expect(row['ms']).toBeGreaterThan(0);
      expect(row['ms']).toBeLessThan(SHORT_DEADLINE_MS);
    }
  });

  test('a transaction of many short statements ends at the deadline, not-done', async () => {
    const began = performance.now();
    const error = await unavailable(
      database.transaction(async (tx) => {
        await tx.insert(values).values({ id: 1 });
        for (;;) await sleep(tx, 0.1);
      }),
    );
    expect(performance.now() - began).toBeLessThan(SHORT_DEADLINE_MS + SLACK_MS);
    expect(error).toMatchObject({ code: 'deadline', outcome: 'not-done' });
    expect(await server.admin`select from values`).toHaveLength(0);
    expect(await waysIn.run()).toMatchObject([{ one: 1 }]);
  });

  test('when every connection is busy, waiting ends: saturated', async () => {
    database = open({ queryDeadlineMs: SHORT_DEADLINE_MS, poolSize: 1 });
    const held = new EventEmitter();
    const state = { released: false };
    const holding = database.transaction(
      async (tx) => {
        while (!state.released) {
          await sleep(tx, 0.05);
          held.emit('held');
        }
      },
      { deadlineMs: 10_000 },
    );
    await once(held, 'held');
    expect(await unavailable(waysIn.run())).toMatchObject({ code: 'saturated' });
    state.released = true;
    await holding;
    expect(await waysIn.run()).toMatchObject([{ one: 1 }]);
  });
});

describe('what is sent', () => {
  test('statements of drizzle are prepared once per connection', async () => {
    const rows = await database.transaction(async (tx) => {
      for (const id of [1, 2, 3]) await tx.select().from(values).where(eq(values.id, id));
      return await preparedSelects(tx);
    });
    expect(rows).toHaveLength(1);
  });

  test('and not at all with prepare: false, where everything works as well', async () => {
    database = open({ prepare: false });
    const rows = await database.transaction(async (tx) => {
      await tx.insert(values).values({ id: 1, at: 5, data: { a: 1 } });
      expect(await tx.select().from(values)).toMatchObject([{ id: 1, at: 5, data: { a: 1 } }]);
      return await tx.execute(sql`select statement from pg_prepared_statements`);
    });
    expect(rows).toHaveLength(0);
    expect(await waysIn.lane()).toMatchObject([{ one: 1 }]);
  });

  test('3 MB of text, a lone surrogate and an emoji pass', async () => {
    const big = '🦊x'.repeat(600_000);
    await database.transaction(async (tx) => {
      await tx.insert(values).values([
        { id: 1, body: big },
        { id: 2, body: 'a\ud83ez' },
      ]);
    });
    const rows = await database.lane(
      async ({ sql: send }) =>
        await send<{ body: string }[]>`
      select body from values order by id`,
    );
    expect(rows[0]?.body === big).toBe(true);
    expect(rows[1]?.body).toBe('a\ufffdz');
  });

  test('instants are exact to the millisecond in insert, select, where and update', async () => {
    const at = Date.UTC(2026, 10, 30, 23, 59, 59, 999);
    const read = await database.transaction(async (tx) => {
      await tx.insert(values).values([
        { id: 1, at },
        { id: 2, at: null },
        { id: 3, at: -1 },
      ]);
      await tx
        .update(values)
        .set({ at: at + 1 })
        .where(eq(values.at, at));
      const [found] = await tx
        .select()
        .from(values)
        .where(inArray(values.at, [at + 1]));
      const raw = await tx.execute(sql`select at from values order by id`);
      return [found?.at, ...raw.map((row) => row['at'])];
    });
    expect(read).toEqual([at + 1, at + 1, null, -1]);
    expect(await server.admin`select at::text from values where id = 1`).toMatchObject([
      { at: expect.stringContaining('2026-12-01 00:00:00') },
    ]);
  });

  test.for([{ a: [1, { b: null }] }, 'plain', '42', '{"looks":"like json"}', 7, true, []])(
    'jsonb %j is encoded once and read back',
    async (data) => {
      const [row] = await database.transaction(async (tx) => {
        await tx.insert(values).values({ id: 1, data });
        return await tx.select().from(values);
      });
      expect(row?.data).toEqual(data);
      const kind = Array.isArray(data) ? 'array' : typeof data;
      expect(await server.admin`select jsonb_typeof(data) as kind from values`).toEqual([{ kind }]);
    },
  );

  test('bytes pass through drizzle and lanes', async () => {
    const bytes = Buffer.from([0, 255, 92, 34]);
    await database.run((db) => db.insert(values).values({ id: 1, bytes }));
    const [row] = await database.run((db) => db.select().from(values));
    expect(row?.bytes).toEqual(bytes);
    const rows = await database.lane(
      async ({ sql: send }) =>
        await send`
      select id from values where bytes = ${bytes}`,
    );
    expect(rows).toHaveLength(1);
  });

  test('arrays keep their nulls, quotes and types in both directions', async () => {
    const texts = ['a"b\\c', null, '', 'NULL', '{x,y}', '\n🦊'];
    const times = [1, null, Date.UTC(2026, 0, 1)];
    const whole = [1, null, 2 ** 52];
    const flags = [true, null, false];
    const jsons = ['{"a":"\\"q\\" \\\\ x"}', null, '"42"'];
    const bytes = [Buffer.from([0, 1]), null];
    const [row] = await database.lane(
      async ({ sql: send }) =>
        await send`
      select ${texts}::text[] as texts, ${times}::timestamptz[] as times, ${whole}::int8[] as whole,
        ${flags}::bool[] as flags, ${jsons}::jsonb[] as jsons, ${bytes}::bytea[] as bytes,
        (select array_agg(j::jsonb) from unnest(${jsons}::text[]) j) as cast_jsons,
        ${[]}::text[] as none, ${[null, true]}::bool[] as late, 9007199254740991::int8 as int8,
        to_timestamp(1.5) as instant, count(*) as count`,
    );
    const decoded = [{ a: '"q" \\ x' }, null, '42'];
    expect(row).toEqual({
      texts,
      times,
      whole,
      flags,
      jsons: decoded,
      bytes,
      cast_jsons: decoded,
      none: [],
      late: [null, true],
      int8: Number.MAX_SAFE_INTEGER,
      instant: 1500,
      count: 1,
    });
    const [same] = await database.run((db) =>
      db.execute(sql`
      select ${sql.param(texts)}::text[] as texts, ${sql.param(flags)}::bool[] as flags`),
    );
    expect(same).toEqual({ texts, flags });
  });

  test.for([[undefined], [[undefined]], [{ a: 1 }], [new Date(Number.NaN)], [Symbol('x')]])(
    'a parameter the driver would stumble over (%s) disturbs no neighbour',
    async ([bad]) => {
      const lane = database.lane(async ({ sql: send }) => {
        await send`select ${1}::int as n`;
        const [one, failed, two] = await Promise.allSettled([
          send`select ${1}::int as n`,
          (async () => await send`select ${bad as never}::text as n`)(),
          send`select ${2}::int as n`,
        ]);
        expect(one).toMatchObject({ status: 'fulfilled', value: [{ n: 1 }] });
        expect(failed).toMatchObject({ status: 'rejected', reason: expect.any(TypeError) });
        expect(two).toMatchObject({ status: 'fulfilled', value: [{ n: 2 }] });
      });
      await lane;
    },
  );

  test('an int8 that a number cannot hold is an error, not another number', async () => {
    const error = await rejection(database.run((db) => db.execute(sql`select 9007199254740993`)));
    expect(error).toBeInstanceOf(RangeError);
  });
});

describe('a lane', () => {
  test('takes two round trips: begin with what it loads, what it writes with commit', async () => {
    database = open({ lanes: 1 });
    await addToCounters(database);
    const before = proxy.turns();
    await addToCounters(database);
    expect(proxy.turns() - before).toBe(2);
    expect([await counter(1), await counter(2)]).toEqual([2, 2]);
  });

  test('sends each of them as one packet, however much it is, with commit right behind', async () => {
    database = open({ lanes: 1 });
    const long = 'x'.repeat(20_000);
    const twoTrips = async () =>
      await database.lane(async ({ sql: send, commit }) => {
        await Promise.all([send`select ${long}::text`, send`select ${long}::text as b`]);
        await commit(
          Promise.all([send`select ${long}::text as c`, send`select ${long}::text as d`]),
        );
      });
    await twoTrips();
    const before = proxy.packets();
    await twoTrips();
    expect(proxy.packets() - before).toBe(3);
  });

  test('is held to index plans as all else, and to generic ones where that plans each call', async () => {
    const names = sql.raw(
      `'plan_cache_mode', 'enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'jit'`,
    );
    const onLane = await database.lane(
      async ({ sql: send }) =>
        await send`
      select setting from pg_settings where name in
        ('plan_cache_mode', 'enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'jit')
      order by name`,
    );
    expect(onLane.map((row) => row['setting'])).toEqual([
      'off',
      'off',
      'off',
      'off',
      'force_generic_plan',
    ]);
    const inPool = await database.run((db) =>
      db.execute<{ setting: string }>(sql`
      select setting from pg_settings where name in (${names}) order by name`),
    );
    expect(inPool.map((row) => row.setting)).toEqual([
      'off',
      'off',
      'off',
      'off',
      'force_custom_plan',
    ]);
  });

  test('does not keep plans that were made when there was little', async () => {
    await server.admin`create table growing (tenant text, id int, owner int,
      primary key (tenant, id), unique (tenant, owner))`;
    await server.admin`vacuum growing`;
    database = open({ lanes: 1 });
    const countFetched = async () =>
      await database.lane(async ({ sql: send }) => {
        const fetched = async () => {
          const [row] = await send`
            select idx_tup_fetch::int as n from pg_stat_xact_user_tables where relname = 'growing'`;
          return Number(row?.['n']);
        };
        const before = await fetched();
        await send`select 1 from growing where tenant = ${'t'} and id = ${7}`;
        await send`select 1 from growing where tenant = ${'t'} and owner = ${7}`;
        return (await fetched()) - before;
      });
    expect(await countFetched()).toBe(0);
    await server.admin`insert into growing select 't', n, n from generate_series(1, 2000) n`;
    await expect.poll(countFetched, { timeout: 10_000 }).toBe(2);
  });

  test('that fails leaves no transaction and nothing written', async () => {
    database = open({ lanes: 1 });
    const pid = async () =>
      await database.lane(async ({ sql: send }) => await send`select pg_backend_pid() as pid`);
    const before = await pid();
    await rejection(
      database.lane(async ({ sql: send }) => {
        await send`update counters set n = 5 where id = 1`;
        throw new Error('no');
      }),
    );
    await rejection(
      database.lane(async ({ sql: send, commit }) => {
        await send`update counters set n = 5 where id = 1`;
        await commit(
          Promise.all([send`select 1/${0}::int`, send`update counters set n = 6 where id = 1`]),
        );
      }),
    );
    expect(await counter(1)).toBe(0);
    expect(await idleInTransaction()).toBe(0);
    expect(await pid()).toEqual(before);
  });

  test('commits nothing when the last statements cannot be sent', async () => {
    const error = await rejection(
      database.lane(async ({ sql: send, commit }) => {
        await send`update counters set n = 5 where id = 1`;
        await commit((async () => await send`select ${undefined as never}`)());
      }),
    );
    expect(error).toBeInstanceOf(TypeError);
    expect(await counter(1)).toBe(0);
  });

  test('refuses statements after its end', async () => {
    let late: (() => PromiseLike<unknown>) | undefined;
    await database.lane(async ({ sql: send, commit }) => {
      late = async () => await send`select 1`;
      await commit(send`select 1`);
      expect(String(await rejection(Promise.resolve(late())))).toContain('after COMMIT');
    });
    expect(String(await rejection(Promise.resolve(late?.())))).toContain('await is missing');
  });
});

describe('listening', () => {
  test('delivers, survives a lost and a silent connection, and tells of the gap', async () => {
    database = open({ heartbeatMs: 100 });
    const heard = new EventEmitter();
    const listener = await database.listen(
      'odd "channel"',
      (payload) => heard.emit('message', payload),
      () => heard.emit('gap'),
    );
    const send = async (payload: string) => {
      const message = once(heard, 'message');
      await server.admin.notify('odd "channel"', payload);
      expect(await message).toEqual([payload]);
    };
    await send('one');

    const afterLoss = once(heard, 'gap');
    await terminateAll();
    await afterLoss;
    await send('two');

    const afterSilence = once(heard, 'gap');
    await proxy.set('silence');
    await unavailable(waysIn.run());
    await proxy.set('pass');
    await afterSilence;
    await send('three');

    await listener.stop();
    heard.once('message', () => expect.unreachable());
    await server.admin.notify('odd "channel"', 'four');
    await untilTrue(async () => {
      const [row] = await server.admin`select count(*)::int as n from pg_stat_activity
        where datname = current_database() and query like 'listen%'`;
      return row?.['n'] === 0;
    });
  });

  test('a receiver that throws is called again', async () => {
    const heard = new EventEmitter();
    await database.listen(
      'c',
      (payload) => {
        heard.emit('message');
        throw new Error(payload);
      },
      () => {},
    );
    for (const payload of ['1', '2']) {
      const message = once(heard, 'message');
      await server.admin.notify('c', payload);
      await message;
    }
  });

  test('rejects when it cannot listen at first', async () => {
    await proxy.set('refuse');
    await unavailable(
      database.listen(
        'c',
        () => {},
        () => {},
      ),
    );
  });
});

describe('the database URL', () => {
  test('is refused at once when it cannot be used, and not repeated', () => {
    for (const bad of [
      'postgres://u:secret@a:1,b:2/d',
      'postgres://u:secret@a,b/d',
      'u:secret',
      withParameter('sslmode=nope'),
      withParameter('target_session_attrs=primary'),
    ]) {
      expect(() => open({ url: bad })).toThrow(/^(?!.*secret)/);
    }
  });

  test('may name settings of the session', async () => {
    database = open({ url: withParameter('work_mem=1234kB') });
    const rows = await database.run((db) => db.execute(sql`show work_mem`));
    expect(rows).toEqual([{ work_mem: '1234kB' }]);
  });

  test('may ask for TLS where there is some', async () => {
    database = open({ url: withParameter('sslmode=prefer') });
    expect(await waysIn.run()).toMatchObject([{ one: 1 }]);
  });

  test.for(['fin', 'silence', 'refuse'] as const)(
    'with TLS a server that answers with %s is unavailable as well',
    async (fault) => {
      database = open({ url: withParameter('sslmode=require') });
      await proxy.set(fault);
      await unavailable(waysIn.run());
    },
  );
});

describe('closing', () => {
  test('waits for what is under way and refuses what comes', async () => {
    const started = new EventEmitter();
    const running = database.transaction(async (tx) => {
      started.emit('yes');
      await sleep(tx, 0.2);
      return 'done';
    });
    await once(started, 'yes');
    const closed = database.close();
    expect(await unavailable(waysIn.run())).toMatchObject({ code: 'closing' });
    await closed;
    expect(await running).toBe('done');
    await untilTrue(() => proxy.open() === 0);
  });

  test.for(faults)('ends when the server %s while it is waited for', async ([, fault]) => {
    database = open({ queryDeadlineMs: SHORT_DEADLINE_MS });
    await proxy.set(fault);
    const calls = Object.values(waysIn).map((call) => unavailable(call()));
    await database.close();
    for (const { code } of await Promise.all(calls)) expect(code).toBe('closing');
  });

  test.for(['refuse', 'reset', 'silence'] as const)(
    'ends when a connection that is being opened meets with %s',
    async (fault) => {
      database = open({ queryDeadlineMs: SHORT_DEADLINE_MS });
      await proxy.set('silence');
      const calls = Object.values(waysIn).map((call) => unavailable(call()));
      await untilTrue(() => proxy.accepted() === calls.length);
      const closed = database.close();
      await proxy.set(fault);
      await closed;
      await Promise.all(calls);
    },
  );

  test('connections say who they are', async () => {
    const rows = await database.run((db) => db.execute(sql`show application_name`));
    expect(rows).toEqual([{ application_name: 'subagent-inbox' }]);
  });
});

/** The URL through the proxy with something asked for in it. */
function withParameter(parameter: string): string {
  const url = new URL(proxy.url);
  url.search = parameter;
  return url.href;
}

async function sleep(db: Queryable, seconds: number): Promise<void> {
  await db.execute(sql`select pg_sleep(${seconds}::float8)`);
}

async function counter(id: number): Promise<number> {
  const [row] = await server.admin`select n from counters where id = ${id}`;
  return row?.['n'] as number;
}

async function backendPid(): Promise<number> {
  const [row] = await database.run((db) => db.execute(sql`select pg_backend_pid() as pid`));
  return row?.['pid'] as number;
}

/** What a restart does to sessions; resolves when they are gone. */
async function terminateAll(): Promise<void> {
  await server.admin`select pg_terminate_backend(pid, 5000) from pg_stat_activity
    where datname = current_database() and application_name = 'subagent-inbox'`;
}

async function idleInTransaction(): Promise<number> {
  const [row] = await server.admin`select count(*)::int as n from pg_stat_activity
    where datname = current_database() and state like 'idle in transaction%'`;
  return row?.['n'] as number;
}

async function untilTrue(condition: () => boolean | Promise<boolean>): Promise<void> {
  const giveUpAt = performance.now() + 5_000;
  while (!(await condition())) {
    expect(performance.now()).toBeLessThan(giveUpAt);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
