import { describe, expect, test } from 'vitest';
import { createTestClock } from '../support/clock.ts';
import { useDatabase } from '../support/database.ts';
import { freshId, path, reportIdle } from '../support/delivery.ts';
import { beat, inboxOf, sweepAll } from '../support/ledger.ts';
import { startService, useService, type TestService } from '../support/service.ts';

/* Parents that nobody can call back wait for their results in the request. */

const database = useDatabase();
const clock = createTestClock();
const service = useService(database, { clock });

const inbox = (parent: string) => inboxOf(service, { parent });
const get = async (id: string) => (await service.request('GET', `/v1/delegations/${id}`)).body;
const done = (child: string, result: object = {}) => reportIdle(service, child, { result });
const report = (child: string, data: object) =>
  service.request('POST', `${path(child)}/events`, { type: 'external_session_status', data });

interface Call {
  parent: string;
  answer: ReturnType<TestService['request']>;
  children: string[];
  workIds: string[];
  id: string;
  leave: () => void;
}

/** A call of these goals that waits, once its children are there. */
async function waiting(
  goals: string[],
  said: { body?: object; headers?: Record<string, string>; on?: TestService; parent?: string } = {},
): Promise<Call> {
  const { on = service, parent = freshId('parent') } = said;
  const leaving = new AbortController();
  const answer = on.request(
    'POST',
    `${path(parent)}/delegations`,
    { tasks: goals.map((goal) => ({ goal })), finite: true, ...said.body },
    { prefer: 'wait=30', ...said.headers },
    leaving.signal,
  );
  answer.catch(() => {});
  const tasks = await expect
    .poll(async () => await tasksOf(parent), { timeout: 5000 })
    .toHaveLength(goals.length)
    .then(() => tasksOf(parent));
  await expect.poll(() => on.resources.waiters.count()).toBeGreaterThan(0);
  return {
    parent,
    answer,
    children: tasks.map((task) => task['child_session_id']),
    workIds: tasks.map((task) => task['work_id']),
    id: tasks[0]?.['delegation_id'],
    leave: () => leaving.abort(),
  };
}

function tasksOf(parent: string) {
  return database.sql`
    select work_id, child_session_id, delegation_id from work
    where parent_session_id = ${parent} order by task_index`;
}

describe('a call that is waited for', () => {
  test('answers its results, in order, and puts nothing into the inbox', async () => {
    const { parent, answer, children, id } = await waiting(['a', 'b']);
    await done(children[1] ?? '', { failed: true, error: 'child broke', exit_reason: 'error' });
    clock.advance(1500);
    await done(children[0] ?? '', { summary: 'fine' });
    const { status, body } = await answer;
    expect(status).toBe(200);
    expect(body).toEqual({
      mode: 'inline',
      note: 'no_async',
      delegation_id: id,
      results: [
        expect.objectContaining({ task_index: 0, status: 'completed', summary: 'fine' }),
        expect.objectContaining({
          task_index: 1,
          status: 'failed',
          error: 'child broke',
          exit_reason: 'error',
        }),
      ],
      total_duration_seconds: 1.5,
    });
    expect(await inbox(parent)).toEqual([]);
    expect(await get(id)).toMatchObject({
      mode: 'inline',
      status: 'completed',
      results: body.results,
    });
  });

  test.each(['error', 'failed'])('keeps the text of a child that ended with %s', async (status) => {
    const { answer, children } = await waiting(['a', 'b']);
    await done(children[0] ?? '', { summary: 'fine' });
    await done(children[1] ?? '', { status, error: 'the text' });
    expect((await answer).body.results).toMatchObject([
      { status: 'completed' },
      { status, error: 'the text', exit_reason: 'error' },
    ]);
  });

  test('needs no open inbox, and is delivered where there is none', async () => {
    const parent = freshId('parent');
    await service.request('PUT', `${path(parent)}/inbox`);
    await service.request('DELETE', `${path(parent)}/inbox`);
    const { answer, children } = await waiting(['a'], { parent });
    expect((await done(children[0] ?? '')).headers['delivery-outcome']).toBe('delivered');
    expect((await answer).status).toBe(200);
  });

  test('says that nobody can be notified, and to poll', async () => {
    const { answer, children, id } = await waiting(['a'], { body: { notify: true } });
    await done(children[0] ?? '');
    const { body } = await answer;
    expect(body.notify).toBe(false);
    expect(body.notify_unsupported).toContain(`/v1/delegations/${id}`);
    expect(body.notify_unsupported).toMatch(/poll/i);
  });

  test('answers what times out though the child goes on, which adds nothing later', async () => {
    const { parent, answer, children, workIds, id } = await waiting(['a', 'b'], {
      body: { deadline_seconds: 10 },
    });
    await done(children[0] ?? '', { summary: 'in time' });
    clock.advance(1000);
    await sweepAll(service);
    for (let second = 0; second < 15; second += 1) {
      clock.advance(1000);
      await sweepAll(service);
    }
    const { body } = await answer;
    expect(body.results).toMatchObject([
      { status: 'completed', summary: 'in time' },
      { status: 'timeout', exit_reason: 'timeout', error: expect.stringContaining('timed out') },
    ]);
    expect((await beat(service, children[1] ?? '')).body).toMatchObject({
      interrupt_requested: true,
    });
    await reportIdle(service, children[1] ?? '', { output: 'too late' });
    expect((await get(id)).results).toEqual(body.results);
    expect(
      (await service.request('GET', `/v1/work/${workIds[1]}`)).body.late_results,
    ).toMatchObject([{ output: 'too late' }]);
    expect(await inbox(parent)).toEqual([]);
  });

  test('is woken by another replica', async () => {
    const other = await startService(database, { clock });
    const { answer, children } = await waiting(['a'], { on: other });
    await done(children[0] ?? '', { summary: 'from afar' });
    expect((await answer).body.results[0].summary).toBe('from afar');
    await other.stop();
  });

  test('is woken though the message that its call has ended was lost', async () => {
    const { answer, children } = await waiting(['a']);
    await database.sql`
      update work set status = 'completed', ended_at = now(), due_at = null, result = ${database.sql.json(
        {
          task_index: 0,
          session_id: children[0] ?? '',
          work_id: 'w',
          status: 'completed',
          summary: 'unheard',
          error: null,
          exit_reason: 'completed',
          truncated: false,
          api_calls: 0,
          duration_seconds: 0,
          model: null,
        },
      )} where child_session_id = ${children[0] ?? ''}`;
    await database.sql`
      update units set status = 'completed', ended_at = now()
      where delegation_id in (select delegation_id from work where child_session_id = ${children[0] ?? ''})`;
    await database.sql`
      update delegations set ended_at = now()
      where delegation_id in (select delegation_id from work where child_session_id = ${children[0] ?? ''})`;
    expect((await answer).body.results[0].summary).toBe('unheard');
  });
});

describe('when the time to wait is up', () => {
  test('the answer says where the results will be found, and nothing is interrupted', async () => {
    const parent = freshId('parent');
    const answer = await service.request(
      'POST',
      `${path(parent)}/delegations`,
      { tasks: [{ goal: 'a' }], finite: true },
      { prefer: 'wait=0.1' },
    );
    expect(answer.status).toBe(202);
    const id = answer.body.delegation_id;
    expect(answer.body).toEqual({ mode: 'inline', status: 'running', delegation_id: id });
    expect(answer.headers).toMatchObject({
      location: `/v1/delegations/${id}`,
      'retry-after': expect.stringMatching(/^\d+$/),
      'preference-applied': 'wait=0.1',
    });
    const delegation = await get(id);
    expect(delegation.tasks).toMatchObject([{ status: 'launching' }]);
    const later = service.request('GET', String(answer.headers.location), undefined, {
      prefer: 'wait=30',
    });
    await done(delegation.tasks[0].child_session_id, { summary: 'later' });
    expect((await later).body).toMatchObject({
      status: 'completed',
      results: [{ summary: 'later' }],
    });
    expect(await inbox(parent)).toEqual([]);
  });

  test('a service that drains answers at once, and the call goes on', async () => {
    const other = await startService(database, { clock });
    const { answer, children, id, parent } = await waiting(['a'], { on: other });
    const stopped = other.stop({ drainMs: 300 });
    expect(await answer).toMatchObject({ status: 202, body: { status: 'running' } });
    await stopped;
    expect((await get(id)).tasks).toMatchObject([{ status: 'launching' }]);
    await done(children[0] ?? '', { summary: 'went on' });
    expect((await get(id)).results).toMatchObject([{ summary: 'went on' }]);
    expect(await inbox(parent)).toEqual([]);
  });
});

describe('a client that leaves', () => {
  test('interrupts what it was waiting for, and what has ended is kept', async () => {
    const { leave, children, id, parent } = await waiting(['a', 'b']);
    await done(children[0] ?? '', { summary: 'kept' });
    leave();
    const asked = async () => (await beat(service, children[1] ?? '')).body.interrupt_requested;
    await expect.poll(asked, { timeout: 5000 }).toBe(true);
    await report(children[1] ?? '', { status: 'idle', output: 'as far as I got' });
    const { status, results } = await get(id);
    expect(status).toBe('completed');
    expect(results).toMatchObject([
      { status: 'completed', summary: 'kept' },
      { status: 'interrupted', summary: 'as far as I got', exit_reason: 'interrupted' },
    ]);
    expect(await inbox(parent)).toEqual([]);
  });

  test('gives its children a grace, and no more', async () => {
    const { leave, children, id } = await waiting(['a']);
    leave();
    const asked = async () => (await beat(service, children[0] ?? '')).body.interrupt_requested;
    await expect.poll(asked, { timeout: 5000 }).toBe(true);
    for (let second = 0; second < 15; second += 1) {
      clock.advance(1000);
      await sweepAll(service);
    }
    expect((await get(id)).results).toMatchObject([
      { status: 'interrupted', error: expect.stringContaining('went away') },
    ]);
  });

  test('with a key interrupts nothing: its next try waits for the same call', async () => {
    const parent = freshId('parent');
    const headers = { 'idempotency-key': '"again"' };
    const { leave, children, id } = await waiting(['a'], { parent, headers });
    const before = service.resources.waiters.count();
    leave();
    await expect.poll(() => service.resources.waiters.count()).toBe(before - 1);
    expect((await beat(service, children[0] ?? '')).body.interrupt_requested).toBe(false);
    const again = await waiting(['a'], { parent, headers });
    expect(again.children).toEqual(children);
    await done(children[0] ?? '', { summary: 'once' });
    const answer = await again.answer;
    expect(answer).toMatchObject({
      status: 200,
      body: { delegation_id: id, results: [{ summary: 'once' }] },
      headers: { 'idempotency-replayed': 'true' },
    });
    const third = await service.request(
      'POST',
      `${path(parent)}/delegations`,
      { tasks: [{ goal: 'a' }], finite: true },
      headers,
    );
    expect(third.body).toEqual(answer.body);
  });
});

test('the parent may interrupt what it waits for by another request', async () => {
  const { answer, children, id, parent } = await waiting(['a', 'b']);
  await done(children[0] ?? '', { summary: 'kept' });
  const interrupted = await service.request('POST', `${path(parent)}/delegations/interrupt`);
  expect(interrupted.body).toEqual({ interrupted: 1 });
  await report(children[1] ?? '', { status: 'idle' });
  expect((await answer).body).toMatchObject({
    delegation_id: id,
    results: [
      { status: 'completed', summary: 'kept' },
      { status: 'interrupted', exit_reason: 'interrupted' },
    ],
  });
});

test('when its parent is deleted the request ends, and nothing is left', async () => {
  const { answer, parent, id } = await waiting(['a']);
  await service.request('DELETE', path(parent));
  expect((await answer).status).toBe(404);
  expect((await service.request('GET', `/v1/delegations/${id}`)).status).toBe(404);
});

test('a hundred calls that wait are answered each with its own', async () => {
  const answers = Array.from({ length: 100 }, async (_, n) => {
    const parent = `crowd_${n}_${freshId()}`;
    const answer = service.request(
      'POST',
      `${path(parent)}/delegations`,
      { tasks: [{ goal: `goal ${n}` }], channel: { kind: 'one_shot' } },
      { prefer: 'wait=30' },
    );
    await expect
      .poll(async () => (await tasksOf(parent)).length, { timeout: 20_000, interval: 200 })
      .toBe(1);
    const [task] = await tasksOf(parent);
    await done(task?.['child_session_id'], { summary: `result ${n}` });
    return (await answer).body.results[0].summary;
  });
  expect(await Promise.all(answers)).toEqual(Array.from({ length: 100 }, (_, n) => `result ${n}`));
});
