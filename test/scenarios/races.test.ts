import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { countDeadlocks } from '../support/counters.ts';
import { describeChild, freshId, path, reportIdle } from '../support/delivery.ts';
import { startService, useService, type TestService } from '../support/service.ts';
import {
  dispatches,
  inboxOf,
  inShort,
  isChild,
  newPair,
  opens,
  status,
  take,
} from '../support/steps.ts';
import { leave } from '../support/viewers.ts';

/* What meets what, over two services on one database. */

const database = useDatabase();
const one = useService(database);
const other = useService(database);
const ROUNDS = process.env['LONG'] ? 2_000 : 200;
const REPORTS = 64;
/** What a storm of requests may be answered: nothing that is the service's own fault. */
const ANSWERS = new Set([200, 201, 202, 204, 400, 404, 409, 503]);

/** Both services, in turn. */
const at = (n: number): TestService => (n % 2 === 0 ? one : other);

/** Runs so many rounds, a few of them at once. */
async function rounds(count: number, round: (n: number) => Promise<void>): Promise<void> {
  const AT_ONCE = 8;
  for (let n = 0; n < count; n += AT_ONCE) {
    const some = Array.from({ length: Math.min(AT_ONCE, count - n) }, (_, i) => round(n + i));
    await Promise.all(some);
  }
}

async function waitsForLock(): Promise<boolean> {
  const rows = await database.sql`
    select 1 from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'`;
  return rows.length > 0;
}

describe('a report and what opens the inbox, in parallel', () => {
  const openers: Record<string, (by: TestService, parent: string) => Promise<unknown>> = {
    'PUT …/inbox': (by, parent) => by.request('PUT', `${path(parent)}/inbox`),
    'a read': (by, parent) => by.request('POST', `${path(parent)}/inbox/read`, { max: 1 }),
    'a dispatch to another child': (by, parent) =>
      by.request('POST', `${path(parent)}/work`, { child_session_id: freshId('child') }),
    'a PUT of the parent': (by, parent) => by.request('PUT', path(parent), { inbox: 'open' }),
  };

  test.each(Object.keys(openers))('%s: never parked beside an open inbox', async (name) => {
    const open = openers[name];
    await rounds(name === 'PUT …/inbox' ? ROUNDS : ROUNDS / 5, async (n) => {
      const [parent, child] = [freshId('parent'), freshId('child')];
      await describeChild(one, parent, child);
      const [report] = await Promise.all([
        reportIdle(at(n), child),
        open?.(at(n + 1 + (n >> 1)), parent),
      ]);
      expect(['204 delivered', '503 not_confirmed missing_parent_inbox']).toContain(
        inShort(report),
      );
      const rows = await database.sql`
        select (select count(*)::int from parked_reports k
            where k.child_session_id = ${child} and k.state = 'parked') as parked,
          (select count(*)::int from items i
            where i.session_id = ${parent} and i.child_session_id = ${child}) as items,
          (select inbox_opened_at is not null from sessions where id = ${parent}) as open`;
      expect(rows).toMatchObject([{ parked: 0, items: 1, open: true }]);
    });
  });

  test.each(Object.keys(openers))(
    '%s waits for a delivery that has found it closed, and one beside an open inbox does not',
    async (name) => {
      const open = openers[name];
      const parent = freshId('parent');
      await one.request('PUT', path(parent), { sub_agent_name: 'x' });
      const delivery = await database.sql.reserve();
      await delivery`begin`;
      await delivery`select 1 from sessions where id = ${parent} for key share`;
      const opening = open?.(other, parent);
      const isAnswered = opening?.then(() => 'answered');
      await expect.poll(async () => await Promise.race([isAnswered, waitsForLock()])).toBe(true);
      await delivery`commit`;
      expect(await opening).toMatchObject({ status: expect.toSatisfy((code) => code < 300) });
      await delivery`begin`;
      await delivery`select 1 from sessions where id = ${parent} for key share`;
      const dispatch = openers['a dispatch to another child'];
      expect(await dispatch?.(other, parent)).toMatchObject({ status: 201 });
      await delivery`commit`;
      delivery.release();
    },
  );

  test('a report and the PUT that makes its session known: delivered once', async () => {
    await rounds(ROUNDS / 5, async (n) => {
      const pair = newPair(at(n));
      await opens(pair);
      const [report] = await Promise.all([
        reportIdle(at(n), pair.child),
        describeChild(at(n + 1), pair.parent, pair.child),
      ]);
      expect(['204 delivered', '503 not_confirmed unknown_session']).toContain(inShort(report));
      expect(await inboxOf(pair)).toHaveLength(1);
    });
  });
});

describe('many reports of one child at once', () => {
  const services = { 'one service': [0], 'two services': [0, 1] };

  describe.each(Object.entries(services))('over %s', (_, numbers) => {
    test.each([
      ['with a work entry, all equal', true, () => ({ output: 'done' })],
      ['without one, all equal', false, () => ({ output: 'done' })],
      ['with a work entry, all different', true, (n: number) => ({ output: `done ${n}` })],
      [
        'without one, under different ids, some failed',
        false,
        (n: number) => ({
          status: n % 3 === 0 ? 'failed' : 'idle',
          output: `done ${n % 5}`,
          response_id: `r${n % 7}`,
        }),
      ],
    ])('%s: one item', async (__, isRegistered, said) => {
      const pair = newPair(one);
      await take(pair, isRegistered ? [dispatches()] : [isChild(), opens]);
      const answers = await Promise.all(
        Array.from({ length: REPORTS }, (___, n) => {
          const service = at(numbers[n % numbers.length] ?? 0);
          return reportIdle(service, pair.child, said(n));
        }),
      );
      const items = await inboxOf(pair);
      expect(items).toHaveLength(1);
      const delivered = answers.filter((answer) => inShort(answer) === '204 delivered');
      const repeats = answers.filter((answer) => inShort(answer) === '204 already_delivered');
      expect([delivered.length, repeats.length]).toEqual([1, REPORTS - 1]);
      for (const { headers } of answers) {
        expect(headers['delivery-item-id']).toBe(items[0]?.['id']);
      }
    });

    test('whose inbox is not open: parked once, delivered once', async () => {
      const pair = newPair(one);
      await isChild()(pair);
      const answers = await Promise.all(
        Array.from({ length: REPORTS }, (__, n) =>
          reportIdle(at(numbers[n % numbers.length] ?? 0), pair.child),
        ),
      );
      expect(new Set(answers.map((answer) => answer.status))).toEqual(new Set([503, 202]));
      const rows = await database.sql`
        select tries from parked_reports where child_session_id = ${pair.child}`;
      expect(rows).toEqual([{ tries: REPORTS }]);
      await opens(pair);
      expect(await inboxOf(pair)).toHaveLength(1);
    });
  });
});

describe('reports, dispatches and deletes of the same sessions in opposite orders', () => {
  test('do not deadlock, and are all answered', async () => {
    const [here, there] = [await startService(database), await startService(database)];
    const before = await countDeadlocks(database);
    const statuses: number[] = [];
    const groups = process.env['LONG'] ? 40 : 4;
    for (let group = 0; group < groups; group += 1) {
      const sessions = Array.from({ length: 5 }, () => freshId('s'));
      const of = (n: number): string => sessions[n % sessions.length] ?? '';
      const storm = Array.from({ length: 150 }, (_, n) => {
        const by = n % 2 === 0 ? here : there;
        // Up the row of sessions at one service, down at the other.
        const [a, b] = n % 2 === 0 ? [of(n >> 1), of((n >> 1) + 1)] : [of(-n & 7), of(n * 3)];
        switch ((n >> 1) % 8) {
          case 0:
          case 1:
            return by.request('POST', `${path(a)}/work`, { child_session_id: b });
          case 2:
            return by.request('PUT', path(b), { parent_session_id: a, sub_agent_name: 'x' });
          case 3:
            return by.request('DELETE', path(a));
          case 4:
            return by.request('POST', `${path(a)}/inbox/read`, { drain: true });
          case 5:
            return status({ service: by, parent: a, child: b }, { status: 'running' });
          default:
            return reportIdle(by, b, { output: `turn ${n}` });
        }
      });
      for (const { status: answered } of await Promise.all(storm)) statuses.push(answered);
    }
    await Promise.all([here.stop(), there.stop()]);
    expect(await countDeadlocks(database)).toBe(before);
    expect(statuses.filter((answered) => !ANSWERS.has(answered))).toEqual([]);
    expect(statuses).toContain(204);
    expect(statuses).toContain(201);
  });
});

const views = (by: TestService, id: string) => by.request('POST', `${path(id)}/viewers`);

async function closes(by: TestService, id: string) {
  const attached = await views(by, id);
  const viewer = attached.body.viewer_id;
  return viewer === undefined ? attached : await leave(by, id, viewer, 'cli_close');
}

describe('calls of a route, and what closes, continues and deletes its sessions', () => {
  test('do not deadlock, and are all answered', async () => {
    const [here, there] = [await startService(database), await startService(database)];
    const before = await countDeadlocks(database);
    const statuses: number[] = [];
    const groups = process.env['LONG'] ? 40 : 2;
    for (let group = 0; group < groups; group += 1) {
      const route = freshId('route');
      // Half of them have the route; either may have the lower id.
      const sessions = Array.from({ length: 6 }, () => freshId('s'));
      const of = (n: number): string => sessions[n % sessions.length] ?? '';
      const channel = { kind: 'cli', route };
      for (const n of [0, 2, 4]) await here.request('PUT', path(of(n)), { channel });
      const delegates = (by: TestService, parent: string) =>
        by.request('POST', `${path(parent)}/delegations`, {
          tasks: [{ goal: 'g' }],
          session_key: route,
          max_concurrent: 1000,
        });
      const storm = Array.from({ length: 120 }, async (_, n) => {
        const by = n % 2 === 0 ? here : there;
        switch ((n >> 1) % 8) {
          case 0:
            return await by.request('PUT', path(of(n * 5)), { continued_as: of(n * 5 + 1) });
          case 1:
            return await by.request('PUT', path(of(n * 5)), { continued_as: null });
          case 2:
            return await (n % 16 === 4 ? closes(by, of(n + 1)) : views(by, of(n)));
          case 3:
            return n % 16 === 6
              ? await by.request('DELETE', path(of(n)))
              : await by.request('PUT', path(of(n)), { channel });
          case 4:
            return await reportIdle(by, of(n), { output: `turn ${n}` });
          default:
            return await delegates(by, of(n >> 1));
        }
      });
      for (const { status: answered } of await Promise.all(storm)) statuses.push(answered);
    }
    await Promise.all([here.stop(), there.stop()]);
    expect(await countDeadlocks(database)).toBe(before);
    expect(statuses.filter((answered) => !ANSWERS.has(answered))).toEqual([]);
    expect(statuses).toContain(202);
  });
});

describe('a session that is locked elsewhere', () => {
  test('has its own report wait, though it takes the result of its child in the same batch', async () => {
    const families = Array.from({ length: 20 }, () => ({
      root: freshId('root'),
      aunt: freshId('aunt'),
      mother: freshId('mother'),
      child: freshId('child'),
    }));
    for (const { root, aunt, mother, child } of families) {
      await describeChild(one, root, aunt);
      await opens({ service: one, parent: root, child: mother });
      await describeChild(one, root, mother);
      await opens({ service: one, parent: mother, child });
      await describeChild(one, mother, child);
    }
    const mothers = families.map(({ mother }) => mother);
    const holder = await database.sql.reserve();
    await holder`begin`;
    await holder`select 1 from sessions where id = any(${mothers}) for no key update`;
    const held = families.map(({ aunt, mother, child }) => ({
      others: [aunt, child].map((id) => reportIdle(one, id, { output: 'mine' })),
      mother: reportIdle(one, mother, { output: 'mine' }),
    }));
    for (const answer of await Promise.all(held.flatMap(({ others }) => others))) {
      expect(inShort(answer)).toBe('204 delivered');
    }
    await holder`commit`;
    holder.release();
    for (const [n, { mother }] of held.entries()) {
      // One that waited for too long is sent again.
      const first = inShort(await mother);
      const again = () => reportIdle(one, mothers[n] ?? '', { output: 'mine' });
      expect(first.startsWith('503') ? inShort(await again()) : first).toBe('204 delivered');
    }
    for (const { root, mother, child } of families) {
      expect(await inboxOf({ service: one, parent: root, child: mother })).toHaveLength(2);
      expect(await inboxOf({ service: one, parent: mother, child })).toHaveLength(1);
    }
  });
});

describe('a parent that is locked elsewhere', () => {
  test('holds up the reports of its own children only, and those for seconds', async () => {
    const [parent, stranger] = [freshId('parent'), freshId('parent')];
    const children = Array.from({ length: 60 }, () => freshId('child'));
    const strangers = Array.from({ length: 60 }, () => freshId('child'));
    await opens({ service: one, parent, child: '' });
    await opens({ service: one, parent: stranger, child: '' });
    for (const child of children) await describeChild(one, parent, child);
    for (const child of strangers) await describeChild(one, stranger, child);
    const holder = await database.sql.reserve();
    await holder`begin`;
    await holder`select 1 from sessions where id = ${parent} for update`;
    const held = Promise.all(children.map((child) => reportIdle(one, child, { output: 'mine' })));
    for (const child of strangers) {
      expect(inShort(await reportIdle(one, child, { output: 'x' }))).toBe('204 delivered');
    }
    // Nobody waits for the lock to be given back: that is when all have been answered.
    for (const answer of await held) {
      expect(inShort(answer)).toBe('503 not_confirmed storage_unavailable');
    }
    await holder`commit`;
    holder.release();
    for (const child of children) {
      expect(inShort(await reportIdle(one, child, { output: 'mine' }))).toBe('204 delivered');
    }
    expect(await inboxOf({ service: one, parent, child: '' })).toHaveLength(children.length);
  }, 30_000);
});

describe('a repeated sign of life', () => {
  test('waits for a report that ends its turn meanwhile, and does not bring it back', async () => {
    const pair = newPair(one);
    const { parent, child } = pair;
    await describeChild(one, parent, child);
    await status(pair, { status: 'running' });
    await take(pair, [dispatches()]);
    const ending = await database.sql.reserve();
    await ending`begin`;
    await ending`select 1 from sessions where id = ${child} for no key update`;
    const sign = status(pair, { status: 'running' });
    const isAnswered = sign.then(() => 'answered');
    await expect.poll(async () => await Promise.race([isAnswered, waitsForLock()])).toBe(true);
    await ending`
      update work set status = 'completed', ended_at = now(), due_at = null, revision = 1,
        last_item_seq = 1
      where child_session_id = ${child}`;
    await ending`commit`;
    ending.release();
    expect(await sign).toMatchObject({ status: 204 });
    const work = await database.sql`select status from work where child_session_id = ${child}`;
    expect(work).toEqual([{ status: 'completed' }]);
  });
});

describe('one poisonous report in a batch', () => {
  const lines: { msg: string; reports?: number }[] = [];
  let service: TestService;

  beforeAll(async () => {
    service = await startService(database, {
      onLogLine: (line) => lines.push(JSON.parse(line)),
    });
    await database.sql.unsafe(`
      create function refuse_poison() returns trigger language plpgsql as $$
        begin
          if new.output = 'poison' then raise 'a secret of the database' using errcode = 'XX001';
          end if;
          return new;
        end $$;
      create trigger refuse_poison before insert or update on items
        for each row execute function refuse_poison();
      alter table parked_reports add constraint no_poison check (output <> 'poison')`);
  });
  afterAll(async () => {
    await database.sql.unsafe(`
      drop trigger refuse_poison on items;
      alter table parked_reports drop constraint no_poison`);
    await service.stop();
  });

  test.each(['delivered', 'parked'] as const)(
    'that cannot be %s touches none of its neighbours',
    async (what) => {
      const parent = freshId('parent');
      if (what === 'delivered') await opens({ ...newPair(service), parent });
      const children = Array.from({ length: 60 }, () => freshId('child'));
      await Promise.all(children.map((child) => describeChild(service, parent, child)));
      const poisoned = 23;
      lines.length = 0;
      const answers = await Promise.all(
        children.map((child, n) =>
          reportIdle(service, child, { output: n === poisoned ? 'poison' : `done ${n}` }),
        ),
      );
      const batches = lines.filter((line) => line.msg.startsWith('a batch failed'));
      expect(Math.max(...batches.map((line) => line.reports ?? 0))).toBeGreaterThan(1);
      const [refused] = answers.splice(poisoned, 1);
      const good =
        what === 'delivered' ? '204 delivered' : '503 not_confirmed missing_parent_inbox';
      expect(new Set(answers.map(inShort))).toEqual(new Set([good]));
      expect(refused).toMatchObject({ status: 500, body: { error: 'internal' } });
      expect(JSON.stringify(refused)).not.toMatch(/secret|poison|items|parked_reports/);

      await opens({ ...newPair(service), parent });
      const child = children[poisoned] ?? '';
      expect(inShort(await reportIdle(service, child, { output: 'cured' }))).toBe('204 delivered');
      const items = await inboxOf({ service, parent, child });
      expect(new Set(items.map((item) => item['output']))).toEqual(
        new Set(children.map((_, n) => (n === poisoned ? 'cured' : `done ${n}`))),
      );
      expect(items).toHaveLength(children.length);
    },
  );
});
