import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { freshId, path, reportIdle } from '../support/delivery.ts';
import { startFaultProxy } from '../support/fault-proxy.ts';
import { inboxOf } from '../support/ledger.ts';
import { startProcess } from '../support/process.ts';
import { startService, useService, type TestService } from '../support/service.ts';

/* What delegations promise over two services on one database. */

const database = useDatabase();
const one = useService(database);
const two = {} as TestService;
beforeAll(async () => {
  Object.assign(two, await startService(database));
});
afterAll(async () => await two.stop());

/** So long the races of a test may take. */
const RACES_MS = 20_000;

const startProcessHere = () => startProcess({ env: { DATABASE_URL: database.url } });
const either = (n: number) => (n % 2 === 0 ? one : two);
const tasksOf = (count: number) =>
  Array.from({ length: count }, (_, at) => ({ goal: `goal ${at}` }));

function post(on: Pick<TestService, 'request'>, parent: string, body: object) {
  return on.request('POST', `${path(parent)}/delegations`, body);
}

async function activeCount(parent: string): Promise<number> {
  return (await one.request('GET', `${path(parent)}/delegations`)).body.active_count;
}

async function childrenOf(parent: string, body: object): Promise<string[]> {
  const answer = await post(one, parent, body);
  expect(answer.status).toBe(202);
  return answer.body.tasks.map((task: { child_session_id: string }) => task.child_session_id);
}

describe('capacity', () => {
  test('takes one of two calls that come at the same moment', async () => {
    for (let round = 0; round < 20; round += 1) {
      const parent = freshId('parent');
      const call = { tasks: tasksOf(1), max_concurrent: 1 };
      const answers = await Promise.all([post(one, parent, call), post(two, parent, call)]);
      expect(new Set(answers.map((answer) => answer.status))).toEqual(new Set([202, 429]));
    }
  });

  test('of fifty calls at once is never exceeded, and no slot of it is lost', async () => {
    const parent = freshId('parent');
    const call = { tasks: tasksOf(3), max_concurrent: 7, independent_completions: true };
    for (let round = 0; round < 4; round += 1) {
      const answers = await Promise.all(
        Array.from({ length: 50 }, (_, n) => post(either(n), parent, call)),
      );
      const taken = answers.filter((answer) => answer.status === 202);
      expect(taken).toHaveLength(7);
      expect(answers.filter((answer) => answer.status === 429)).toHaveLength(43);
      expect(await activeCount(parent)).toBe(7);
      const children = taken.flatMap((answer) =>
        answer.body.tasks.map((task: { child_session_id: string }) => task.child_session_id),
      );
      await Promise.all(children.map((child, n) => reportIdle(either(n), child)));
      expect(await activeCount(parent)).toBe(0);
    }
  });

  test('holds while calls end and begin at the same time', async () => {
    const parent = freshId('parent');
    const call = { tasks: tasksOf(1), max_concurrent: 3 };
    let most = 0;
    let taken = 0;
    const workers = Array.from({ length: 12 }, async (_, n) => {
      for (let round = 0; round < 10; round += 1) {
        const answer = await post(either(n), parent, call);
        if (answer.status !== 202) continue;
        taken += 1;
        const [row] = await database.sql`
          select count(*)::int as active from delegations
          where parent_session_id = ${parent} and ended_at is null`;
        most = Math.max(most, row?.['active']);
        await reportIdle(either(n + 1), answer.body.tasks[0].child_session_id);
      }
    });
    await Promise.all(workers);
    expect(most).toBeLessThanOrEqual(3);
    expect(taken).toBeGreaterThan(3);
    expect(await activeCount(parent)).toBe(0);
    expect(await inboxOf(one, { parent })).toHaveLength(taken);
  });
});

test('the last two children of a unit, reporting at once at two services, end it once', async () => {
  const until = performance.now() + RACES_MS;
  let rounds = 0;
  while (rounds < 200 && performance.now() < until) {
    const parent = freshId('parent');
    const children = await childrenOf(parent, { tasks: tasksOf(2) });
    await Promise.all(
      children.map((child, n) => reportIdle(either(n), child, { output: `r${n}` })),
    );
    const items = await inboxOf(one, { parent });
    expect(items).toHaveLength(1);
    expect(items[0].results.map((result: { summary: string }) => result.summary)).toEqual([
      'r0',
      'r1',
    ]);
    rounds += 1;
  }
  expect(rounds).toBeGreaterThan(20);
});

test('the last two units of a call, ending at once at two services, end it', async () => {
  const until = performance.now() + RACES_MS / 2;
  for (let round = 0; round < 100 && performance.now() < until; round += 1) {
    const parent = freshId('parent');
    const children = await childrenOf(parent, { tasks: tasksOf(2), independent_completions: true });
    await Promise.all(children.map((child, n) => reportIdle(either(n), child)));
    expect(await activeCount(parent)).toBe(0);
    expect(await inboxOf(one, { parent })).toHaveLength(2);
  }
});

test('a thousand children that report at once yield one item with all results', async () => {
  const parent = freshId('parent');
  const children = await childrenOf(parent, { tasks: tasksOf(1000) });
  const answers = await Promise.all(
    children.map((child, n) => reportIdle(either(n), child, { output: `result ${n}` })),
  );
  const outcomes = new Set(answers.map((answer) => answer.headers['delivery-outcome']));
  expect(outcomes).toEqual(new Set(['delivered']));
  const items = await inboxOf(one, { parent });
  expect(items).toHaveLength(1);
  expect(items[0].results.map((result: { summary: string }) => result.summary)).toEqual(
    Array.from({ length: 1000 }, (_, n) => `result ${n}`),
  );
});

test('repeats of all reports at once, at both services, add nothing', async () => {
  const parent = freshId('parent');
  const children = await childrenOf(parent, { tasks: tasksOf(20) });
  await Promise.all(
    children.flatMap((child) =>
      Array.from({ length: 4 }, (_, n) => reportIdle(either(n), child, { output: child })),
    ),
  );
  const items = await inboxOf(one, { parent });
  expect(items).toHaveLength(1);
  expect(items[0].results).toHaveLength(20);
});

test('a report that the database did not take is landed by its next try, and the slot is free', async () => {
  const proxy = await startFaultProxy(database.url);
  const behind = await startService({ url: proxy.url });
  const parent = freshId('parent');
  const [child = ''] = await childrenOf(parent, { tasks: tasksOf(1), max_concurrent: 1 });
  await proxy.set('refuse');
  const lost = await reportIdle(behind, child, { output: 'kept' });
  expect(lost).toMatchObject({ status: 503, body: { reason: 'storage_unavailable' } });
  expect(await activeCount(parent)).toBe(1);
  await proxy.set('pass');
  await expect
    .poll(async () => (await reportIdle(behind, child, { output: 'kept' })).status, {
      timeout: 10_000,
      interval: 200,
    })
    .toBe(204);
  expect(await activeCount(parent)).toBe(0);
  expect(await inboxOf(one, { parent })).toMatchObject([{ summary: 'kept' }]);
  await behind.stop();
  await proxy.close();
});

describe('a service that is killed', () => {
  test("at any moment of a child's report leaves its result, or a report to repeat", async () => {
    const until = performance.now() + RACES_MS;
    for (let round = 0; round < 6 && performance.now() < until; round += 1) {
      const parent = freshId('parent');
      const children = await childrenOf(parent, {
        tasks: tasksOf(5),
        independent_completions: true,
      });
      const process = await startProcessHere();
      const reports = children.map((child) =>
        reportIdle(process, child, { output: `of ${child}` }).catch(() => null),
      );
      await new Promise((resolve) => setTimeout(resolve, round * 4));
      await process.kill('SIGKILL');
      const answers = await Promise.all(reports);
      const unanswered = children.filter((_, at) => answers[at]?.status !== 204);
      for (const child of unanswered) await reportIdle(one, child, { output: `of ${child}` });
      const items = await inboxOf(one, { parent });
      expect(new Set(items.map((item) => item.summary))).toEqual(
        new Set(children.map((child) => `of ${child}`)),
      );
      expect(items).toHaveLength(5);
      expect(await activeCount(parent)).toBe(0);
    }
  });

  test('leaves what was dispatched, and its children report to the next one', async () => {
    const process = await startProcessHere();
    const parent = freshId('parent');
    const answer = await post(process, parent, { tasks: tasksOf(2) });
    await process.kill('SIGKILL');
    for (const { child_session_id: child } of answer.body.tasks) await reportIdle(two, child);
    expect(await inboxOf(one, { parent })).toMatchObject([{ status: 'completed' }]);
  });
});
