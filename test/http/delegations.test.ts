import { describe, expect, test } from 'vitest';
import { prune } from '../../src/operations/prune.ts';
import { createTestClock } from '../support/clock.ts';
import { useDatabase } from '../support/database.ts';
import { freshId, path, reportIdle } from '../support/delivery.ts';
import { beat, inboxOf, sweepAll } from '../support/ledger.ts';
import { startService, useService } from '../support/service.ts';

const database = useDatabase();
const clock = createTestClock();
const service = useService(database, { clock });

const put = (id: string, body: object = {}) => service.request('PUT', path(id), body);
const post = (parent: string, body: object, headers = {}) =>
  service.request('POST', `${path(parent)}/delegations`, body, headers);
const list = async (parent: string, query = '') =>
  (await service.request('GET', `${path(parent)}/delegations${query}`)).body;
const get = (id: string) => service.request('GET', `/v1/delegations/${id}`);
const getWork = async (workId: string) => (await service.request('GET', `/v1/work/${workId}`)).body;
const inbox = (parent: string) => inboxOf(service, { parent });
const done = (child: string, result: object = {}, report: object = {}) =>
  reportIdle(service, child, { result, ...report });

/** The item that a report of the child is told of. */
const itemToldOf = async (child: string | undefined, result: object) =>
  (await done(child ?? '', result)).headers['delivery-item-id'];

const idsOf = (page: { data: { delegation_id: string }[] }) =>
  page.data.map((row) => row.delegation_id);

interface Dispatched {
  parent: string;
  id: string;
  children: string[];
  workIds: string[];
  // oxlint-disable-next-line typescript/no-explicit-any
  body: any;
}

/** A call of these goals, which must be dispatched. */
async function dispatched(goals: string[], said: object = {}, of?: string): Promise<Dispatched> {
  const parent = of ?? freshId('parent');
  const answer = await post(parent, { tasks: goals.map((goal) => ({ goal })), ...said });
  expect(answer).toMatchObject({ status: 202, body: { status: 'dispatched' } });
  const tasks: { child_session_id: string; work_id: string }[] = answer.body.tasks;
  return {
    parent,
    id: answer.body.delegation_id,
    children: tasks.map((task) => task.child_session_id),
    workIds: tasks.map((task) => task.work_id),
    body: answer.body,
  };
}

/** One that has ended with these results. */
async function ended(results: object[], said: object = {}) {
  const call = await dispatched(
    results.map((_, at) => `goal ${at}`),
    said,
  );
  for (const [at, child] of call.children.entries()) await done(child, results[at]);
  const [item] = await inbox(call.parent);
  return { ...call, item };
}

/** The way by which a call's results come back. */
async function modeOf(said: object, session?: object): Promise<string> {
  const parent = freshId('parent');
  if (session) await put(parent, { channel: session });
  const answer = await post(parent, { tasks: [{ goal: 'x' }], ...said }, { prefer: 'wait=0' });
  expect(answer.status).toBe(202);
  return answer.body.mode;
}

async function pruneAll(): Promise<void> {
  let cursor: Parameters<typeof prune>[1] = null;
  do cursor = (await prune(service.resources, cursor)).cursor;
  while (cursor !== null);
}

describe('a call', () => {
  test('is answered at once with its handle, before any runner has acted', async () => {
    const { parent, id, body, children } = await dispatched(['look', 'think']);
    expect(body).toEqual({
      status: 'dispatched',
      mode: 'background',
      delegation_id: expect.stringMatching(/^deleg_[0-9a-f]{12,}$/),
      count: 2,
      goals: ['look', 'think'],
      tasks: [
        { task_index: 0, child_session_id: children[0], work_id: expect.any(String) },
        { task_index: 1, child_session_id: children[1], work_id: expect.any(String) },
      ],
    });
    expect(await list(parent, '?state=active')).toMatchObject({
      data: [{ delegation_id: id, status: 'running' }],
      active_count: 1,
      active_task_count: 2,
    });
  });

  test('makes a child for each task, and uses those that it names', async () => {
    const [parent, named] = [freshId('parent'), freshId('child')];
    const { body } = await post(parent, {
      tasks: [
        { goal: 'a', agent: 'coder', title: 'fix' },
        { goal: 'b', child_session_id: named },
      ],
    });
    const [first, second] = body.tasks;
    expect(first.child_session_id).toMatch(/^session_/);
    expect(second.child_session_id).toBe(named);
    for (const child of [first.child_session_id, named]) {
      const session = (await service.request('GET', path(child))).body;
      expect(session).toMatchObject({
        parent_session_id: parent,
        work: { delegation_id: body.delegation_id },
      });
    }
    expect((await service.request('GET', path(first.child_session_id))).body).toMatchObject({
      agent_name: 'coder',
      title: 'fix',
    });
    expect(await getWork(second.work_id)).toMatchObject({
      status: 'launching',
      delegation_id: body.delegation_id,
      task_index: 1,
      goal: 'b',
      output: null,
    });
  });

  test('lands with all that the parent needs: type, summary, session key, ids', async () => {
    const { item, parent, id, workIds, children } = await ended(
      [{ summary: 'found it', api_calls: 3 }],
      {
        session_key: 'agent:main',
        origin_ui_session_id: 'ui-1',
        context: 'the context',
        toolsets: ['web', 'files'],
        role: 'leaf',
        model: 'm-1',
      },
    );
    expect(item).toMatchObject({
      type: 'async_delegation',
      delegation_id: id,
      session_key: 'agent:main',
      origin_ui_session_id: 'ui-1',
      origin_session_id: parent,
      parent_session_id: parent,
      goal: 'goal 0',
      goals: ['goal 0'],
      context: 'the context',
      toolsets: ['web', 'files'],
      role: 'leaf',
      model: 'm-1',
      status: 'completed',
      is_batch: true,
      summary: 'found it',
      error: null,
      api_calls: 3,
      exit_reason: 'completed',
      group: null,
      display_kind: 'async_delegation_complete',
      display_text: expect.stringContaining('found it'),
      follows: null,
      revision: 1,
      human_input: false,
    });
    expect(item.results).toEqual([
      {
        task_index: 0,
        session_id: children[0],
        work_id: workIds[0],
        status: 'completed',
        summary: 'found it',
        error: null,
        exit_reason: 'completed',
        truncated: false,
        api_calls: 3,
        duration_seconds: 0,
        model: 'm-1',
      },
    ]);
    for (const said of [
      'ASYNC DELEGATION COMPLETE',
      id,
      'goal 0',
      'the context',
      'web, files',
      'leaf',
      'm-1',
      'found it',
    ]) {
      expect(item.text).toContain(said);
    }
    expect((await service.request('GET', `${path(parent)}/inbox/${item.id}`)).body).toEqual(item);
  });

  test('without a session key has none, and its item is in the inbox only', async () => {
    const { item } = await ended([{}]);
    expect(item).toMatchObject({ session_key: null, origin_ui_session_id: null });
  });

  test('of a session that was continued is made by the one that goes on', async () => {
    const [parent, next] = [freshId('parent'), freshId('parent')];
    await put(parent, { continued_as: next });
    const { children, id } = await dispatched(['x'], { session_key: 'stale' }, parent);
    await done(children[0] ?? '');
    const [item] = await inbox(next);
    expect(item).toMatchObject({
      delegation_id: id,
      session_key: next,
      origin_session_id: parent,
      parent_session_id: next,
    });
  });

  test('of a session that is continued later lands with the one that goes on', async () => {
    const { parent, children } = await dispatched(['x'], { session_key: 'stale' });
    const next = freshId('parent');
    await put(parent, { continued_as: next });
    await done(children[0] ?? '');
    expect(await inbox(next)).toMatchObject([{ session_key: next, parent_session_id: parent }]);
  });

  test('says in text/plain what it says in JSON', async () => {
    const { parent, item } = await ended([{ summary: 'found it' }]);
    const asText = await service.request(
      'POST',
      `${path(parent)}/inbox/read`,
      {},
      { accept: 'text/plain' },
    );
    expect(asText.body).toBe(item.text);
  });

  test('is dispatched with a thousand tasks in few statements', async () => {
    const goals = Array.from({ length: 1000 }, (_, at) => `goal ${at}`);
    const { body, parent } = await dispatched(goals);
    expect(body.tasks).toHaveLength(1000);
    expect((await list(parent)).active_task_count).toBe(1000);
  });

  test.each([
    [{}, 'tasks'],
    [{ tasks: [] }, 'tasks'],
    [{ tasks: Array.from({ length: 1001 }, () => ({ goal: 'x' })) }, 'tasks'],
    [{ tasks: [{}] }, 'tasks.0.goal'],
    [{ tasks: [{ goal: 'x' }, { goal: 'y', child_session_id: '..' }] }, 'tasks.1.child_session_id'],
    [{ tasks: [{ goal: 'x' }], deadline_seconds: 0 }, 'deadline_seconds'],
    [{ tasks: [{ goal: 'x' }], max_concurrent: 0 }, 'max_concurrent'],
    [{ tasks: [{ goal: 'x' }], stall: { idle_seconds: '1' } }, 'stall.idle_seconds'],
    [{ tasks: [{ goal: 'x' }], channel: { async_delivery: 1 } }, 'channel.async_delivery'],
    [
      {
        tasks: [
          { goal: 'x', child_session_id: 'twin' },
          { goal: 'y', child_session_id: 'twin' },
        ],
      },
      'tasks.1.child_session_id',
    ],
  ])('is refused if it is not valid (%#)', async (body, where) => {
    const answer = await post(freshId('parent'), body);
    expect(answer.status).toBe(400);
    expect(answer.body.errors[0].path).toBe(where);
  });

  test('takes null for whatever it need not say', async () => {
    const nothing = Object.fromEntries(
      ['context', 'toolsets', 'role', 'model', 'session_key', 'origin_ui_session_id', 'finite']
        .concat(['max_concurrent', 'independent_completions', 'child_timeout_seconds', 'stall'])
        .concat(['deadline_seconds', 'notify', 'notify_failures', 'channel'])
        .map((field) => [field, null]),
    );
    await dispatched(['x'], nothing);
  });

  test('names the tasks whose children are busy, and dispatches none', async () => {
    const parent = freshId('parent');
    const [busy, idle] = [freshId('child'), freshId('child')];
    await service.request('POST', `${path(parent)}/work`, { child_session_id: busy });
    const answer = await post(parent, {
      tasks: [
        { goal: 'a' },
        { goal: 'b', child_session_id: idle },
        { goal: 'c', child_session_id: busy },
      ],
    });
    expect(answer).toMatchObject({
      status: 409,
      body: { reason: 'child_busy', errors: [{ path: 'tasks.2.child_session_id' }] },
    });
    expect((await service.request('GET', path(idle))).status).toBe(404);
    expect(await list(parent)).toMatchObject({ data: [], active_count: 0 });
  });

  test("is refused for another parent's child, for its own ancestor, and for a deleted session", async () => {
    const [parent, child, stranger] = [freshId('parent'), freshId('child'), freshId('stranger')];
    await service.request('POST', `${path(parent)}/work`, { child_session_id: child });
    const to = (by: string, child_session_id: string) =>
      post(by, { tasks: [{ goal: 'x', child_session_id }] });
    expect((await to(stranger, child)).body.reason).toBe('parent_mismatch');
    expect((await to(child, parent)).status).toBe(400);
    expect((await to(child, child)).status).toBe(400);
    await service.request('DELETE', path(child));
    expect((await to(parent, child)).status).toBe(404);
    expect((await post(child, { tasks: [{ goal: 'x' }] })).status).toBe(404);
  });

  test('delivers first what is parked for a child that it names', async () => {
    const [parent, child] = [freshId('parent'), freshId('child')];
    await put(child, { parent_session_id: parent });
    expect((await reportIdle(service, child, { output: 'early' })).status).toBe(503);
    await post(parent, { tasks: [{ goal: 'x', child_session_id: child }] });
    expect(await inbox(parent)).toMatchObject([{ type: 'sub_agent', output: 'early' }]);
  });

  test('is made once for a key, and answered again', async () => {
    const parent = freshId('parent');
    const key = { 'idempotency-key': '"once"' };
    const body = { tasks: [{ goal: 'x' }, { goal: 'y' }], independent_completions: true };
    const other = await startService(database, { clock });
    const answers = await Promise.all(
      Array.from({ length: 10 }, (_, n) =>
        (n % 2 === 0 ? service : other).request('POST', `${path(parent)}/delegations`, body, key),
      ),
    );
    expect(new Set(answers.map((answer) => JSON.stringify(answer.body))).size).toBe(1);
    expect(answers.filter((answer) => answer.headers['idempotency-replayed'])).toHaveLength(9);
    expect((await list(parent)).active_count).toBe(1);
    const changed = await post(parent, { tasks: [{ goal: 'z' }] }, key);
    expect(changed).toMatchObject({ status: 422, body: { error: 'idempotency_key_reused' } });
    await other.stop();
  });
});

describe('the way by which results come back', () => {
  test.each([
    ['nothing said', {}, undefined, 'background'],
    [
      'a channel that can be told later',
      { channel: { kind: 'telegram', async_delivery: true } },
      undefined,
      'background',
    ],
    [
      'a channel that cannot',
      { channel: { kind: 'telegram', async_delivery: false } },
      undefined,
      'inline',
    ],
    ['a session whose channel cannot', {}, { kind: 'http', async_delivery: false }, 'inline'],
    [
      'a request that says it can after all',
      { channel: { async_delivery: true } },
      { kind: 'http', async_delivery: false },
      'background',
    ],
    [
      'a kanban worker, whatever it says',
      {},
      { kind: 'kanban_worker', async_delivery: true },
      'inline',
    ],
    ['a cron job', { channel: { kind: 'cron', async_delivery: true } }, undefined, 'inline'],
    ['a one-shot run', {}, { kind: 'one_shot' }, 'inline'],
    [
      'an API server, whatever it says',
      { channel: { kind: 'api_server', async_delivery: true } },
      undefined,
      'inline',
    ],
    [
      'an API server that reads the history',
      { channel: { kind: 'api_server', history_delivery: true } },
      undefined,
      'background',
    ],
    [
      'a finite run that reads the history',
      { finite: true, channel: { kind: 'api_server', history_delivery: true } },
      undefined,
      'inline',
    ],
    ['"1" for finite', { finite: '1' }, undefined, 'inline'],
    ['"0" for finite', { finite: '0' }, undefined, 'background'],
    ['"false" for finite', { finite: 'false' }, undefined, 'background'],
    [
      'finite left out, with history',
      { channel: { kind: 'api_server', history_delivery: true } },
      undefined,
      'background',
    ],
    ['a terminal', {}, { kind: 'cli' }, 'background'],
  ])('with %s', async (_, said, session, mode) => {
    expect(await modeOf(said, session)).toBe(mode);
  });

  test('is decided for the request, changes nothing of the session, and does not outlive it', async () => {
    const parent = freshId('parent');
    await put(parent, { channel: { kind: 'telegram', route: 'r' }, max_concurrent: 5 });
    const before = (await service.request('GET', path(parent))).body;
    const asApi = { tasks: [{ goal: 'x' }], channel: { kind: 'api_server' } };
    expect((await post(parent, asApi, { prefer: 'wait=0' })).body.mode).toBe('inline');
    const { inbox: _, ...after } = (await service.request('GET', path(parent))).body;
    expect(before).toMatchObject(after);
    expect((await post(parent, { tasks: [{ goal: 'x' }] })).body.mode).toBe('background');
  });

  test('is shown with the channel that was declared', async () => {
    const channel = { kind: 'telegram', async_delivery: true, route: 'chat-1' };
    const { id } = await dispatched(['x'], { channel });
    expect((await get(id)).body.channel).toEqual(channel);
  });

  test('with history carries the session that was asked, and wakes nobody', async () => {
    const { item, parent, id } = await ended([{}], {
      channel: { kind: 'api_server', history_delivery: true },
    });
    expect(item.origin_session_id).toBe(parent);
    const [row] = await database.sql`select wakes from delegations where delegation_id = ${id}`;
    expect(row?.['wakes']).toBe(false);
  });

  test('echoes a wish to be notified where that can be', async () => {
    expect((await dispatched(['x'], { notify: true })).body.notify).toBe(true);
    expect((await dispatched(['x'])).body).not.toHaveProperty('notify');
  });
});

describe('capacity', () => {
  const tasks = [{ goal: 'x' }, { goal: 'y' }];

  test('refuses what is too much, says so, and stores nothing of it', async () => {
    const parent = freshId('parent');
    await dispatched(['a'], { max_concurrent: 2 }, parent);
    await dispatched(['b'], { max_concurrent: 2 }, parent);
    const refused = await post(parent, { tasks, max_concurrent: 2 }, { 'idempotency-key': '"k"' });
    expect(refused).toMatchObject({
      status: 429,
      body: { error: 'capacity_reached', outcome: 'rejected' },
    });
    expect(refused.body.detail).toContain('capacity reached');
    expect(refused.headers['retry-after']).toBeDefined();
    expect((await list(parent)).data).toHaveLength(2);
    const [row] = await database.sql`
      select count(*)::int as children from sessions where parent_session_id = ${parent}`;
    expect(row?.['children']).toBe(2);
  });

  test("is the request's, else the session's, else ten", async () => {
    const parent = freshId('parent');
    for (let n = 0; n < 10; n += 1) await dispatched(['x'], {}, parent);
    expect((await post(parent, { tasks })).status).toBe(429);
    await put(parent, { max_concurrent: 11 });
    await dispatched(['x'], {}, parent);
    expect((await post(parent, { tasks })).status).toBe(429);
    await dispatched(['x'], { max_concurrent: 12 }, parent);
  });

  test('counts a call once, however many units it has', async () => {
    const parent = freshId('parent');
    const said = { max_concurrent: 1, independent_completions: true };
    const { children } = await dispatched(['a', 'b'], said, parent);
    expect(await list(parent)).toMatchObject({ active_count: 1, active_task_count: 2 });
    expect((await post(parent, { tasks, ...said })).status).toBe(429);
    await done(children[0] ?? '');
    expect((await post(parent, { tasks, ...said })).status).toBe(429);
    await done(children[1] ?? '');
    await dispatched(['c'], said, parent);
  });

  test('does not count plain work, nor the calls of others', async () => {
    const parent = freshId('parent');
    await service.request('POST', `${path(parent)}/work`, { child_session_id: freshId('child') });
    await dispatched(['a'], { max_concurrent: 1 });
    await dispatched(['a'], { max_concurrent: 1 }, parent);
  });

  test('goes on counting when the session goes on as another', async () => {
    const [parent, next] = [freshId('parent'), freshId('parent')];
    await dispatched(['a'], {}, parent);
    await put(parent, { continued_as: next });
    expect((await post(next, { tasks, max_concurrent: 1 })).status).toBe(429);
    expect((await list(next)).active_count).toBe(1);
  });

  test('loses no slot to a call that could not be stored', async () => {
    const parent = freshId('parent');
    await database.sql`
      create function refuse_poison() returns trigger language plpgsql as
      $$ begin if new.goal = 'poison' then raise 'poisoned'; end if; return new; end $$`;
    await database.sql`
      create trigger refuse_poison before insert on work for each row
      execute function refuse_poison()`;
    const poison = { tasks: [{ goal: 'x' }, { goal: 'poison' }], max_concurrent: 1 };
    for (let n = 0; n < 3; n += 1) expect((await post(parent, poison)).status).toBe(500);
    await database.sql`drop function refuse_poison() cascade`;
    await dispatched(['x'], { max_concurrent: 1 }, parent);
  });

  test('is free again when a call is stalled', async () => {
    const parent = freshId('parent');
    const stall = { idle_seconds: 10, grace_seconds: 5 };
    const { children } = await dispatched(['x'], { max_concurrent: 1, stall }, parent);
    await beat(service, children[0] ?? '', { api_calls: 1 });
    for (let second = 0; second < 25; second += 1) {
      clock.advance(1000);
      await sweepAll(service);
    }
    expect(await inbox(parent)).toMatchObject([{ status: 'stalled' }]);
    await dispatched(['x'], { max_concurrent: 1 }, parent);
  });

  test('refuses by a closed session, until it is watched again', async () => {
    const parent = freshId('parent');
    await put(parent);
    const viewer = (await service.request('POST', `${path(parent)}/viewers`, {})).body.viewer_id;
    await service.request('DELETE', `${path(parent)}/viewers/${viewer}?end_reason=user_exit`);
    expect(await post(parent, { tasks })).toMatchObject({
      status: 409,
      body: { reason: 'session_closed', outcome: 'rejected' },
    });
    await service.request('POST', `${path(parent)}/viewers`, {});
    await dispatched(['x'], {}, parent);
  });
});

describe('a unit', () => {
  test('is the whole call by default: groups are inert, nothing of units in the handle', async () => {
    const parent = freshId('parent');
    const answer = await post(parent, {
      tasks: [{ goal: 'a' }, { goal: 'b', group: 'g' }, { goal: 'c', group: 'h' }],
    });
    expect(answer.body).not.toHaveProperty('units');
    const children = answer.body.tasks.map(
      (task: { child_session_id: string }) => task.child_session_id,
    );
    await done(children[2]);
    await done(children[0]);
    expect(await inbox(parent)).toEqual([]);
    await done(children[1]);
    const items = await inbox(parent);
    expect(items).toHaveLength(1);
    expect(items[0].results.map((result: { task_index: number }) => result.task_index)).toEqual([
      0, 1, 2,
    ]);
    expect(items[0]).not.toHaveProperty('summary');
  });

  test('of a group completes together, a task without one alone', async () => {
    const parent = freshId('parent');
    const answer = await post(parent, {
      independent_completions: true,
      tasks: [{ goal: 'a' }, { goal: 'b', group: 'g' }, { goal: 'c', group: 'g' }, { goal: 'd' }],
    });
    const { delegation_id: id, units, tasks } = answer.body;
    expect(units).toEqual([
      { delegation_id: `${id}-1`, group: null, task_indexes: [0] },
      { delegation_id: `${id}-2`, group: 'g', task_indexes: [1, 2] },
      { delegation_id: `${id}-3`, group: null, task_indexes: [3] },
    ]);
    const seen = async () => (await inbox(parent)).map((item) => item.delegation_id);
    await done(tasks[3].child_session_id);
    expect(await seen()).toEqual([`${id}-3`]);
    await done(tasks[1].child_session_id);
    expect(await seen()).toEqual([`${id}-3`]);
    await done(tasks[2].child_session_id);
    await done(tasks[0].child_session_id);
    expect(await seen()).toEqual([`${id}-3`, `${id}-2`, `${id}-1`]);
    expect((await inbox(parent))[1]).toMatchObject({ group: 'g', goals: ['a', 'b', 'c', 'd'] });
    expect((await get(`${id}-2`)).body.delegation_id).toBe(id);
  });

  test('starts whatever the capacity, and accrues no stall while nobody has taken it up', async () => {
    const { children, parent } = await dispatched(['a', 'b'], {
      max_concurrent: 1,
      independent_completions: true,
      stall: { idle_seconds: 5, grace_seconds: 1 },
    });
    for (const child of children) {
      expect((await service.request('GET', path(child))).body.work.status).toBe('launching');
    }
    for (let second = 0; second < 20; second += 1) {
      clock.advance(1000);
      await sweepAll(service);
    }
    expect(await inbox(parent)).toEqual([]);
    for (const child of children) await done(child);
    expect(await inbox(parent)).toHaveLength(2);
  });

  test('reports every child: one failure hides no sibling', async () => {
    const { item, id } = await ended([
      { summary: 'fine' },
      { status: 'failed', error: 'broke' },
      { failed: true, summary: 'claimed', error: 'but failed' },
    ]);
    expect(item.status).toBe('completed');
    expect(item.results).toMatchObject([
      { status: 'completed', summary: 'fine' },
      { status: 'failed', error: 'broke', exit_reason: 'error' },
      { status: 'failed', error: 'but failed' },
    ]);
    expect((await get(id)).body).toMatchObject({ status: 'completed', results: item.results });
  });

  test('of which none succeeded is an error; one task gives its own status', async () => {
    expect((await ended([{ status: 'failed' }, { status: 'error' }])).item.status).toBe('error');
    expect((await ended([{ status: 'timeout' }])).item).toMatchObject({
      status: 'timeout',
      exit_reason: 'timeout',
      error: expect.stringContaining('timed out'),
    });
  });

  test('takes the words of a report without a result', async () => {
    const { children, parent } = await dispatched(['a', 'b']);
    await reportIdle(service, children[0] ?? '', { output: 'said' });
    await reportIdle(service, children[1] ?? '', { status: 'failed', output: 'boom' });
    const [item] = await inbox(parent);
    expect(item.results).toMatchObject([
      { status: 'completed', summary: 'said', exit_reason: 'completed' },
      { status: 'failed', error: 'boom', summary: null, exit_reason: 'error' },
    ]);
  });

  test('adds nothing for a second report of a child', async () => {
    const { children, parent } = await dispatched(['a']);
    await done(children[0] ?? '', { summary: 'one' });
    const again = await done(children[0] ?? '', { summary: 'one' });
    expect(again.headers['delivery-outcome']).toBe('already_delivered');
    expect(await inbox(parent)).toHaveLength(1);
  });

  test('names its item to the report that ends it, and to each repeat after that', async () => {
    const { children, parent } = await dispatched(['a', 'b']);
    expect(await itemToldOf(children[0], { summary: 'one' })).toBeUndefined();
    const named = await itemToldOf(children[1], { summary: 'two' });
    const [item] = await inbox(parent);
    expect(named).toBe(item.id);
    expect(await itemToldOf(children[0], { summary: 'one' })).toBe(item.id);
    expect(await itemToldOf(children[1], { summary: 'two' })).toBe(item.id);
  });

  test('shows long summaries cut, and whole at the work entry', async () => {
    const long = 'ä'.repeat(200 * 1024);
    const { item, id, workIds } = await ended([{ summary: long }, { summary: 'short' }]);
    expect(item.results[0]).toMatchObject({ summary_truncated: true });
    expect(Buffer.byteLength(item.results[0].summary)).toBeLessThanOrEqual(256 * 1024);
    expect(item.results[1]).not.toHaveProperty('summary_truncated');
    expect((await get(id)).body.results[0].summary_truncated).toBe(true);
    expect((await getWork(workIds[0] ?? '')).result.summary).toBe(long);
  });

  test('gives early word of a failure where that was asked for; it settles nothing', async () => {
    const { children, parent, id, workIds } = await dispatched(['a', 'b'], {
      notify_failures: true,
    });
    await done(children[0] ?? '', { status: 'failed', error: 'broke' });
    const [early] = await inbox(parent);
    expect(early).toMatchObject({
      type: 'task_failed',
      delegation_id: id,
      status: 'failed',
      goal: 'a',
      error: 'broke',
      api_calls: 0,
      exit_reason: 'error',
      results: [{ task_index: 0, work_id: workIds[0], error: 'broke' }],
      display_kind: 'task_failed',
    });
    expect(early.text).toContain('settles nothing');
    await service.request('POST', `${path(parent)}/inbox/ack`, { item_ids: [early.id] });
    expect((await get(id)).body.status).toBe('running');
    await done(children[1] ?? '', { summary: 'fine' });
    const items = await inbox(parent);
    expect(items.map((item) => item.type)).toEqual(['task_failed', 'async_delegation']);
    expect(items[1].results).toHaveLength(2);
  });

  test('says nothing early where it was not asked for, nor for its last task', async () => {
    const quiet = await dispatched(['a', 'b']);
    await done(quiet.children[0] ?? '', { status: 'failed' });
    expect(await inbox(quiet.parent)).toEqual([]);
    const last = await ended([{ status: 'failed' }], { notify_failures: true });
    expect((await inbox(last.parent)).map((item) => item.type)).toEqual(['async_delegation']);
  });
});

describe('the text of an item', () => {
  const LIMIT = { exit_reason: 'max_iterations' };

  test('says when it was dispatched, and how long ago by the time it is read', async () => {
    const { parent, item } = await ended([{ summary: 's' }]);
    expect(item.text).toContain('just now');
    clock.advance(5 * 60_000);
    expect((await inbox(parent))[0].text).toContain('5 minutes ago');
  });

  test('has a banner for a task that hit its limit, which is completed all the same', async () => {
    const { item } = await ended([{ summary: 'half', ...LIMIT }]);
    expect(item.results[0]).toMatchObject({ status: 'completed', truncated: true, ...LIMIT });
    expect(item.text).toContain('TRUNCATED');
    expect(item.text).toContain('max_iterations');
    expect(item.text).toContain('half');
  });

  test('has none for a clean one', async () => {
    const { text } = (await ended([{ summary: 'whole' }])).item;
    expect(text).not.toContain('TRUNCATED');
    expect(text).not.toContain('max_iterations');
  });

  test('marks of several tasks only the one that hit its limit', async () => {
    const { text } = (await ended([{ summary: 'whole' }, { summary: 'half', ...LIMIT }])).item;
    expect(text.match(/TRUNCATED/g)).toHaveLength(1);
    expect(text.indexOf('TRUNCATED')).toBeGreaterThan(text.indexOf('whole'));
    expect(text.indexOf('TRUNCATED')).toBeGreaterThan(text.indexOf('TASK 2/2'));
  });

  const rejected = { status: 'failed', error: '400: bad-model is not a valid model ID' };

  test('tells once, before the first task, of a model that was rejected', async () => {
    const { text } = (await ended([rejected, rejected], { model: 'bad-model' })).item;
    expect(text.match(/SUBAGENT MODEL REJECTED/g)).toHaveLength(1);
    expect(text.indexOf('SUBAGENT MODEL REJECTED')).toBeLessThan(text.indexOf('TASK 1/2'));
    expect(text).toContain('delegation.model');
  });

  test.each([
    ['all went well', [{ summary: 'fine' }], 'bad-model'],
    ['another model was named', [rejected], 'my-model'],
    ['none was configured', [rejected], null],
  ])('does not tell of one if %s', async (_, results, model) => {
    expect((await ended(results, { model })).item.text).not.toContain('MODEL REJECTED');
  });

  test('tells of a lost runner how many results were recorded', async () => {
    const { parent, children } = await dispatched(['a', 'b']);
    await put(children[1] ?? '', { runner_id: freshId('runner') });
    const runner = (await service.request('GET', path(children[1] ?? ''))).body.runner_id;
    await service.request('PUT', `/v1/runners/${runner}`, { lease_seconds: 5 });
    await done(children[0] ?? '', { summary: 'kept' });
    for (let second = 0; second < 15; second += 1) {
      clock.advance(1000);
      await sweepAll(service);
    }
    const [item] = await inbox(parent);
    expect(item).toMatchObject({
      status: 'unknown',
      error: expect.stringContaining('1/2 child results were recorded'),
    });
    expect(item.results).toMatchObject([
      { status: 'completed', summary: 'kept' },
      { status: 'unknown' },
    ]);
    expect(item.text).toContain('1/2 child results were recorded');
  });
});

describe('what can be seen of a delegation', () => {
  test('while it runs: what its children do, and nothing that is not for others', async () => {
    const { parent, children, id } = await dispatched(['a', 'b']);
    await beat(service, children[0] ?? '', { api_calls: 2, current_tool: 'web' });
    clock.advance(3000);
    await done(children[1] ?? '');
    const { data, active_count, active_task_count } = await list(parent, '?state=active');
    expect([active_count, active_task_count]).toEqual([1, 1]);
    expect(data[0]).toMatchObject({
      delegation_id: id,
      status: 'running',
      in_tool: true,
      seconds_since_progress: 3,
      children_activity: [
        {
          task_index: 0,
          session_id: children[0],
          status: 'running',
          api_calls: 2,
          current_tool: 'web',
          seconds_since_activity: 3,
        },
        {
          task_index: 1,
          session_id: children[1],
          status: 'completed',
          api_calls: null,
          current_tool: null,
          seconds_since_activity: null,
        },
      ],
    });
    expect(JSON.stringify(data)).not.toMatch(/tenant|lease|wakes|digest/i);
  });

  test('is its request, its units, its tasks and its results', async () => {
    const request = {
      context: 'c',
      role: 'r',
      model: 'm',
      max_concurrent: 3,
      independent_completions: true,
      child_timeout_seconds: 60.5,
      deadline_seconds: 120,
      stall: { idle_seconds: 300, grace_seconds: 0 },
      notify: true,
      notify_failures: true,
    };
    const { parent, id, children } = await dispatched(['a', 'b'], request);
    await done(children[1] ?? '', { summary: 's' });
    clock.advance(2000);
    const running = (await get(id)).body;
    expect(running).toMatchObject({
      delegation_id: id,
      parent_session_id: parent,
      mode: 'background',
      status: 'running',
      completed_at: null,
      total_duration_seconds: null,
      ...request,
      units: [
        { delegation_id: `${id}-1`, task_indexes: [0], status: 'running', error: null },
        { delegation_id: `${id}-2`, task_indexes: [1], status: 'completed', error: null },
      ],
      tasks: [
        { task_index: 0, goal: 'a', model: 'm', status: 'launching' },
        { task_index: 1, goal: 'b', model: 'm', status: 'completed' },
      ],
      results: [{ task_index: 1, summary: 's' }],
    });
    await done(children[0] ?? '');
    expect((await get(id)).body).toMatchObject({ status: 'completed', total_duration_seconds: 2 });
    expect((await list(parent, '?state=active')).data).toEqual([]);
    const { data } = await list(parent, '?state=ended');
    expect(data).toMatchObject([{ delegation_id: id, status: 'completed' }]);
    expect(data[0]).not.toHaveProperty('children_activity');
  });

  test('repeats that its children never stall, if that was asked for', async () => {
    const { id } = await dispatched(['a'], { stall: null });
    expect((await get(id)).body).toMatchObject({ stall: null });
    const { id: other } = await dispatched(['a']);
    expect((await get(other)).body).not.toHaveProperty('stall');
  });

  test('says of a unit of one task what went wrong, and of several only that a runner was lost', async () => {
    const { id, children } = await dispatched(['a', 'b', 'c'], { independent_completions: true });
    const [first = '', second = ''] = children;
    await done(first, { status: 'error', error: 'boom' });
    await done(second);
    expect((await get(id)).body.units.map((unit: { error: unknown }) => unit.error)).toEqual([
      'boom',
      null,
      null,
    ]);
    const { id: whole, children: both } = await dispatched(['a', 'b']);
    for (const child of both) await done(child, { status: 'error', error: 'boom' });
    expect((await get(whole)).body.units).toMatchObject([{ status: 'error', error: null }]);
  });

  test('can be waited for', async () => {
    const { id, children } = await dispatched(['a']);
    const waiting = service.request('GET', `/v1/delegations/${id}`, undefined, {
      prefer: 'wait=30',
    });
    await done(children[0] ?? '');
    const answer = await waiting;
    expect(answer.headers['preference-applied']).toBe('wait=30');
    expect(answer.body.status).toBe('completed');
    const other = await dispatched(['a']);
    const early = await service.request('GET', `/v1/delegations/${other.id}`, undefined, {
      prefer: 'wait=0.2',
    });
    expect(early.body.status).toBe('running');
  });

  test('is listed newest first, in pages', async () => {
    const parent = freshId('parent');
    const ids: string[] = [];
    for (let n = 0; n < 5; n += 1) ids.unshift((await dispatched(['x'], {}, parent)).id);
    const first = await list(parent, '?limit=2');
    expect(idsOf(first)).toEqual(ids.slice(0, 2));
    expect(first).toMatchObject({ has_more: true, last_id: ids[1] });
    expect(idsOf(await list(parent, `?after=${ids[1]}`))).toEqual(ids.slice(2));
    expect((await service.request('GET', `${path(parent)}/delegations?state=all`)).status).toBe(
      400,
    );
    expect((await service.request('GET', `${path(freshId())}/delegations`)).status).toBe(404);
    expect((await get('deleg_0')).status).toBe(404);
  });
});

describe('what outlives the service', () => {
  test('a completion is restored once after a restart, until it is acked', async () => {
    const own = await startService(database, { clock });
    const { parent, children } = await dispatched(['x']);
    await reportIdle(own, children[0] ?? '', { output: 'kept' });
    await own.stop();
    const restarted = await startService(database, { clock });
    const [item] = await inboxOf(restarted, { parent });
    expect(item.summary).toBe('kept');
    const ack = () =>
      restarted.request('POST', `${path(parent)}/inbox/ack`, { item_ids: [item.id] });
    expect((await ack()).body.acked).toEqual([item.id]);
    expect((await ack()).body.already_acked).toEqual([item.id]);
    await restarted.stop();
    expect((await service.request('POST', `${path(parent)}/inbox/read`)).body.items).toEqual([]);
  });

  test('a service stops promptly while children run, and loses none of them', async () => {
    const own = await startService(database, { clock });
    const { parent, children } = await dispatched(['x']);
    const startedAt = performance.now();
    await own.stop();
    expect(performance.now() - startedAt).toBeLessThan(3000);
    await done(children[0] ?? '', { summary: 'went on' });
    expect((await inbox(parent))[0].summary).toBe('went on');
  });
});

const DAY_MS = 86_400_000;

describe('retention', () => {
  test('keeps what lives or is unread, and the newest fifty of a parent', async () => {
    const parent = freshId('parent');
    const said = { max_concurrent: 1000, deadline_seconds: 1e8 };
    const live = await dispatched(['live'], said, parent);
    const unread = await dispatched(['unread'], said, parent);
    const settled: Dispatched[] = [];
    for (let n = 0; n < 52; n += 1) settled.push(await dispatched([`done ${n}`], said, parent));
    for (const { children } of [unread, ...settled]) await done(children[0] ?? '');
    const [first, ...rest] = await inbox(parent);
    expect(first.goal).toBe('unread');
    await service.request('POST', `${path(parent)}/inbox/ack`, {
      item_ids: rest.map((item) => item.id),
    });
    clock.advance(31 * DAY_MS);
    await pruneAll();
    const kept = (await list(parent, '?limit=1000')).data.map(
      (row: { delegation_id: string }) => row.delegation_id,
    );
    const newest = settled.slice(2).map((call) => call.id);
    expect(new Set(kept)).toEqual(new Set([live.id, unread.id, ...newest]));
    expect((await get(settled[0]?.id ?? '')).status).toBe(404);
    expect((await inbox(parent))[0].text).toContain('unread');
    await done(live.children[0] ?? '', { summary: 'at last' });
    expect((await get(live.id)).body.results[0].summary).toBe('at last');
  });

  test('keeps the results of a call that still runs, however old', async () => {
    const { parent, children } = await dispatched(['a', 'b'], {
      deadline_seconds: 1e8,
      stall: null,
    });
    await done(children[0] ?? '', { summary: 'early' });
    await service.request('DELETE', path(children[0] ?? ''));
    clock.advance(31 * DAY_MS);
    await pruneAll();
    await done(children[1] ?? '', { summary: 'late' });
    const [item] = await inbox(parent);
    expect(item.results).toMatchObject([{ summary: 'early' }, { summary: 'late' }]);
  });
});

const read = async (parent: string, body: object = {}) =>
  (await service.request('POST', `${path(parent)}/inbox/read`, body)).body;
const all = async (parent: string) =>
  (await service.request('GET', `${path(parent)}/inbox?state=all`)).body;
const remove = async (id: string) =>
  expect((await service.request('DELETE', path(id))).status).toBe(204);
const callsOf = async (parent: string) =>
  await database.sql`select delegation_id from delegations where parent_session_id = ${parent}`;

describe('what items repeat of their call', () => {
  const UNITS = { independent_completions: true, context: 'the context', toolsets: ['web'] };
  const WHOLE = { context: 'the context', toolsets: ['web'], goal: 'a', goals: ['a', 'b'] };

  test.each([
    ['unit', { independent_completions: true }],
    ['failed task', { notify_failures: true }],
  ])('is stored once, however many a %s each has an item', async (_, said) => {
    const bytesOf = async (tasks: number) => {
      const goals = Array.from({ length: tasks }, () => 'g'.repeat(2000));
      const { parent, children } = await dispatched(goals, { context: 'c'.repeat(9000), ...said });
      for (const child of children) await done(child, { status: 'failed', error: 'e' });
      const items = await inbox(parent);
      expect(items).toHaveLength(tasks);
      for (const item of items) expect(item.goals).toEqual(goals);
      const [row] = await database.sql`
        select sum(octet_length(to_jsonb(i)::text))::int as bytes from items i
        where session_id = ${parent}`;
      return Number(row?.['bytes']);
    };
    expect(await bytesOf(20)).toBeLessThan(20 * 2000);
  });

  test('counts for how much an answer may hold', async () => {
    const said = { ...UNITS, context: 'c'.repeat(6 * 1024 * 1024) };
    const { parent, children } = await dispatched(['a', 'b', 'c'], said);
    for (const child of children) await done(child);
    const page = await all(parent);
    expect([page.data.length, page.has_more]).toEqual([2, true]);
    const answer = await read(parent);
    expect([answer.items.length, answer.remaining]).toEqual([2, 1]);
    for (const item of [...page.data, ...answer.items]) expect(item.context).toBe(said.context);
  });

  test('is kept while one of them is there, acked or not, however old the call', async () => {
    const call = await dispatched(['a', 'b'], UNITS);
    for (const child of call.children) await done(child);
    for (let n = 0; n < 51; n += 1) {
      const { children } = await dispatched([`later ${n}`], { max_concurrent: 1000 }, call.parent);
      await done(children[0] ?? '');
    }
    clock.advance(31 * DAY_MS);
    const { items } = await read(call.parent, { drain: true });
    await pruneAll();
    expect((await all(call.parent)).data[0]).toMatchObject(WHOLE);
    const one = await service.request('GET', `${path(call.parent)}/inbox/${items[0].id}`);
    expect(one.body).toMatchObject(WHOLE);
    expect((await get(call.id)).status).toBe(200);

    clock.advance(8 * DAY_MS);
    await pruneAll();
    expect((await all(call.parent)).data).toEqual([]);
    expect((await get(call.id)).status).toBe(404);
  });

  test('goes with the session, its items and its call', async () => {
    const { parent, children } = await dispatched(['a', 'b'], UNITS);
    await done(children[0] ?? '');
    await remove(parent);
    expect(await callsOf(parent)).toEqual([]);
  });

  test('stays with the call, which is for the session that goes on when its own is deleted', async () => {
    const { parent, id, children } = await dispatched(['a', 'b'], UNITS);
    const next = freshId('parent');
    await put(parent, { continued_as: next });
    await done(children[0] ?? '');
    await remove(parent);
    expect(await inbox(next)).toMatchObject([
      { ...WHOLE, session_key: next },
      { ...WHOLE, goal: 'b', status: 'interrupted' },
    ]);
    expect((await get(id)).status).toBe(200);
  });

  test('is all that stays of a call of a deleted session, for items that went elsewhere', async () => {
    const { parent, id, children } = await dispatched(['a', 'b'], UNITS);
    const next = freshId('parent');
    await put(parent, { continued_as: next });
    await done(children[0] ?? '');
    await put(parent, { continued_as: null });
    const before = await inbox(next);
    expect(before).toMatchObject([{ ...WHOLE, session_key: next, parent_session_id: parent }]);
    await remove(parent);
    await put(parent);

    await pruneAll();
    expect(await inbox(next)).toEqual(before);
    for (const gone of [id, before[0].delegation_id]) {
      expect((await get(gone)).status).toBe(404);
      expect((await service.request('POST', `/v1/delegations/${gone}/interrupt`)).status).toBe(404);
    }
    for (const session of [parent, next]) {
      expect(await list(session)).toMatchObject({ data: [], active_count: 0 });
    }

    await read(next, { drain: true });
    clock.advance(8 * DAY_MS);
    await pruneAll();
    expect((await all(next)).data).toEqual([]);
    expect(await callsOf(parent)).toEqual([]);
  });

  test('stays for an item that is delivered while its session is being deleted', async () => {
    const { parent, id } = await dispatched(['a', 'b'], UNITS);
    const isWaiting = async () =>
      await database.sql`
        select pid from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'`;
    let removed: Promise<void> | undefined;
    await database.sql.begin(async (tx) => {
      await tx`select 1 from delegations where delegation_id = ${id} for update`;
      removed = remove(parent);
      await expect.poll(isWaiting).toHaveLength(1);
      await tx`
        insert into items (tenant_id, session_id, seq, source, type, delegation_id, agent, title,
          status, output, delivered_at)
        values ('default', ${freshId('parent')}, nextval('item_seq'), ${`unit:${id}-1:1`},
          'async_delegation', ${id}, '', '', 'completed', '', now())`;
    });
    await removed;
    expect(await callsOf(parent)).toHaveLength(1);
  });
});

const trace = (digit: string) => `00-${digit.repeat(32)}-${digit.repeat(16)}-01`;

test('an item belongs to the trace of the report that ended its unit', async () => {
  const { parent, children } = await dispatched(['one', 'two']);
  for (const [at, child] of children.entries()) {
    const event = { type: 'external_session_status', data: { status: 'idle', output: 'done' } };
    const headers = { traceparent: trace(String(at + 1)) };
    expect((await service.request('POST', `${path(child)}/events`, event, headers)).status).toBe(
      204,
    );
  }
  expect(await inbox(parent)).toMatchObject([{ traceparent: trace('2') }]);
});
