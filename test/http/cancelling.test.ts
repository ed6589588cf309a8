import { describe, expect, test } from 'vitest';
import { createTestClock } from '../support/clock.ts';
import { useDatabase } from '../support/database.ts';
import { describeChild, freshId, path, reportIdle } from '../support/delivery.ts';
import { beat, inboxOf, sweepAll } from '../support/ledger.ts';
import { startService, useService } from '../support/service.ts';

const database = useDatabase();
const clock = createTestClock();
const service = useService(database, { clock });

const INTERRUPTED = '[System: sub-agent interrupted]';
const STOPPED = '[System: sub-agent stopped]';

const inbox = (parent: string) => inboxOf(service, { parent });
const event = (child: string, type: string, data: object = {}) =>
  service.request('POST', `${path(child)}/events`, { type, data });
const report = (child: string, data: object) => event(child, 'external_session_status', data);
const interrupt = (child: string, data: object = {}) => event(child, 'interrupt', data);
const stop = (child: string) => event(child, 'stop_session');
const getWork = async (workId: string) => (await service.request('GET', `/v1/work/${workId}`)).body;
const get = async (id: string) => (await service.request('GET', `/v1/delegations/${id}`)).body;
const withdraw = (workId: string) => service.request('DELETE', `/v1/work/${workId}`);
const remove = (session: string) => service.request('DELETE', path(session));

/** Plain work of a new child. */
async function working(): Promise<{ parent: string; child: string; workId: string }> {
  const [parent, child] = [freshId('parent'), freshId('child')];
  const answer = await service.request('POST', `${path(parent)}/work`, {
    child_session_id: child,
    agent: 'coder',
  });
  expect(answer.status).toBe(201);
  return { parent, child, workId: answer.body.work_id };
}

/** A call of so many tasks. */
async function delegated(count: number, said: object = {}, of?: string) {
  const parent = of ?? freshId('parent');
  const answer = await service.request('POST', `${path(parent)}/delegations`, {
    tasks: Array.from({ length: count }, (_, at) => ({ goal: `goal ${at}` })),
    ...said,
  });
  expect(answer.status).toBe(202);
  const tasks: { child_session_id: string; work_id: string }[] = answer.body.tasks;
  return {
    parent,
    id: String(answer.body.delegation_id),
    children: tasks.map((task) => task.child_session_id),
    workIds: tasks.map((task) => task.work_id),
  };
}

async function passSeconds(seconds: number): Promise<void> {
  for (let second = 0; second < seconds; second += 1) {
    clock.advance(1000);
    await sweepAll(service);
  }
}

describe('an interrupt', () => {
  test('is seen by the runner, and a result within the grace is kept, as cancelled', async () => {
    const { parent, child, workId } = await working();
    const answer = await interrupt(child);
    expect(answer).toMatchObject({ status: 202, body: { queued: false } });
    expect(answer.headers['delivery-outcome']).toBeUndefined();
    expect((await getWork(workId)).status).toBe('cancelling');
    expect((await beat(service, child)).body).toMatchObject({
      work_id: workId,
      status: 'cancelling',
      interrupt_requested: true,
    });
    await passSeconds(5);
    await report(child, { status: 'idle', output: 'half of it' });
    const [item] = await inbox(parent);
    expect(item).toMatchObject({ status: 'cancelled', output: 'half of it', work_id: workId });
    expect(item.text).toContain('partial output: half of it');
  });

  test('is answered by a completion only where the report says so', async () => {
    const { parent, child } = await working();
    await interrupt(child);
    await report(child, { status: 'idle', output: 'whole', outcome: 'completed' });
    expect(await inbox(parent)).toMatchObject([{ status: 'completed', output: 'whole' }]);
  });

  test('that is not answered ends the work after the grace', async () => {
    const { parent, child, workId } = await working();
    await interrupt(child, { grace_seconds: 3 });
    await passSeconds(2);
    expect(await inbox(parent)).toEqual([]);
    await passSeconds(3);
    const [item] = await inbox(parent);
    expect(item).toMatchObject({ status: 'cancelled', output: INTERRUPTED });
    expect(item.text).toBe(`[System: sub-agent task ${child} cancelled — coder]`);
    await report(child, { status: 'idle', output: 'too late' });
    expect(await inbox(parent)).toHaveLength(1);
    expect(await getWork(workId)).toMatchObject({
      status: 'cancelled',
      late_results: [{ output: 'too late' }],
    });
  });

  test('of a child without an entry rebuilds it', async () => {
    const [parent, child] = [freshId('parent'), freshId('child')];
    await service.request('PUT', `${path(parent)}/inbox`);
    await describeChild(service, parent, child);
    await interrupt(child, { grace_seconds: 0 });
    await passSeconds(2);
    expect(await inbox(parent)).toMatchObject([
      { status: 'cancelled', output: INTERRUPTED, recovered: true, agent: 'reviewer' },
    ]);
  });

  test('changes no turn that was delivered', async () => {
    const { parent, child } = await working();
    await report(child, { status: 'idle', output: 'done' });
    const answer = await interrupt(child);
    expect(answer).toMatchObject({
      status: 202,
      headers: { 'delivery-outcome': 'already_delivered' },
    });
    await passSeconds(15);
    expect(await inbox(parent)).toMatchObject([{ status: 'completed', output: 'done' }]);
  });

  test('of a session that is not known is refused, and a top-level one has nothing to stop', async () => {
    expect((await interrupt(freshId())).status).toBe(404);
    const stub = freshId();
    await service.request('PUT', `${path(stub)}/inbox`);
    expect((await interrupt(stub)).status).toBe(404);
    const top = freshId();
    await service.request('PUT', path(top), {});
    expect((await interrupt(top)).status).toBe(202);
    const { child } = await working();
    await remove(child);
    expect((await interrupt(child)).status).toBe(404);
  });

  test.each([{ grace_seconds: -1 }, { grace_seconds: '10' }])('refuses %j', async (data) => {
    const { child } = await working();
    const answer = await interrupt(child, data);
    expect(answer.status).toBe(400);
    expect(answer.body.errors[0].path).toBe('data.grace_seconds');
  });

  test('again does not lengthen the grace', async () => {
    const { parent, child } = await working();
    await interrupt(child, { grace_seconds: 4 });
    await passSeconds(3);
    expect((await interrupt(child, { grace_seconds: 60 })).status).toBe(202);
    await passSeconds(3);
    expect(await inbox(parent)).toHaveLength(1);
  });

  test('lets the child be dispatched anew once it has ended', async () => {
    const { parent, child } = await working();
    await interrupt(child, { grace_seconds: 0 });
    await passSeconds(2);
    const again = await service.request('POST', `${path(parent)}/work`, {
      child_session_id: child,
    });
    expect(again.status).toBe(201);
    expect((await beat(service, child)).body.interrupt_requested).toBe(false);
  });
});

describe('a stop', () => {
  test('cancels at once', async () => {
    const { parent, child, workId } = await working();
    expect(await stop(child)).toMatchObject({
      status: 202,
      body: { queued: false },
      headers: { 'delivery-work-id': workId },
    });
    const [item] = await inbox(parent);
    expect(item).toMatchObject({ status: 'cancelled', output: STOPPED, work_id: workId });
    expect(item.text).toBe(`[System: sub-agent task ${child} cancelled — coder]`);
    expect((await beat(service, child)).body.interrupt_requested).toBe(true);
    await report(child, { status: 'idle', output: 'too late' });
    expect(await inbox(parent)).toHaveLength(1);
  });

  test('changes no turn that was delivered, even of a child that went on', async () => {
    const { parent, child } = await working();
    await report(child, { status: 'idle', output: 'done' });
    await report(child, { status: 'running' });
    const answer = await stop(child);
    expect(answer).toMatchObject({
      status: 202,
      headers: { 'delivery-outcome': 'already_delivered' },
    });
    expect(await inbox(parent)).toHaveLength(1);
  });

  test('of a child without an entry rebuilds it', async () => {
    const [parent, child] = [freshId('parent'), freshId('child')];
    await service.request('PUT', `${path(parent)}/inbox`);
    await describeChild(service, parent, child);
    await stop(child);
    expect(await inbox(parent)).toMatchObject([
      { status: 'cancelled', output: STOPPED, recovered: true },
    ]);
  });

  test('where no inbox is open is kept, and a later result takes its place', async () => {
    const [parent, child] = [freshId('parent'), freshId('child')];
    await describeChild(service, parent, child);
    expect(await stop(child)).toMatchObject({
      status: 202,
      headers: { 'delivery-outcome': 'parked' },
    });
    await service.request('PUT', `${path(parent)}/inbox`);
    expect(await inbox(parent)).toMatchObject([{ status: 'cancelled', output: STOPPED }]);
    const [parent2, child2] = [freshId('parent'), freshId('child')];
    await describeChild(service, parent2, child2);
    await stop(child2);
    await report(child2, { status: 'idle', output: 'DONE' });
    await service.request('PUT', `${path(parent2)}/inbox`);
    expect(await inbox(parent2)).toMatchObject([{ status: 'completed', output: 'DONE' }]);
  });

  test('of a session that is not known is refused', async () => {
    expect((await stop(freshId())).status).toBe(404);
  });

  test('and a report at once: one of them is delivered', async () => {
    for (let round = 0; round < 20; round += 1) {
      const { parent, child } = await working();
      const [stopped, reported] = await Promise.all([stop(child), reportIdle(service, child)]);
      const items = await inbox(parent);
      expect(items).toHaveLength(1);
      const outcomes = [stopped, reported].map((answer) => answer.headers['delivery-outcome']);
      expect(outcomes).toContain('delivered');
    }
  });
});

describe('the tasks of a delegation', () => {
  test('interrupted by their call: those that live are asked, and its item still comes', async () => {
    const { parent, id, children } = await delegated(3);
    await report(children[0] ?? '', { status: 'idle', output: 'done' });
    const asked = await service.request('POST', `/v1/delegations/${id}/interrupt`);
    expect(asked).toMatchObject({ status: 200, body: { interrupted: 2 } });
    expect((await beat(service, children[1] ?? '')).body.interrupt_requested).toBe(true);
    const again = await service.request('POST', `/v1/delegations/${id}/interrupt`, {});
    expect(again.body).toEqual({ interrupted: 0 });
    await reportIdle(service, children[1] ?? '', { output: 'so far', result: { api_calls: 7 } });
    await passSeconds(12);
    const [item] = await inbox(parent);
    expect(item.status).toBe('completed');
    expect(item.results).toMatchObject([
      { status: 'completed', summary: 'done' },
      { status: 'interrupted', summary: 'so far', api_calls: 7, exit_reason: 'interrupted' },
      { status: 'interrupted', summary: null, error: expect.stringContaining('interrupted') },
    ]);
  });

  test('interrupted for the whole session: one signalled, its interrupted completion comes', async () => {
    const parent = freshId('parent');
    const { children } = await delegated(1, {}, parent);
    const other = await delegated(1);
    const plain = freshId('child');
    await service.request('POST', `${path(parent)}/work`, { child_session_id: plain });
    const asked = await service.request('POST', `${path(parent)}/delegations/interrupt`, {
      grace_seconds: 1,
    });
    expect(asked.body).toEqual({ interrupted: 1 });
    for (const child of [other.children[0], plain]) {
      expect((await beat(service, child ?? '')).body.interrupt_requested).toBe(false);
    }
    expect((await beat(service, children[0] ?? '')).body.interrupt_requested).toBe(true);
    await passSeconds(4);
    expect(await inbox(parent)).toMatchObject([
      { status: 'interrupted', exit_reason: 'interrupted' },
    ]);
  });

  test('of one unit only, where its id is named', async () => {
    const { id } = await delegated(3, { independent_completions: true });
    const asked = await service.request('POST', `/v1/delegations/${id}-2/interrupt`);
    expect(asked.body).toEqual({ interrupted: 1 });
  });

  test('of a call or a session that is not there are not found', async () => {
    expect((await service.request('POST', '/v1/delegations/deleg_0/interrupt')).status).toBe(404);
    const nobody = `${path(freshId())}/delegations/interrupt`;
    expect((await service.request('POST', nobody)).status).toBe(404);
  });

  test('a thousand of them are asked in one request', async () => {
    const { id, parent } = await delegated(1000);
    const asked = await service.request('POST', `/v1/delegations/${id}/interrupt`, {
      grace_seconds: 0,
    });
    expect(asked.body).toEqual({ interrupted: 1000 });
    await passSeconds(3);
    const items = await inbox(parent);
    expect(items).toHaveLength(1);
    expect(items[0].results).toHaveLength(1000);
    expect(items[0].status).toBe('error');
  });

  test('stopped one by one end their unit at once', async () => {
    const { parent, children } = await delegated(2);
    await beat(service, children[0] ?? '', { api_calls: 4 });
    for (const child of children) await stop(child);
    const [item] = await inbox(parent);
    expect(item.status).toBe('error');
    expect(item.results).toMatchObject([
      { status: 'interrupted', error: expect.stringContaining('stopped'), api_calls: 4 },
      { status: 'interrupted', api_calls: 0 },
    ]);
  });

  test('stopped while the inbox is closed join their unit when it opens', async () => {
    const { parent, children } = await delegated(1);
    await service.request('DELETE', `${path(parent)}/inbox`);
    expect((await stop(children[0] ?? '')).headers['delivery-outcome']).toBe('parked');
    await service.request('PUT', `${path(parent)}/inbox`);
    expect(await inbox(parent)).toMatchObject([
      { type: 'async_delegation', status: 'interrupted', summary: null },
    ]);
  });
});

describe('no unit hangs', () => {
  test('when a task is withdrawn: it counts as interrupted, and belongs to no turn of the child', async () => {
    const { parent, children, workIds, id } = await delegated(2);
    expect((await withdraw(workIds[0] ?? '')).status).toBe(204);
    expect((await service.request('GET', path(children[0] ?? ''))).body.work).toBeNull();
    expect((await withdraw(workIds[0] ?? '')).status).toBe(409);
    await reportIdle(service, children[0] ?? '', { output: 'all the same', work_id: workIds[0] });
    await reportIdle(service, children[1] ?? '', { output: 'done' });
    const items = await inbox(parent);
    expect(items).toMatchObject([
      { type: 'sub_agent', output: 'all the same', recovered: true },
      { type: 'async_delegation', status: 'completed' },
    ]);
    expect(items[1].results).toMatchObject([
      { status: 'interrupted', error: expect.stringContaining('withdrawn') },
      { status: 'completed', summary: 'done' },
    ]);
    expect((await get(id)).status).toBe('completed');
  });

  test('when its only task is withdrawn while the inbox is closed', async () => {
    const { parent, workIds, id } = await delegated(1, { max_concurrent: 1 });
    await service.request('DELETE', `${path(parent)}/inbox`);
    expect((await withdraw(workIds[0] ?? '')).status).toBe(204);
    expect((await get(id)).status).toBe('interrupted');
    expect(await inbox(parent)).toMatchObject([{ status: 'interrupted' }]);
    await delegated(1, { max_concurrent: 1 }, parent);
  });

  test('when a task has ended it cannot be withdrawn', async () => {
    const { children, workIds } = await delegated(1);
    await reportIdle(service, children[0] ?? '');
    expect(await withdraw(workIds[0] ?? '')).toMatchObject({
      status: 409,
      body: { reason: 'work_ended' },
    });
  });

  test('when a child is deleted: it ends as interrupted, and its results stay', async () => {
    const { parent, children, workIds, id } = await delegated(3);
    await reportIdle(service, children[0] ?? '', { output: 'before' });
    await remove(children[0] ?? '');
    await remove(children[1] ?? '');
    expect(await inbox(parent)).toEqual([]);
    await reportIdle(service, children[2] ?? '', { output: 'last' });
    const [item] = await inbox(parent);
    expect(item.results).toMatchObject([
      { status: 'completed', summary: 'before' },
      { status: 'interrupted', error: expect.stringContaining('deleted') },
      { status: 'completed', summary: 'last' },
    ]);
    expect((await getWork(workIds[0] ?? '')).output).toBe('before');
    expect((await get(id)).results).toEqual(item.results);
  });

  test('when a deleted child is made anew nothing of it counts', async () => {
    const parent = freshId('parent');
    const child = freshId('child');
    const call = { tasks: [{ goal: 'x', child_session_id: child }] };
    await service.request('POST', `${path(parent)}/delegations`, call);
    await reportIdle(service, child, { output: 'one', response_id: 'r1' });
    await remove(child);
    await describeChild(service, parent, child);
    const answer = await reportIdle(service, child, { output: 'one', response_id: 'r1' });
    expect(answer.headers['delivery-outcome']).toBe('delivered');
    expect(await inbox(parent)).toMatchObject([
      { type: 'async_delegation' },
      { type: 'sub_agent', output: 'one', recovered: true },
    ]);
  });

  test('when its last child is deleted while the inbox is closed', async () => {
    const { parent, children, id } = await delegated(1, { max_concurrent: 1 });
    await service.request('DELETE', `${path(parent)}/inbox`);
    await remove(children[0] ?? '');
    expect((await get(id)).status).toBe('interrupted');
    await delegated(1, { max_concurrent: 1 }, parent);
  });

  test('when the parent is deleted: the calls go with it, and no slot is lost', async () => {
    const parent = freshId('parent');
    const { id, children, workIds } = await delegated(3, { max_concurrent: 1 }, parent);
    await reportIdle(service, children[0] ?? '');
    expect((await remove(parent)).status).toBe(204);
    expect((await service.request('GET', `/v1/delegations/${id}`)).status).toBe(404);
    expect((await service.request('GET', `/v1/work/${workIds[0]}`)).status).toBe(404);
    expect((await service.request('GET', path(children[1] ?? ''))).status).toBe(404);
    const late = await reportIdle(service, children[1] ?? '');
    expect(late.headers['delivery-outcome']).toBe('parent_gone');
    await service.request('PUT', path(parent), {});
    await delegated(1, { max_concurrent: 1 }, parent);
    const left = await database.sql`
      select 1 from units where delegation_id = ${id}
      union all select 1 from work where delegation_id = ${id}`;
    expect(left).toHaveLength(0);
  });

  test('when the old session of a chain is deleted: the one that goes on gets the item', async () => {
    const [parent, next] = [freshId('parent'), freshId('parent')];
    const { children, id } = await delegated(2, {}, parent);
    await service.request('PUT', path(parent), { continued_as: next });
    await reportIdle(service, children[0] ?? '', { output: 'before' });
    await remove(parent);
    const [item] = await inbox(next);
    expect(item).toMatchObject({ delegation_id: id, session_key: next });
    expect(item.results).toMatchObject([{ summary: 'before' }, { status: 'interrupted' }]);
    await delegated(1, { max_concurrent: 1 }, next);
  });

  test('when children are deleted, withdrawn and report at once, over two replicas', async () => {
    const other = await startService(database, { clock });
    for (let round = 0; round < 10; round += 1) {
      const { parent, children, workIds, id } = await delegated(6);
      const answers = await Promise.all(
        children.flatMap((child, at) => [
          reportIdle(at % 2 === 0 ? service : other, child, { output: `result ${at}` }),
          at % 3 === 0
            ? other.request('DELETE', path(child))
            : service.request('DELETE', `/v1/work/${workIds[at]}`),
        ]),
      );
      expect(answers.filter((answer) => answer.status >= 500)).toEqual([]);
      const delegation = await get(id);
      expect(delegation.status).not.toBe('running');
      expect(delegation.results).toHaveLength(6);
      const items = (await inbox(parent)).filter((item) => item.type === 'async_delegation');
      expect(items).toHaveLength(1);
    }
    await other.stop();
  });

  test('when the parent is deleted while its children report', async () => {
    const other = await startService(database, { clock });
    for (let round = 0; round < 10; round += 1) {
      const { parent, children, id } = await delegated(5);
      const answers = await Promise.all([
        ...children.map((child, at) => reportIdle(at % 2 === 0 ? service : other, child)),
        other.request('DELETE', path(parent)),
      ]);
      expect(answers.filter((answer) => answer.status === 500)).toEqual([]);
      const left = await database.sql`select 1 from delegations where delegation_id = ${id}`;
      expect(left).toHaveLength(0);
    }
    await other.stop();
  });
});
