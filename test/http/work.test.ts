import { describe, expect, test } from 'vitest';
import { createTestClock } from '../support/clock.ts';
import { useDatabase } from '../support/database.ts';
import { countDeadlocks } from '../support/counters.ts';
import { deliverTo, describeChild, freshId, path, reportIdle } from '../support/delivery.ts';
import { startService, useService } from '../support/service.ts';

const database = useDatabase();
const clock = createTestClock();
const service = useService(database, { clock });

const dispatch = (parent: string, body: unknown, headers = {}) =>
  service.request('POST', `${path(parent)}/work`, body, headers);
const getWork = (workId: string) => service.request('GET', `/v1/work/${workId}`);
const withdraw = (workId: string) => service.request('DELETE', `/v1/work/${workId}`);
const listWork = (parent: string, query = '') =>
  service.request('GET', `${path(parent)}/work${query}`);
const inbox = async (parent: string) =>
  (await service.request('GET', `${path(parent)}/inbox?state=all`)).body.data;
const report = (child: string, data: Record<string, unknown>) =>
  service.request('POST', `${path(child)}/events`, { type: 'external_session_status', data });

const idsOf = (answer: { body: { data: { work_id: string }[] } }) =>
  answer.body.data.map((entry) => entry.work_id);

/** A new parent and child, of which nobody has heard. */
const pair = () => ({ parent: freshId('parent'), child: freshId('child') });

async function dispatched(parent: string, child: string, body = {}): Promise<string> {
  const answer = await dispatch(parent, { child_session_id: child, ...body });
  expect(answer).toMatchObject({ status: 201 });
  return answer.body.work_id;
}

async function expectRefusal(parent: string, child: string, refusal: object): Promise<void> {
  const rows = () => database.sql`
    select s.* from sessions s where id in (${parent}, ${child}) order by id`;
  const before = await rows();
  const answer = await dispatch(parent, { child_session_id: child });
  expect({ status: answer.status, ...answer.body }).toMatchObject(refusal);
  expect(await rows()).toEqual(before);
}

describe('a dispatch', () => {
  test('makes parent and child, opens the inbox, and delivers under its own id', async () => {
    const { parent, child } = pair();
    const answer = await dispatch(parent, {
      child_session_id: child,
      agent: 'coder',
      title: 'fix it',
      created_by: 'alice',
      deadline_seconds: 90.5,
    });
    expect(answer.status).toBe(201);
    expect(answer.headers['idempotency-replayed']).toBeUndefined();
    expect(answer.body).toEqual({
      work_id: expect.stringMatching(/^subagent_[0-9a-f]{12,}$/),
      parent_session_id: parent,
      child_session_id: child,
      agent: 'coder',
      title: 'fix it',
      status: 'launching',
      created_at: expect.any(String),
    });
    const workId = answer.body.work_id;
    const live = (await getWork(workId)).body;
    expect(live).toEqual({
      ...answer.body,
      created_by: 'alice',
      recovered: false,
      revision: 0,
      item_id: null,
      ended_at: null,
      deadline_at: new Date(Date.parse(answer.body.created_at) + 90_500).toISOString(),
      output: null,
      item_ids: [],
      late_results: [],
    });
    expect((await service.request('GET', path(child))).body).toMatchObject({
      parent_session_id: parent,
      agent_name: 'coder',
      title: 'fix it',
      work: { work_id: workId },
    });

    await report(child, { status: 'running' });
    expect((await getWork(workId)).body.status).toBe('running');
    const delivered = await reportIdle(service, child, { output: 'fixed' });
    expect(delivered.headers['delivery-work-id']).toBe(workId);
    const [item] = await inbox(parent);
    expect(item).toMatchObject({
      work_id: workId,
      agent: 'coder',
      title: 'fix it',
      output: 'fixed',
      created_by: 'alice',
      recovered: false,
    });
    expect((await getWork(workId)).body).toMatchObject({
      status: 'completed',
      output: 'fixed',
      revision: 1,
      item_id: item.id,
      item_ids: [item.id],
    });
  });

  test.each([
    { snapshot: { sub_agent_name: 'reviewer', agent_name: 'x' }, names: ['reviewer', 'reviewer'] },
    { snapshot: { agent_name: 'coder' }, names: ['coder', ''] },
    { snapshot: {}, names: ['sub-agent', ''] },
  ])('takes the names that it leaves out from $snapshot', async ({ snapshot, names }) => {
    const { parent, child } = pair();
    await service.request('PUT', path(child), { parent_session_id: parent, ...snapshot });
    const answer = await dispatch(parent, { child_session_id: child, agent: null, title: null });
    expect([answer.body.agent, answer.body.title]).toEqual(names);
  });

  test('of a child without names shows it as a sub-agent', async () => {
    const { parent, child } = pair();
    const answer = await dispatch(parent, { child_session_id: child, agent: ' ', title: '' });
    expect(answer.body).toMatchObject({ agent: 'sub-agent', title: '' });
  });

  test('gives a child that was described without a parent this one', async () => {
    const { parent, child } = pair();
    await service.request('PUT', path(child), { agent_name: 'coder' });
    await dispatched(parent, child);
    expect((await service.request('GET', path(child))).body.parent_session_id).toBe(parent);
    expect((await reportIdle(service, child)).headers['delivery-outcome']).toBe('delivered');
  });

  test('leaves an inbox closed that was closed', async () => {
    const { parent, child } = pair();
    await service.request('PUT', `${path(parent)}/inbox`);
    await service.request('DELETE', `${path(parent)}/inbox`);
    await dispatched(parent, child);
    expect((await reportIdle(service, child)).body.reason).toBe('missing_parent_inbox');
  });

  test('delivers what was parked for the child first', async () => {
    const { parent, child } = pair();
    await describeChild(service, parent, child);
    expect((await reportIdle(service, child, { output: 'early' })).status).toBe(503);
    const workId = await dispatched(parent, child);
    await reportIdle(service, child, { output: 'late' });
    expect(await inbox(parent)).toMatchObject([
      { output: 'early', recovered: true },
      { output: 'late', work_id: workId },
    ]);
  });

  test('delivers what was parked for a child that nobody knew', async () => {
    const { parent, child } = pair();
    expect((await reportIdle(service, child)).body.reason).toBe('unknown_session');
    const workId = await dispatched(parent, child, { agent: 'coder' });
    expect(await inbox(parent)).toMatchObject([{ agent: 'coder', recovered: true }]);
    expect((await getWork(workId)).body.status).toBe('launching');
  });

  test('is refused while a result of the child cannot be delivered', async () => {
    const { parent, child } = pair();
    await dispatched(parent, freshId('child'));
    await describeChild(service, parent, child);
    await service.request('DELETE', `${path(parent)}/inbox`);
    await reportIdle(service, child);
    const answer = await dispatch(parent, { child_session_id: child });
    expect(answer).toMatchObject({ status: 409, body: { reason: 'child_busy' } });
    await service.request('PUT', `${path(parent)}/inbox`);
    await dispatched(parent, child);
  });

  test('begins a new turn, of which the reports are new', async () => {
    const { parent, child } = pair();
    const first = await dispatched(parent, child);
    await report(child, { status: 'idle', output: 'one' });
    const second = await dispatched(parent, child);
    expect(second).not.toBe(first);
    await report(child, { status: 'running' });
    await report(child, { status: 'idle', output: 'one' });
    expect(await inbox(parent)).toMatchObject([{ work_id: first }, { work_id: second }]);
  });

  test('does not take the text of an earlier turn for its own', async () => {
    const { parent, child } = pair();
    await dispatched(parent, child);
    await service.request('POST', `${path(child)}/events`, {
      type: 'external_conversation_item',
      data: {
        item_type: 'message',
        item_data: { role: 'assistant', content: [{ type: 'text', text: 'first words' }] },
      },
    });
    await report(child, { status: 'failed', output: 'boom' });
    await dispatched(parent, child);
    await report(child, { status: 'idle' });
    expect(await inbox(parent)).toMatchObject([{ output: 'boom' }, { output: '' }]);
  });

  test.each([
    [{}, 'child_session_id'],
    [{ child_session_id: 7 }, 'child_session_id'],
    [{ child_session_id: '' }, 'child_session_id'],
    [{ child_session_id: '..' }, 'child_session_id'],
    [{ child_session_id: 'c', agent: 1 }, 'agent'],
    [{ child_session_id: 'c', deadline_seconds: 0 }, 'deadline_seconds'],
    [{ child_session_id: 'c', deadline_seconds: '1' }, 'deadline_seconds'],
    [{ child_session_id: 'c', created_by: 'x'.repeat(513) }, 'created_by'],
  ])('refuses %j', async (body, where) => {
    const answer = await dispatch(freshId('parent'), body);
    expect(answer.status).toBe(400);
    expect(answer.body.errors[0].path).toBe(where);
  });

  test('clamps a deadline beyond ten years', async () => {
    const { parent, child } = pair();
    const workId = await dispatched(parent, child, { deadline_seconds: 1e300 });
    expect((await getWork(workId)).body.deadline_at).toMatch(/^20/);
  });
});

test('a dispatch that opens the inbox is answered though a result that waits for it cannot be delivered', async () => {
  const [parent, child, sibling] = [freshId('parent'), freshId('child'), freshId('child')];
  await describeChild(service, parent, sibling);
  expect((await reportIdle(service, sibling)).status).toBe(503);
  const other = await database.sql.reserve();
  await other`begin`;
  await other`select 1 from sessions where id = ${sibling} for update`;
  const answer = await service.request('POST', `${path(parent)}/work`, { child_session_id: child });
  await other`rollback`;
  other.release();
  expect(answer.status).toBe(201);
});

describe('a dispatch is refused, and changes nothing,', () => {
  test('while the child works', async () => {
    const { parent, child } = pair();
    await dispatched(parent, child);
    await expectRefusal(parent, child, { status: 409, error: 'conflict', reason: 'child_busy' });
    await report(child, { status: 'running' });
    await expectRefusal(parent, child, { status: 409, reason: 'child_busy' });
  });

  test("for another parent's child", async () => {
    const { parent, child } = pair();
    await dispatched(parent, child);
    await expectRefusal(freshId('parent'), child, { status: 409, reason: 'parent_mismatch' });
    const own = freshId('own');
    await service.request('PUT', path(own), { parent_session_id: own });
    await expectRefusal(parent, own, { status: 409, reason: 'parent_mismatch' });
  });

  test('by a closed session', async () => {
    const { parent, child } = pair();
    await service.request('PUT', path(parent), {});
    await database.sql`update sessions set closed_at = now() where id = ${parent}`;
    await expectRefusal(parent, child, { status: 409, reason: 'session_closed' });
  });

  test('to itself, or to an ancestor', async () => {
    const { parent, child } = pair();
    await expectRefusal(parent, parent, { status: 400, error: 'invalid_input' });
    await dispatched(parent, child);
    const grandchild = freshId('grandchild');
    await dispatched(child, grandchild);
    await expectRefusal(grandchild, parent, { status: 400, error: 'invalid_input' });
  });

  test('if either was deleted', async () => {
    const { parent, child } = pair();
    await dispatched(parent, child);
    await service.request('DELETE', path(child));
    await expectRefusal(parent, child, { status: 404 });
    await service.request('DELETE', path(parent));
    await expectRefusal(parent, freshId('child'), { status: 404 });
  });
});

describe('a session that goes on under another id', () => {
  test('has its dispatches made by the last one, also for children that it had', async () => {
    const { parent, child } = pair();
    const next = freshId('parent');
    const first = await dispatched(parent, child);
    await reportIdle(service, child);
    await service.request('PUT', path(parent), { continued_as: next });
    const answer = await dispatch(parent, { child_session_id: child });
    expect(answer.body).toMatchObject({ parent_session_id: next });
    const other = await dispatched(next, freshId('child'));
    await reportIdle(service, child, { output: 'again' });
    expect((await inbox(next)).map((item: { output: string }) => item.output)).toEqual([
      'done',
      'again',
    ]);
    for (const session of [parent, next]) {
      const listed = await listWork(session);
      expect(idsOf(listed)).toEqual([other, answer.body.work_id, first]);
    }
  });
});

describe('an Idempotency-Key', () => {
  const key = { 'idempotency-key': '"k \\"1\\" \\\\"' };

  test('gets the first answer again', async () => {
    const { parent, child } = pair();
    const body = { child_session_id: child, agent: 'coder', title: 't' };
    const first = await dispatch(parent, body, key);
    const reordered = { x: 1, title: 't', agent: 'coder', child_session_id: child };
    const again = await dispatch(parent, reordered, key);
    expect(again.status).toBe(201);
    expect(JSON.stringify(again.body)).toBe(JSON.stringify(first.body));
    expect(again.headers['idempotency-replayed']).toBe('true');
    await reportIdle(service, child);
    expect((await dispatch(parent, body, key)).body).toEqual(first.body);
    expect((await listWork(parent)).body.data).toHaveLength(1);
  });

  test('is refused for another body, and means nothing at another path', async () => {
    const { parent, child } = pair();
    await dispatch(parent, { child_session_id: child }, key);
    const other = await dispatch(parent, { child_session_id: freshId('child') }, key);
    expect(other).toMatchObject({ status: 422, body: { error: 'idempotency_key_reused' } });
    const elsewhere = await dispatch(
      freshId('parent'),
      { child_session_id: freshId('child') },
      key,
    );
    expect(elsewhere.headers['idempotency-replayed']).toBeUndefined();
  });

  test('is not kept for a refusal, nor for longer than a day', async () => {
    const { parent, child } = pair();
    const workId = await dispatched(parent, child);
    expect((await dispatch(parent, { child_session_id: child }, key)).status).toBe(409);
    await withdraw(workId);
    const first = await dispatch(parent, { child_session_id: child }, key);
    expect(first.status).toBe(201);
    await withdraw(first.body.work_id);
    clock.advance(86_400_001);
    const later = await dispatch(parent, { child_session_id: child }, key);
    expect(later.status).toBe(201);
    expect(later.body.work_id).not.toBe(first.body.work_id);
  });

  test('also delivers first what was parked', async () => {
    const { parent, child } = pair();
    await describeChild(service, parent, child);
    await reportIdle(service, child);
    const first = await dispatch(parent, { child_session_id: child }, key);
    expect(first.status).toBe(201);
    const again = await dispatch(parent, { child_session_id: child }, key);
    expect(again.body).toEqual(first.body);
    expect(await inbox(parent)).toHaveLength(1);
  });

  test.each(['k', '""', '"k', 'k"', '"k";a=1', '"a"b"', `"${'k'.repeat(513)}"`, '"é"'])(
    'must be a string in double quotes: %s',
    async (wrong) => {
      const { parent, child } = pair();
      const headers = { 'idempotency-key': wrong };
      const answer = await dispatch(parent, { child_session_id: child }, headers);
      expect(answer.status).toBe(400);
      expect(answer.body.errors[0].path).toBe('Idempotency-Key');
    },
  );

  test('makes one dispatch of twenty at once, over two replicas', async () => {
    const other = await startService(database, { clock });
    const { parent, child } = pair();
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, n) =>
        (n % 2 === 0 ? service : other).request(
          'POST',
          `${path(parent)}/work`,
          { child_session_id: child },
          key,
        ),
      ),
    );
    expect(new Set(answers.map((answer) => answer.status))).toEqual(new Set([201]));
    expect(new Set(answers.map((answer) => answer.body.work_id)).size).toBe(1);
    const firsts = answers.filter((answer) => !answer.headers['idempotency-replayed']);
    expect(firsts).toHaveLength(1);
    await other.stop();
  });
});

describe('at once', () => {
  test('of many dispatches to one child one wins', async () => {
    const { parent, child } = pair();
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => dispatch(parent, { child_session_id: child })),
    );
    const made = answers.filter((answer) => answer.status === 201);
    expect(made).toHaveLength(1);
    const refused = answers.filter((answer) => answer.body.reason === 'child_busy');
    expect(refused).toHaveLength(19);
    expect((await listWork(parent)).body.data).toHaveLength(1);
  });

  test('of two parents one gets the child', async () => {
    const child = freshId('child');
    const parents = Array.from({ length: 10 }, () => freshId('parent'));
    const answers = await Promise.all(
      parents.map((parent) => dispatch(parent, { child_session_id: child })),
    );
    expect(answers.filter((answer) => answer.status === 201)).toHaveLength(1);
    expect(answers.filter((answer) => answer.body.reason === 'parent_mismatch')).toHaveLength(9);
  });

  test('dispatches in opposite orders neither deadlock nor close a circle', async () => {
    const before = await countDeadlocks(database);
    for (let round = 0; round < 20; round += 1) {
      const [a, b] = [freshId('a'), freshId('b')];
      const answers = await Promise.all([
        dispatch(a, { child_session_id: b }),
        dispatch(b, { child_session_id: a }),
        dispatch(a, { child_session_id: b }),
        dispatch(b, { child_session_id: a }),
      ]);
      expect(answers.filter((answer) => answer.status === 201)).toHaveLength(1);
      const others = answers.filter((answer) => answer.status !== 201);
      expect(others.every((answer) => [400, 409].includes(answer.status))).toBe(true);
    }
    expect(await countDeadlocks(database)).toBe(before);
  });

  test('dispatches, reports and inboxes of the same sessions do not deadlock', async () => {
    const before = await countDeadlocks(database);
    const sessions = Array.from({ length: 4 }, () => freshId('s'));
    const other = await startService(database, { clock });
    const at = (n: number) => sessions[n % sessions.length] ?? '';
    const storm = Array.from({ length: 200 }, (_, n) => {
      const on = n % 2 === 0 ? service : other;
      switch (n % 5) {
        case 0:
        case 1:
          return on.request('POST', `${path(at(n >> 3))}/work`, { child_session_id: at(n >> 1) });
        case 2:
          return reportIdle(on, at(n >> 2), { output: `turn ${n}` });
        case 3:
          return on.request('PUT', `${path(at(n >> 1))}/inbox`);
        default:
          return on.request('POST', `${path(at(n))}/inbox/read`, { drain: true });
      }
    });
    const answers = await Promise.all(storm);
    expect(answers.filter((answer) => answer.status === 500)).toEqual([]);
    expect(await countDeadlocks(database)).toBe(before);
    await other.stop();
  });
});

describe('withdrawing', () => {
  test('removes live work: what comes all the same is delivered as rebuilt', async () => {
    const { parent, child } = pair();
    const workId = await dispatched(parent, child, { agent: 'coder' });
    expect((await withdraw(workId)).status).toBe(204);
    expect((await getWork(workId)).status).toBe(404);
    expect((await withdraw(workId)).status).toBe(404);
    expect((await service.request('GET', path(child))).body.work).toBeNull();
    await report(child, { status: 'idle', output: 'all the same', work_id: workId });
    const [item] = await inbox(parent);
    expect(item).toMatchObject({ output: 'all the same', recovered: true, agent: 'coder' });
    expect(item.work_id).not.toBe(workId);
    await dispatched(parent, child);
  });

  test('is refused once the work has ended', async () => {
    const { parent, child } = pair();
    const workId = await dispatched(parent, child);
    await reportIdle(service, child);
    expect(await withdraw(workId)).toMatchObject({ status: 409, body: { reason: 'work_ended' } });
    expect((await getWork(workId)).status).toBe(200);
  });

  test('and the report at once: either the work is gone, or it has ended', async () => {
    for (let round = 0; round < 20; round += 1) {
      const { parent, child } = pair();
      const workId = await dispatched(parent, child);
      const [withdrawn, reported] = await Promise.all([
        withdraw(workId),
        reportIdle(service, child),
      ]);
      expect(reported.headers['delivery-outcome']).toBe('delivered');
      const [item] = await inbox(parent);
      expect(item.work_id === workId).toBe(withdrawn.status === 409);
    }
  });
});

describe('a list of work', () => {
  test('is newest first, in pages, by status', async () => {
    const parent = freshId('parent');
    const made: string[] = [];
    for (let n = 0; n < 5; n += 1) {
      const child = freshId('child');
      made.unshift(await dispatched(parent, child));
      if (n % 2 === 0) await reportIdle(service, child);
    }
    const page = await listWork(parent, '?limit=2');
    expect(idsOf(page)).toEqual(made.slice(0, 2));
    expect(page.body).toMatchObject({ has_more: true, first_id: made[0], last_id: made[1] });
    expect(idsOf(await listWork(parent, `?after=${made[1]}`))).toEqual(made.slice(2));
    expect(idsOf(await listWork(parent, '?status=completed'))).toEqual([made[0], made[2], made[4]]);
    expect(idsOf(await listWork(parent, '?status=launching&limit=1'))).toEqual([made[1]]);
    expect((await listWork(parent, '?status=done')).status).toBe(400);
  });

  test('is empty for a stub, and not found for a session that nobody has named', async () => {
    const parent = freshId('parent');
    expect((await listWork(parent)).status).toBe(404);
    await service.request('PUT', `${path(parent)}/inbox`);
    expect((await listWork(parent)).body.data).toEqual([]);
  });
});

/** A turn that has timed out, and what its child reports all the same. */
async function timedOut() {
  const { parent, child } = pair();
  const workId = await dispatched(parent, child);
  await database.sql`update work set status = 'timeout', ended_at = now()
    where work_id = ${workId}`;
  const late = async (output: string, said: object = {}) => {
    const answer = await report(child, { status: 'idle', output, ...said });
    expect(answer.status).toBe(204);
    expect(answer.headers['delivery-outcome']).toBe('already_delivered');
  };
  const kept = async (): Promise<string[]> =>
    (await getWork(workId)).body.late_results.map((one: { output: string }) => one.output);
  return { late, kept };
}

describe('a work entry', () => {
  test('shows the newest output and all items of a turn that went on', async () => {
    const parent = freshId('parent');
    await service.request('PUT', `${path(parent)}/inbox`);
    const { child, workId, itemId } = await deliverTo(service, parent, { output: 'first' });
    await report(child, { status: 'running' });
    await report(child, { status: 'idle', output: 'second' });
    const work = (await getWork(workId)).body;
    expect(work).toMatchObject({ output: 'second', revision: 2, recovered: true });
    expect(work.item_ids).toEqual([itemId, work.item_id]);
  });

  test('shows what came too late', async () => {
    const { parent, child } = pair();
    const workId = await dispatched(parent, child);
    await database.sql`update work set status = 'timeout', ended_at = now()
      where work_id = ${workId}`;
    await report(child, { status: 'idle', output: 'late', response_id: 'r1' });
    expect((await getWork(workId)).body).toMatchObject({
      output: null,
      late_results: [{ status: 'completed', output: 'late', response_id: 'r1' }],
    });
    expect(await inbox(parent)).toEqual([]);
  });

  describe('with results that come too late', () => {
    test('keeps equal ones once, in the order in which they came', async () => {
      const { late, kept } = await timedOut();
      for (const output of ['b', 'a', 'b', 'c', 'a']) await late(output);
      expect(await kept()).toEqual(['b', 'a', 'c']);
      await late('a', { response_id: 'r1' });
      await late('a', { outcome: 'failed' });
      expect(await kept()).toEqual(['b', 'a', 'c', 'a', 'a']);
    });

    test('keeps the first hundred', async () => {
      const { late, kept } = await timedOut();
      const outputs = Array.from({ length: 104 }, (_, n) => `late ${n}`);
      for (const output of outputs) await late(output);
      expect(await kept()).toEqual(outputs.slice(0, 100));
    });

    test('keeps no more than 16 MiB of them, and what still fits', async () => {
      const { late, kept } = await timedOut();
      for (let n = 0; n < 5; n += 1) await late(String(n).repeat(5 * 1024 * 1024));
      await late('small');
      expect((await kept()).map((output) => output.slice(0, 5))).toEqual([
        '00000',
        '11111',
        '22222',
        'small',
      ]);
    });
  });

  test('is not found under an id that is none', async () => {
    expect((await getWork('subagent_0')).status).toBe(404);
    expect((await withdraw('subagent_0')).status).toBe(404);
    expect((await getWork('x'.repeat(513))).status).toBe(400);
  });
});
