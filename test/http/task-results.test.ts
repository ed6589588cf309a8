import { describe, expect, test } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { path, reportIdle } from '../support/delivery.ts';
import { inboxOf, order, pass } from '../support/ledger.ts';
import { useService } from '../support/service.ts';
import { createTestClock } from '../support/clock.ts';
import { inShort } from '../support/steps.ts';

/*
 * A task's child may say in `data.result` what its report comes to. That is part of the report:
 * in what it is delivered with, in what it equals, and in what is kept of it.
 */

const database = useDatabase();
const clock = createTestClock();
const service = useService(database);
// Of its own: replicas whose clocks differ so much judge nobody.
const timed = useService(useDatabase(), { clock });
const deaf = useService(database, { env: { SNAPSHOT_URL: 'http://127.0.0.1:9' } });

/** One task, whose child says `running`. */
async function begin() {
  const { parent, tasks } = await order(service);
  const [task] = tasks;
  if (task === undefined) throw new Error('a call has a task');
  await run(task.child);
  return { parent, ...task };
}

const run = (child: string) => reportIdle(service, child, { status: 'running', output: undefined });

const say = async (child: string, data: Record<string, unknown>) =>
  inShort(await reportIdle(service, child, { output: undefined, ...data }));

const write = (child: string, text: string) =>
  service.request('POST', `${path(child)}/events`, {
    type: 'external_conversation_item',
    data: {
      item_type: 'message',
      item_data: { role: 'assistant', content: [{ type: 'text', text }] },
    },
  });

const interrupt = (child: string) =>
  service.request('POST', `${path(child)}/events`, { type: 'interrupt', data: {} });

const workOf = async (workId: string) => (await service.request('GET', `/v1/work/${workId}`)).body;

const resultsIn = async (of: { parent: string }) =>
  (await inboxOf(service, of)).flatMap((item) => item.results);

describe('a result that speaks for itself', () => {
  test.each([
    { result: { status: 'failed', error: 'boom', api_calls: 7 } },
    { result: { summary: 'S', exit_reason: 'max_iterations', api_calls: 7 } },
  ])('is not followed by late text: $result', async ({ result }) => {
    const task = await begin();
    expect(await say(task.child, { result })).toBe('204 delivered');
    await write(task.child, 'late words');
    expect(await resultsIn(task)).toMatchObject([result]);
  });

  test('without any words of its own is followed by late text', async () => {
    const task = await begin();
    expect(await say(task.child, { result: { api_calls: 7 } })).toBe('204 delivered');
    await write(task.child, 'late words');
    expect(await resultsIn(task)).toMatchObject([{ summary: '' }, { summary: 'late words' }]);
  });

  test('needs no text from upstream', async () => {
    const task = await begin();
    const data = { output: undefined, result: { summary: 'S' } };
    expect(inShort(await reportIdle(deaf, task.child, data))).toBe('204 delivered');
    expect(await resultsIn(task)).toMatchObject([{ summary: 'S' }]);
  });
});

describe('a report with another result', () => {
  test.each([{ output: 'ok' }, { output: undefined }])(
    'of a child that went on is a follow-up, with output $output',
    async ({ output }) => {
      const task = await begin();
      expect(await say(task.child, { output, result: { summary: 'A' } })).toBe('204 delivered');
      await run(task.child);
      expect(await say(task.child, { output, result: { summary: 'B' } })).toBe('204 delivered');
      await run(task.child);
      expect(await say(task.child, { output, result: { summary: 'B', api_calls: 9 } })).toBe(
        '204 already_delivered',
      );
      expect(await resultsIn(task)).toMatchObject([{ summary: 'A' }, { summary: 'B' }]);
    },
  );

  test.each([
    { first: {}, second: { summary: 'the only one', api_calls: 5 } },
    { first: { summary: 'first', status: 'failed' }, second: { summary: 'second' } },
  ])('takes the place of one that is parked: $first, $second', async ({ first, second }) => {
    const task = await begin();
    await service.request('DELETE', `${path(task.parent)}/inbox`);
    for (const result of [first, second]) {
      expect(await say(task.child, { result })).toBe('503 not_confirmed missing_parent_inbox');
    }
    await service.request('PUT', `${path(task.parent)}/inbox`);
    expect(await resultsIn(task)).toMatchObject([{ status: 'completed', ...second }]);
  });

  test('that failed does not take the place of a parked one that had completed', async () => {
    const task = await begin();
    await service.request('DELETE', `${path(task.parent)}/inbox`);
    await say(task.child, { result: { summary: 'good' } });
    await say(task.child, { result: { failed: true, summary: 'bad' } });
    await service.request('PUT', `${path(task.parent)}/inbox`);
    expect(await resultsIn(task)).toMatchObject([{ status: 'completed', summary: 'good' }]);
  });
});

describe('the work entry', () => {
  test('keeps the whole output beside a shorter summary, and no other answer has both', async () => {
    const task = await begin();
    await say(task.child, { output: 'the long output', result: { summary: 'short' } });
    const work = await workOf(task.workId);
    expect(work).toMatchObject({ output: 'the long output', result: { summary: 'short' } });
    expect(work.result).not.toHaveProperty('output');
    const calls = await service.request('GET', `${path(task.parent)}/delegations`);
    const call = await service.request(
      'GET',
      `/v1/delegations/${calls.body.data[0].delegation_id}`,
    );
    expect(call.body.results[0]).not.toHaveProperty('output');
    expect((await resultsIn(task))[0]).not.toHaveProperty('output');
  });

  test('keeps the words of a result that came too late', async () => {
    const { tasks } = await order(timed, { childTimeout: 5, stall: null });
    const { child, workId } = tasks[0] ?? { child: '', workId: '' };
    await pass(timed, clock, 7);
    await reportIdle(timed, child, { output: undefined, result: { summary: 'S', api_calls: 3 } });
    expect((await timed.request('GET', `/v1/work/${workId}`)).body).toMatchObject({
      status: 'timeout',
      late_results: [{ status: 'completed', output: 'S' }],
    });
  });

  test.each([
    { result: { status: 'failed', error: 'e' }, ended: 'failed', said: 'failed' },
    { result: { failed: true, summary: 's' }, ended: 'failed', said: 'failed' },
    { result: { status: 'timeout' }, ended: 'failed', said: 'timeout' },
    { result: { status: 'interrupted' }, ended: 'interrupted', said: 'interrupted' },
    { result: { status: 'success', summary: 's' }, ended: 'completed', said: 'completed' },
  ])('of a child that says $result is $ended', async ({ result, ended, said }) => {
    const task = await begin();
    await say(task.child, { result });
    expect(await workOf(task.workId)).toMatchObject({ status: ended, result: { status: said } });
  });

  test.each([
    { result: { status: 'completed', summary: 's' }, ended: 'completed', said: 'completed' },
    { result: { summary: 's' }, ended: 'cancelled', said: 'interrupted' },
  ])('of a child that is asked to stop and says $result is $ended', async (of) => {
    const task = await begin();
    await interrupt(task.child);
    await say(task.child, { result: of.result });
    const work = await workOf(task.workId);
    expect(work).toMatchObject({ status: of.ended, result: { status: of.said } });
  });
});

describe('a report that is parked', () => {
  test.each(['before it', 'within its grace'])(
    'is what it was when it came, for an interrupt: %s',
    async (when) => {
      const isBefore = when === 'before it';
      const task = await begin();
      await service.request('DELETE', `${path(task.parent)}/inbox`);
      if (!isBefore) await interrupt(task.child);
      expect(await say(task.child, { output: 'good' })).toBe(
        '503 not_confirmed missing_parent_inbox',
      );
      if (isBefore) await interrupt(task.child);
      expect(await say(task.child, { output: 'good' })).toBe(
        '503 not_confirmed missing_parent_inbox',
      );
      await service.request('PUT', `${path(task.parent)}/inbox`);
      expect(await workOf(task.workId)).toMatchObject({
        status: isBefore ? 'completed' : 'cancelled',
        result: { status: isBefore ? 'completed' : 'interrupted', summary: 'good' },
      });
      expect(await say(task.child, { output: 'good' })).toBe('204 already_delivered');
    },
  );

  test('of plain work too', async () => {
    const { parent } = await order(service);
    const child = `child_of_${parent}`;
    const { body } = await service.request('POST', `${path(parent)}/work`, {
      child_session_id: child,
    });
    await service.request('DELETE', `${path(parent)}/inbox`);
    expect(await say(child, { output: 'good' })).toBe('503 not_confirmed missing_parent_inbox');
    await interrupt(child);
    await service.request('PUT', `${path(parent)}/inbox`);
    expect(await workOf(body.work_id)).toMatchObject({ status: 'completed', output: 'good' });
  });
});
