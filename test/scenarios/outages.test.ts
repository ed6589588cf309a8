import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { deliverTo, freshId, path } from '../support/delivery.ts';
import { operationsOf, pathWith, sampleOf, type Operation } from '../support/document.ts';
import { startFaultProxy, type Fault, type FaultProxy } from '../support/fault-proxy.ts';
import type { Answer } from '../support/http-client.ts';
import { startService, type TestService } from '../support/service.ts';
import {
  inboxOf,
  inShort,
  isChild,
  newPair,
  opens,
  status,
  take,
  type Pair,
} from '../support/steps.ts';

/* What the service answers while its database cannot be used, and how it comes back. */

const database = useDatabase();
/** What needs no database. */
const ALWAYS = ['getLiveness', 'getMetrics', 'getProblem', 'getDocument', 'getDocs'];
const WITHIN_MS = 5_000;

let proxy: FaultProxy;
let service: TestService;
let operations: Operation[];
let values: Record<string, string>;

beforeAll(async () => {
  proxy = await startFaultProxy(database.url);
  service = await startService({ url: proxy.url }, { env: { WEBHOOK_ALLOW_PRIVATE: 'true' } });
  operations = operationsOf((await service.request('GET', '/openapi.json')).body);
  values = await whatIsThere();
});
afterAll(async () => {
  await proxy.set('pass');
  await service.stop();
  await proxy.close();
});

beforeEach(recover);

/** The database can be reached, and the service has noticed. */
async function recover(): Promise<void> {
  await proxy.set('pass');
  await expect
    .poll(async () => (await service.request('GET', '/readyz')).status, { timeout: 15_000 })
    .toBe(200);
}

/** One of each thing that a path can name. */
async function whatIsThere(): Promise<Record<string, string>> {
  const parent = freshId('parent');
  await service.request('PUT', path(parent), { inbox: 'open' });
  const { itemId, workId } = await deliverTo(service, parent);
  const post = async (route: string, body?: object): Promise<Record<string, string>> =>
    (await service.request('POST', `${path(parent)}/${route}`, body)).body;
  const viewer = await post('viewers');
  const delegation = await post('delegations', { tasks: [{ goal: 'g' }] });
  return {
    id: parent,
    item_id: itemId,
    work_id: workId,
    viewer_id: String(viewer['viewer_id']),
    delegation_id: String(delegation['delegation_id']),
    runner_id: 'runner_1',
    code: 'not_found',
  };
}

const terminal = (output = 'x') => ({
  type: 'external_session_status',
  data: { status: 'idle', output },
});

function bodyOf({ id, body }: Operation): unknown {
  if (id === 'postEvent') return terminal();
  if (id === 'postSession') return { session_id: freshId() };
  if (id === 'dispatchWork') return { child_session_id: freshId('child') };
  if (id === 'putWebhook') return { url: 'http://127.0.0.1:9/' };
  return body === null ? undefined : sampleOf(body, 'required');
}

async function ask(operation: Operation): Promise<Answer & { tookMs: number }> {
  const startedAt = performance.now();
  const target = pathWith(operation, values);
  const answer = await service.request(operation.method, target, bodyOf(operation));
  return { ...answer, tookMs: performance.now() - startedAt };
}

/** Those that change least first, so that what a path names is there for all of them. */
function inOrder(all: Operation[]): Operation[] {
  return all.toSorted((a, b) => Number(a.method === 'DELETE') - Number(b.method === 'DELETE'));
}

describe.each<[string, Fault]>([
  ['refuses connections', 'refuse'],
  ['hangs', 'silence'],
  ['cuts connections', 'reset'],
  ['ends connections', 'fin'],
  ['is starting up', { error: '57P03' }],
  ['has no connections left', { error: '53300' }],
  ['is only a standby', { error: '25006' }],
])('while the database %s', (_, fault) => {
  test('every route that needs it is 503 within 5 s, and all are served afterwards', async () => {
    await proxy.set(fault);
    const answers = await Promise.all(operations.map(async (it) => [it, await ask(it)] as const));
    for (const [{ id }, answer] of answers) {
      const { tookMs, headers, body } = answer;
      expect([id, answer.status]).toEqual([id, ALWAYS.includes(id) ? 200 : 503]);
      expect([id, tookMs < WITHIN_MS, tookMs]).toEqual([id, true, tookMs]);
      if (answer.status !== 503) continue;
      expect(headers).toMatchObject({
        'content-type': 'application/problem+json',
        'retry-after': expect.stringMatching(/^\d+$/),
      });
      const error = id === 'postEvent' ? 'subagent_delivery_not_confirmed' : 'unavailable';
      expect(body).toMatchObject({ error, status: 503 });
      expect(JSON.stringify(body)).not.toMatch(/postgres|127\.0\.0\.1|ECONN|57P03|53300|25006/i);
    }

    await recover();
    for (const operation of inOrder(operations.filter((it) => it.method !== 'DELETE'))) {
      if (operation.streams) continue;
      const answer = await ask(operation);
      expect([operation.id, answer.status]).toEqual([operation.id, expect.any(Number)]);
      expect([operation.id, answer.status < 300 || answer.status === 404]).toEqual([
        operation.id,
        true,
      ]);
    }
  });

  test('a terminal report gets the flat body, and its next try is delivered, once', async () => {
    const pair = newPair(service);
    await take(pair, [isChild(), opens]);
    await proxy.set(fault);
    const answer = await status(pair, { status: 'idle', output: 'x' });
    expect(inShort(answer)).toBe('503 not_confirmed storage_unavailable');
    expect(answer.headers['retry-after']).toBe('1');
    expect(answer.body).toEqual({
      error: 'subagent_delivery_not_confirmed',
      reason: 'storage_unavailable',
      detail: expect.any(String),
      type: expect.any(String),
      title: expect.any(String),
      status: 503,
      instance: `${path(pair.child)}/events`,
      retry_after_seconds: 1,
    });
    const sign = await status(pair, { status: 'running' });
    expect(sign).toMatchObject({ status: 503, body: { error: 'unavailable' } });

    await proxy.set('pass');
    await expect
      .poll(async () => inShort(await status(pair, { status: 'idle', output: 'x' })), {
        timeout: 15_000,
      })
      .toMatch(/^204 (?:already_)?delivered$/);
    await expectOneItem(pair);
  });
});

describe('a call that is waited for while the database goes', () => {
  test('is interrupted when the database is back, if its client has left meanwhile', async () => {
    const parent = freshId('parent');
    const leaving = new AbortController();
    const gone = service.request(
      'POST',
      `${path(parent)}/delegations`,
      { tasks: [{ goal: 'g' }], finite: true },
      {},
      leaving.signal,
    );
    gone.catch(() => {});
    const statuses = async () =>
      await database.sql`select status from work where parent_session_id = ${parent}`;
    await expect.poll(statuses).toEqual([{ status: 'launching' }]);
    await expect.poll(() => service.resources.waiters.count()).toBe(1);
    await proxy.set('refuse');
    leaving.abort();
    await expect.poll(() => service.resources.waiters.count()).toBe(0);
    await recover();
    await expect.poll(statuses, { timeout: 15_000 }).toEqual([{ status: 'cancelling' }]);
  });

  test.each<Fault>(['refuse', 'reset', 'silence'])(
    '%s: is answered with where its results will be found, and goes on',
    async (fault) => {
      const parent = freshId('parent');
      const answer = service.request(
        'POST',
        `${path(parent)}/delegations`,
        { tasks: [{ goal: 'g' }], finite: true },
        { prefer: 'wait=60' },
      );
      const dispatched = async () =>
        await database.sql`
          select delegation_id as id, child_session_id as child from work
          where parent_session_id = ${parent}`;
      await expect.poll(dispatched).toHaveLength(1);
      await expect.poll(() => service.resources.waiters.count()).toBe(1);
      const [task] = await dispatched();
      await proxy.set(fault);
      service.resources.waiters.wake('default', String(task?.['id']));
      const location = `/v1/delegations/${task?.['id']}`;
      expect(await answer).toMatchObject({
        status: 202,
        headers: { location, 'retry-after': '1' },
        body: { mode: 'inline', status: 'running', delegation_id: task?.['id'] },
      });

      await recover();
      const call = async () => (await service.request('GET', location)).body;
      const running = { status: 'running', tasks: [{ status: 'launching' }] };
      await expect.poll(call, { timeout: 15_000 }).toMatchObject(running);
      const pair = { service, parent, child: task?.['child'] };
      await expect
        .poll(async () => inShort(await status(pair, { status: 'idle', output: 'x' })), {
          timeout: 15_000,
        })
        .toMatch(/^204 (?:already_)?delivered$/);
      const completed = { status: 'completed', results: [{ summary: 'x' }] };
      await expect.poll(call, { timeout: 15_000 }).toMatchObject(completed);
    },
  );
});

/** A connection that fell silent may still be in the pool: who gets it is answered 503. */
async function expectOneItem(pair: Pair): Promise<void> {
  await expect.poll(async () => await inboxOf(pair), { timeout: 15_000 }).toHaveLength(1);
}

describe('a database that goes while reports are under way', () => {
  test.each<Fault>(['reset', 'silence'])(
    '%s: what is answered 204 is there once',
    async (fault) => {
      const pairs = Array.from({ length: 40 }, () => newPair(service));
      await Promise.all(pairs.map((pair) => take(pair, [isChild(), opens])));
      const reports = pairs.map(async (pair, n) => {
        if (n === pairs.length / 2) await proxy.set(fault);
        return await status(pair, { status: 'idle', output: 'x' });
      });
      const answers = await Promise.all(reports);
      await proxy.set('pass');
      for (const [n, pair] of pairs.entries()) {
        const first = answers[n]?.status;
        expect([204, 503]).toContain(first);
        await expect
          .poll(async () => inShort(await status(pair, { status: 'idle', output: 'x' })), {
            timeout: 15_000,
          })
          .toMatch(first === 204 ? /already_delivered/ : /delivered/);
        await expectOneItem(pair);
      }
    },
  );
});
