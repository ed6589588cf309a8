import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { createTestClock } from '../support/clock.ts';
import { useDatabase } from '../support/database.ts';
import { describeChild, freshId, path, reportIdle } from '../support/delivery.ts';
import { startFaultProxy, type FaultProxy } from '../support/fault-proxy.ts';
import {
  beat,
  inboxOf,
  order,
  pass,
  renew,
  resultsOf,
  STALL,
  statusOf,
  sweepAll,
  type Order,
} from '../support/ledger.ts';
import { startService, useService, type TestService } from '../support/service.ts';

// Time passes only where a test sweeps.
vi.mock('../../src/workers/workers.ts', () => ({
  startWorkers: () => ({ stop: () => Promise.resolve() }),
}));

const database = useDatabase();
const clock = createTestClock();
const service = useService(database, { clock });
// The watch has begun, or begun anew, when a test begins.
beforeEach(() => sweepAll(service));

const put = (id: string, body: object = {}) => service.request('PUT', path(id), body);
const report = (child: string, data: Record<string, unknown>) =>
  service.request('POST', `${path(child)}/events`, { type: 'external_session_status', data });
const running = (child: string) => report(child, { status: 'running' });
const lateResults = async (workId: string) =>
  (await service.request('GET', `/v1/work/${workId}`)).body.late_results;
const inbox = (parent: string) => inboxOf(service, { parent });
const forSeconds = (seconds: number, meanwhile?: (second: number) => Promise<unknown>) =>
  pass(service, clock, seconds, meanwhile);

/** One task, ordered as said. */
const one = (said: Order = {}) => oneOf(service, said);

async function oneOf(client: Pick<TestService, 'request'>, said: Order = {}) {
  const ordered = await order(client, said);
  const [task] = ordered.tasks;
  if (!task) throw new Error('an order has a task');
  return { ...ordered, ...task };
}

/** Plain work of a child that is known. */
async function plain(deadlineSeconds?: number) {
  const [parent, child] = [freshId('parent'), freshId('child')];
  const answer = await service.request('POST', `${path(parent)}/work`, {
    child_session_id: child,
    ...(deadlineSeconds === undefined ? {} : { deadline_seconds: deadlineSeconds }),
  });
  expect(answer.status).toBe(201);
  return { parent, child, workId: answer.body.work_id as string };
}

/** Writes to the table since the database was made, as PostgreSQL counts them. */
async function heartbeatWrites(): Promise<number> {
  const [row] = await database.sql`
    select coalesce(max(xmin::text::bigint), 0)::text || ':' || coalesce(max(xmax::text::bigint), 0)
      as seen from heartbeats`;
  return row?.['seen'];
}

describe('a heartbeat', () => {
  test('makes launching work run, says what the entry is, and stores the runner', async () => {
    const { child, workId } = await plain();
    const runner = freshId('runner');
    expect(await statusOf(service, workId)).toBe('launching');
    const answer = await beat(service, child, { api_calls: 1, runner_id: runner });
    expect(answer).toMatchObject({
      status: 200,
      body: { work_id: workId, status: 'running', interrupt_requested: false, reason: null },
    });
    expect(await statusOf(service, workId)).toBe('running');
    expect((await service.request('GET', path(child))).body.runner_id).toBe(runner);
    const other = freshId('runner');
    await beat(service, child, { api_calls: 1, runner_id: other });
    expect((await service.request('GET', path(child))).body.runner_id).toBe(other);
  });

  test('that tells nothing new writes nothing', async () => {
    const { child } = await plain();
    const said = { api_calls: 3, current_tool: 'bash', last_activity_at: 17.5 };
    await beat(service, child, said);
    const before = await heartbeatWrites();
    for (let times = 0; times < 3; times += 1) {
      clock.advance(100);
      expect((await beat(service, child, said)).status).toBe(200);
    }
    expect(await heartbeatWrites()).toEqual(before);
    await beat(service, child, { ...said, last_activity_at: 17.6 });
    expect(await heartbeatWrites()).not.toEqual(before);
  });

  test('of a described session without work is answered, and kept nowhere', async () => {
    const id = freshId();
    await put(id);
    expect((await beat(service, id, {})).body).toEqual({
      work_id: null,
      status: null,
      interrupt_requested: false,
      reason: null,
    });
    expect(await database.sql`select 1 from heartbeats where child_session_id = ${id}`).toEqual([]);
  });

  test('of a session that is not known, or only named, is 404; of a deleted one it asks to stop', async () => {
    const stub = freshId('stub');
    await service.request('PUT', `${path(stub)}/inbox`);
    expect((await beat(service, freshId())).status).toBe(404);
    expect((await beat(service, stub)).status).toBe(404);
    const { child } = await plain();
    await service.request('DELETE', path(child));
    expect(await beat(service, child, { api_calls: 1 })).toMatchObject({
      status: 200,
      body: { work_id: null, interrupt_requested: true, reason: 'session_deleted' },
    });
  });

  test.each([
    { api_calls: -1 },
    { api_calls: 1.5 },
    { api_calls: '1' },
    { api_calls: true },
    { current_tool: 7 },
    { current_tool: 'x'.repeat(513) },
    { last_activity_at: {} },
    { last_activity_at: true },
    { runner_id: 7 },
    { runner_id: 'r'.repeat(513) },
    [],
    'text',
  ])('of a wrong type is 400: %j', async (said) => {
    const { child } = await plain();
    const answer = await service.request(
      'POST',
      `${path(child)}/heartbeat`,
      typeof said === 'string' ? JSON.stringify(said) : said,
    );
    expect(answer).toMatchObject({ status: 400, body: { error: 'invalid_input' } });
  });

  test('may be empty, have nulls and keys of its own', async () => {
    const { child } = await plain();
    expect((await service.request('POST', `${path(child)}/heartbeat`)).status).toBe(200);
    const nulls = { api_calls: null, current_tool: null, last_activity_at: null, runner_id: null };
    expect((await beat(service, child, { ...nulls, extra: { a: 1 } })).status).toBe(200);
    expect((await beat(service, child, { current_tool: '', runner_id: ' ' })).status).toBe(200);
  });
});

describe('a lease', () => {
  test.each([
    { lease_seconds: 0 },
    { lease_seconds: -1 },
    { lease_seconds: '60' },
    { lease_seconds: true },
    [],
  ])('is not granted for %j', async (body) => {
    const answer = await service.request('PUT', `/v1/runners/${freshId('runner')}`, body);
    expect(answer.status).toBe(400);
  });

  test('is 60 seconds where nothing is said, and a day at most', async () => {
    const [plainly, long] = [freshId('runner'), freshId('runner:/@#')];
    expect(await renew(service, plainly)).toMatchObject({ status: 200, body: { interrupts: [] } });
    expect((await renew(service, long, 1e9)).status).toBe(200);
    const rows = await database.sql`
      select runner_id, lease_ms::int from runners where runner_id in (${plainly}, ${long})`;
    expect(Object.fromEntries(rows.map((row) => [row['runner_id'], row['lease_ms']]))).toEqual({
      [plainly]: 60_000,
      [long]: 86_400_000,
    });
  });
});

describe('a stall (hermes 001)', () => {
  test('9 stalled_runner_is_interrupted_then_finalized: stop first, then stalled; a late return adds nothing', async () => {
    const unit = await one();
    await beat(service, unit.child, { api_calls: 0 });
    await forSeconds(STALL.idle - 1);
    expect(await statusOf(service, unit.workId)).toBe('running');
    await forSeconds(1);
    expect(await statusOf(service, unit.workId)).toBe('stalling');
    expect((await beat(service, unit.child, { api_calls: 0 })).body).toEqual({
      work_id: unit.workId,
      status: 'stalling',
      interrupt_requested: true,
      reason: 'stalled',
    });
    expect(await inboxOf(service, unit)).toEqual([]);
    await forSeconds(STALL.grace);
    expect(await statusOf(service, unit.workId)).toBe('stalled');
    const [result] = await resultsOf(service, unit);
    expect(result).toMatchObject({ status: 'stalled', exit_reason: 'stalled', api_calls: 0 });
    expect(result.error).toContain('stopped responding');
    expect(
      await database.sql`
      select 1 from delegations where delegation_id = ${unit.delegationId} and ended_at is null
    `,
    ).toEqual([]);

    // The child may still run: its runner is asked to stop it.
    expect((await beat(service, unit.child)).body).toMatchObject({ interrupt_requested: true });
    const late = await reportIdle(service, unit.child, { output: 'too late' });
    expect(late).toMatchObject({
      status: 204,
      headers: { 'delivery-outcome': 'already_delivered' },
    });
    expect(await inboxOf(service, unit)).toHaveLength(1);
    expect(await lateResults(unit.workId)).toMatchObject([{ output: 'too late' }]);
  });

  test('10 progressing_runner_is_never_stalled', async () => {
    const { child, workId } = await one();
    await forSeconds(3 * STALL.idle, (second) => beat(service, child, { api_calls: second }));
    expect(await statusOf(service, workId)).toBe('running');
  });

  test('11 stalling_runner_that_honors_interrupt_keeps_its_result', async () => {
    const unit = await one();
    await beat(service, unit.child, { api_calls: 5 });
    await forSeconds(STALL.idle + STALL.grace - 1);
    expect(await statusOf(service, unit.workId)).toBe('stalling');
    const answer = await report(unit.child, {
      status: 'idle',
      output: 'half of it',
      outcome: 'interrupted',
      result: { summary: 'half of it', api_calls: 7 },
    });
    expect(answer.headers['delivery-outcome']).toBe('delivered');
    await forSeconds(2 * STALL.grace);
    expect(await resultsOf(service, unit)).toMatchObject([
      { status: 'interrupted', summary: 'half of it', api_calls: 7 },
    ]);
  });

  test('a report within the grace is delivered as it is', async () => {
    const unit = await one();
    await beat(service, unit.child);
    await forSeconds(STALL.idle + 1);
    expect(await statusOf(service, unit.workId)).toBe('stalling');
    await reportIdle(service, unit.child, { output: 'done after all' });
    await forSeconds(2 * STALL.grace);
    expect(await resultsOf(service, unit)).toMatchObject([
      { status: 'completed', summary: 'done after all' },
    ]);
  });

  test('12 streaming_child_counts_as_alive: only last_activity_at moves', async () => {
    const { child, workId } = await one();
    const said = { api_calls: 1, current_tool: 'browser' };
    await forSeconds(4 * STALL.inTool, (second) =>
      beat(service, child, { ...said, last_activity_at: second / 10 }),
    );
    expect(await statusOf(service, workId)).toBe('running');
  });

  test("a runner's clock says nothing: old and future times that do not change are no progress", async () => {
    const { child, workId } = await one();
    await forSeconds(STALL.idle + 2, () =>
      beat(service, child, { last_activity_at: '2999-01-01T00:00:00Z' }),
    );
    expect(await statusOf(service, workId)).toBe('stalling');
  });

  test('13 stalled_event_carries_structured_stall_metadata', async () => {
    const unit = await one();
    await beat(service, unit.child, { api_calls: 2, current_tool: 'bash' });
    await forSeconds(STALL.inTool + STALL.grace);
    const [result] = await resultsOf(service, unit);
    expect(result).toMatchObject({
      status: 'stalled',
      stalled_after_quiet_seconds: STALL.inTool,
      stall_threshold_seconds: STALL.inTool,
      stall_phase: 'in_tool',
      stall_grace_seconds: STALL.grace,
      api_calls: 2,
    });
  });

  test('14 list_..._exposes_live_activity', async () => {
    const { parent, child } = await one();
    await beat(service, child, { api_calls: 4, current_tool: 'bash', last_activity_at: 'a' });
    clock.advance(700);
    await beat(service, child, { api_calls: 4, current_tool: 'bash', last_activity_at: 'a' });
    const list = await service.request('GET', `${path(parent)}/delegations?state=active`);
    expect(list.body.data).toMatchObject([
      {
        in_tool: true,
        seconds_since_progress: 0.7,
        children_activity: [
          {
            task_index: 0,
            session_id: child,
            status: 'running',
            api_calls: 4,
            current_tool: 'bash',
            seconds_since_activity: 0.7,
          },
        ],
      },
    ]);
  });

  test('15 in_tool_stall_uses_higher_threshold', async () => {
    const { child, workId } = await one();
    await beat(service, child, { current_tool: 'bash' });
    await forSeconds(STALL.inTool - 1);
    expect(await statusOf(service, workId)).toBe('running');
    await forSeconds(1);
    expect(await statusOf(service, workId)).toBe('stalling');
  });

  test('31 unclaimed work accrues no stall time: the clock starts with the first heartbeat', async () => {
    const { child, workId } = await one();
    await forSeconds(3 * STALL.inTool);
    expect(await statusOf(service, workId)).toBe('launching');
    await running(child);
    await forSeconds(3 * STALL.inTool);
    expect(await statusOf(service, workId)).toBe('running');
    await beat(service, child);
    await forSeconds(STALL.idle);
    expect(await statusOf(service, workId)).toBe('stalling');
  });

  test('does not go back to running, whatever the child does', async () => {
    const { child, workId } = await one();
    await beat(service, child, { api_calls: 1 });
    await forSeconds(STALL.idle);
    await beat(service, child, { api_calls: 2 });
    await running(child);
    expect(await statusOf(service, workId)).toBe('stalling');
    await forSeconds(STALL.grace, (second) => beat(service, child, { api_calls: 2 + second }));
    expect(await statusOf(service, workId)).toBe('stalled');
  });

  test('is of one child: a sibling that progresses hides nothing and loses nothing', async () => {
    const unit = await order(service, { tasks: 2 });
    const [stuck, busy] = unit.tasks;
    if (!stuck || !busy) throw new Error('two tasks');
    await beat(service, stuck.child);
    await forSeconds(STALL.idle + STALL.grace, (second) =>
      beat(service, busy.child, { api_calls: second }),
    );
    expect(await statusOf(service, stuck.workId)).toBe('stalled');
    expect(await statusOf(service, busy.workId)).toBe('running');
    expect(await inboxOf(service, unit)).toEqual([]);
    await reportIdle(service, busy.child, { output: 'good' });
    expect(await resultsOf(service, unit)).toMatchObject([
      { status: 'stalled' },
      { status: 'completed', summary: 'good' },
    ]);
  });

  test('is none where stall is null', async () => {
    const { child, workId } = await one({ stall: null });
    await beat(service, child);
    await forSeconds(3 * STALL.inTool);
    expect(await statusOf(service, workId)).toBe('running');
  });

  test('starts anew with the next turn of the same child', async () => {
    const { parent, child, workId } = await one();
    await beat(service, child, { api_calls: 1 });
    await forSeconds(STALL.idle - 1);
    await reportIdle(service, child);
    const again = freshId('subagent');
    await database.sql`
      insert into work (tenant_id, work_id, parent_session_id, child_session_id, agent, title,
        status, created_at, stall)
      select tenant_id, ${again}, ${parent}, ${child}, agent, title, 'launching',
        ${new Date(clock.now())}, stall from work where work_id = ${workId}`;
    await database.sql`update sessions set current_work_id = ${again} where id = ${child}`;
    await forSeconds(STALL.idle);
    expect(await statusOf(service, again)).toBe('launching');
    // The same words as in the turn before: the first beat of this one all the same.
    await beat(service, child, { api_calls: 1 });
    await forSeconds(STALL.idle - 1);
    expect(await statusOf(service, again)).toBe('running');
    await forSeconds(1);
    expect(await statusOf(service, again)).toBe('stalling');
  });
});

describe("a child's time-out", () => {
  test('runs from the dispatch, restarts with progress, and ends at once', async () => {
    const unit = await one({ stall: null, childTimeout: 8 });
    await forSeconds(6);
    await beat(service, unit.child, { api_calls: 1 });
    await forSeconds(1);
    await beat(service, unit.child, { api_calls: 2 });
    await forSeconds(7);
    expect(await statusOf(service, unit.workId)).toBe('running');
    await forSeconds(1);
    expect(await statusOf(service, unit.workId)).toBe('timeout');
    const [result] = await resultsOf(service, unit);
    expect(result).toMatchObject({
      status: 'timeout',
      exit_reason: 'timeout',
      timeout_seconds: 8,
      api_calls: 2,
    });
    expect(result.error).toContain('timed out');
    expect((await beat(service, unit.child)).body).toMatchObject({
      status: 'timeout',
      interrupt_requested: true,
      reason: 'timeout',
    });
    await reportIdle(service, unit.child, { output: 'late' });
    expect(await inboxOf(service, unit)).toHaveLength(1);
    expect(await lateResults(unit.workId)).toMatchObject([{ output: 'late' }]);
  });

  test('restarts with progress in the very millisecond of the first heartbeat', async () => {
    const { child, workId } = await one({ stall: null, childTimeout: 10 });
    await forSeconds(6);
    await beat(service, child, { api_calls: 1 });
    await beat(service, child, { api_calls: 2 });
    await forSeconds(9);
    expect(await statusOf(service, workId)).toBe('running');
    await forSeconds(3);
    expect(await statusOf(service, workId)).toBe('timeout');
  });

  test('ends a child that never beat', async () => {
    const { workId } = await one({ childTimeout: 5 });
    await forSeconds(4);
    expect(await statusOf(service, workId)).toBe('launching');
    await forSeconds(1);
    expect(await statusOf(service, workId)).toBe('timeout');
  });
});

describe('a deadline', () => {
  test('comes whatever happens', async () => {
    const unit = await one({ childTimeout: 5, deadline: 12 });
    await forSeconds(11, (second) => beat(service, unit.child, { api_calls: second }));
    expect(await statusOf(service, unit.workId)).toBe('running');
    await forSeconds(1, () => beat(service, unit.child, { api_calls: 12 }));
    expect(await statusOf(service, unit.workId)).toBe('timeout');
    expect(await resultsOf(service, unit)).toMatchObject([
      { status: 'timeout', timeout_seconds: 12, api_calls: 12 },
    ]);
  });

  test('comes for plain work: an item that says so, once', async () => {
    const { parent, child, workId } = await plain(5);
    await running(child);
    await forSeconds(4);
    expect(await inbox(parent)).toEqual([]);
    await forSeconds(3);
    expect(await statusOf(service, workId)).toBe('timeout');
    const [item, ...others] = await inbox(parent);
    expect(others).toEqual([]);
    expect(item).toMatchObject({ work_id: workId, status: 'timeout' });
    expect(item.output).toContain('timed out');
    await reportIdle(service, child, { output: 'late' });
    expect(await inbox(parent)).toHaveLength(1);
    expect(await lateResults(workId)).toMatchObject([{ output: 'late' }]);
  });

  test('a fraction of a second is one', async () => {
    const { workId } = await plain(0.5);
    await forSeconds(1);
    expect(await statusOf(service, workId)).toBe('timeout');
  });

  test('that cannot be delivered is parked, asks to stop, is not tried each second, and is delivered when the inbox opens', async () => {
    const { parent, child, workId } = await plain(5);
    await running(child);
    await service.request('DELETE', `${path(parent)}/inbox`);
    await forSeconds(6);
    const parked = async () => {
      const { data } = (await service.request('GET', '/v1/parked?limit=1000')).body;
      return data.filter((row: { session_id: string }) => row.session_id === child);
    };
    const [row, ...others] = await parked();
    expect(others).toEqual([]);
    expect(row).toMatchObject({ reason: 'missing_parent_inbox' });
    expect((await beat(service, child)).body).toMatchObject({
      interrupt_requested: true,
      reason: 'timeout',
    });
    await forSeconds(3);
    const [again] = await parked();
    await forSeconds(20);
    expect(await parked()).toEqual([again]);
    await forSeconds(60);
    const [later, ...more] = await parked();
    expect(more).toEqual([]);
    expect(later).toEqual({ ...again, last_at: later.last_at });
    await service.request('PUT', `${path(parent)}/inbox`);
    expect(await inbox(parent)).toMatchObject([{ work_id: workId, status: 'timeout' }]);
    expect(await parked()).toEqual([]);
    await forSeconds(70);
    expect(await inbox(parent)).toHaveLength(1);
  });

  test.each(['completed', 'failed'])(
    'a result that is parked as %s does not yield to it',
    async (status) => {
      const { parent, child } = await plain(5);
      await running(child);
      await service.request('DELETE', `${path(parent)}/inbox`);
      const said = { status: status === 'failed' ? 'failed' : 'idle', output: 'its own words' };
      expect((await report(child, said)).status).toBe(503);
      await forSeconds(6);
      await service.request('PUT', `${path(parent)}/inbox`);
      expect(await inbox(parent)).toMatchObject([{ status, output: 'its own words' }]);
    },
  );
});

/** Asks the child to stop. */
async function interrupt(child: string, graceSeconds: number): Promise<void> {
  const data = { grace_seconds: graceSeconds };
  const answer = await service.request('POST', `${path(child)}/events`, {
    type: 'interrupt',
    data,
  });
  expect(answer.status).toBe(202);
}

describe('a cancellation past its grace', () => {
  test('ends plain work with the line that says so, and a late report adds nothing', async () => {
    const { parent, child, workId } = await plain();
    await beat(service, child);
    await interrupt(child, 5);
    expect((await beat(service, child)).body).toMatchObject({
      status: 'cancelling',
      interrupt_requested: true,
      reason: 'interrupted',
    });
    await forSeconds(4);
    expect(await statusOf(service, workId)).toBe('cancelling');
    await forSeconds(1);
    expect(await inbox(parent)).toMatchObject([
      { status: 'cancelled', output: '[System: sub-agent interrupted]' },
    ]);
    await reportIdle(service, child, { output: 'late' });
    expect(await inbox(parent)).toHaveLength(1);
    expect(await lateResults(workId)).toMatchObject([{ output: 'late' }]);
  });

  test('8 interrupt: the task ends as interrupted, and its unit has its item', async () => {
    const unit = await one();
    await interrupt(unit.child, 3);
    await forSeconds(3);
    expect(await resultsOf(service, unit)).toMatchObject([
      { status: 'interrupted', exit_reason: 'interrupted' },
    ]);
    expect((await beat(service, unit.child)).body).toMatchObject({
      status: 'cancelled',
      interrupt_requested: true,
      reason: 'interrupted',
    });
  });

  test('a child that stopped within it has not to be stopped any more', async () => {
    const runner = freshId('runner');
    const { parent, child } = await plain();
    await beat(service, child, { runner_id: runner });
    await interrupt(child, 5);
    await reportIdle(service, child, { output: 'as far as I came' });
    expect(await inbox(parent)).toMatchObject([
      { status: 'cancelled', output: 'as far as I came' },
    ]);
    expect((await beat(service, child)).body).toMatchObject({
      status: 'cancelled',
      interrupt_requested: false,
      reason: null,
    });
    expect((await renew(service, runner)).body).toEqual({ interrupts: [] });
  });

  test('a child that reports after it has not to be stopped any more', async () => {
    const { child } = await plain();
    await beat(service, child);
    await interrupt(child, 2);
    await forSeconds(2);
    expect((await beat(service, child)).body).toMatchObject({ interrupt_requested: true });
    await reportIdle(service, child, { output: 'late' });
    expect((await beat(service, child)).body).toMatchObject({ interrupt_requested: false });
  });

  test('a child that was stopped at once is to be stopped, rebuilt work or not', async () => {
    const { child } = await plain();
    const [parent, rebuilt] = [freshId('parent'), freshId('child')];
    await service.request('PUT', `${path(parent)}/inbox`);
    await describeChild(service, parent, rebuilt);
    for (const id of [child, rebuilt]) {
      await service.request('POST', `${path(id)}/events`, { type: 'stop_session', data: {} });
      expect((await beat(service, id)).body).toMatchObject({
        status: 'cancelled',
        interrupt_requested: true,
        reason: 'cancelled',
      });
    }
  });

  test('of two in a unit leaves what the sibling had reported', async () => {
    const unit = await order(service, { tasks: 2 });
    const [done, stuck] = unit.tasks;
    if (!done || !stuck) throw new Error('two tasks');
    await reportIdle(service, done.child, { output: 'finished' });
    await interrupt(stuck.child, 2);
    await forSeconds(2);
    expect(await resultsOf(service, unit)).toMatchObject([
      { status: 'completed', summary: 'finished' },
      { status: 'interrupted' },
    ]);
  });
});

describe("a runner's lease", () => {
  test('32 child_finished_before_crash_is_recovered_with_its_result: k/n child results were recorded', async () => {
    const runner = freshId('runner');
    const unit = await order(service, { tasks: 2, runner });
    const [done, lost] = unit.tasks;
    if (!done || !lost) throw new Error('two tasks');
    await renew(service, runner, 10);
    await reportIdle(service, done.child, { output: 'kept' });
    await forSeconds(9);
    expect(await statusOf(service, lost.workId)).toBe('launching');
    await forSeconds(1);
    expect(await statusOf(service, lost.workId)).toBe('unknown');
    const [item, ...others] = await inboxOf(service, unit);
    expect(others).toEqual([]);
    expect(item.status).toBe('unknown');
    expect(item.error).toContain('1/2 child results were recorded');
    expect(item.results).toMatchObject([
      { status: 'completed', summary: 'kept' },
      { status: 'unknown' },
    ]);
    const { body } = await service.request('GET', `/v1/delegations/${unit.delegationId}`);
    expect(body.units).toMatchObject([{ status: 'unknown', error: item.error }]);
  });

  test('33 one_child_unit_keeps_its_finished_child_when_the_owner_dies: recording and ending are one', async () => {
    const runner = freshId('runner');
    const unit = await one({ runner });
    await renew(service, runner, 3);
    await reportIdle(service, unit.child, { output: 'real' });
    await forSeconds(5);
    expect(await resultsOf(service, unit)).toMatchObject([{ status: 'completed' }]);
  });

  test('that is renewed in time loses nobody', async () => {
    const runner = freshId('runner');
    const { workId } = await one({ runner });
    await forSeconds(40, (second) =>
      second % 9 === 1 ? renew(service, runner, 10) : Promise.resolve(),
    );
    expect(await statusOf(service, workId)).toBe('launching');
  });

  test('is none that was never taken, and takes children along that moved to the runner', async () => {
    const [quiet, dying] = [freshId('runner'), freshId('runner')];
    const stays = await one({ runner: quiet });
    const moves = await one({ runner: quiet });
    await renew(service, dying, 5);
    await beat(service, moves.child, { runner_id: dying });
    await forSeconds(6);
    expect(await statusOf(service, stays.workId)).toBe('launching');
    expect(await statusOf(service, moves.workId)).toBe('unknown');
  });

  test('a real report after `unknown` follows: a new item of the unit, revision 2', async () => {
    const runner = freshId('runner');
    const unit = await order(service, { tasks: 2, runner });
    const [done, lost] = unit.tasks;
    if (!done || !lost) throw new Error('two tasks');
    await reportIdle(service, done.child, { output: 'kept' });
    await renew(service, runner, 2);
    await forSeconds(3);
    expect((await beat(service, lost.child)).body).toMatchObject({
      status: 'unknown',
      interrupt_requested: false,
    });
    const real = await reportIdle(service, lost.child, { output: 'real' });
    expect(real.headers['delivery-outcome']).toBe('delivered');
    const items = await inboxOf(service, unit);
    expect(items).toMatchObject([
      { status: 'unknown', revision: 1 },
      { status: 'completed', revision: 2 },
    ]);
    expect(items[1].results).toMatchObject([{ summary: 'kept' }, { summary: 'real' }]);
    await forSeconds(3);
    expect(await inboxOf(service, unit)).toHaveLength(2);
  });

  test('a plain child that was lost and found again follows its own item', async () => {
    const runner = freshId('runner');
    const { parent, child, workId } = await plain();
    await beat(service, child, { runner_id: runner });
    await renew(service, runner, 2);
    await forSeconds(3);
    const [first] = await inbox(parent);
    expect(first).toMatchObject({ work_id: workId, status: 'unknown', revision: 1 });
    expect(first.output).toContain('runner');
    await reportIdle(service, child, { output: 'here I am' });
    expect(await inbox(parent)).toMatchObject([
      { id: first.id },
      { status: 'completed', output: 'here I am', revision: 2, follows: first.id },
    ]);
  });

  test('tells which children are to be stopped, also those that ended without their word', async () => {
    const runner = freshId('runner');
    const [stalling, timedOut, cancelled, well, done] = await Promise.all([
      one({ runner }),
      one({ runner, stall: null, childTimeout: 5 }),
      one({ runner }),
      one({ runner }),
      one({ runner }),
    ]);
    await beat(service, stalling.child);
    await interrupt(cancelled.child, 60);
    await reportIdle(service, done.child);
    await forSeconds(STALL.idle, (second) => beat(service, well.child, { api_calls: second }));
    const { interrupts } = (await renew(service, runner)).body;
    const asked = [
      { session_id: stalling.child, work_id: stalling.workId, reason: 'stalled' },
      { session_id: timedOut.child, work_id: timedOut.workId, reason: 'timeout' },
      { session_id: cancelled.child, work_id: cancelled.workId, reason: 'interrupted' },
    ];
    expect(interrupts).toHaveLength(3);
    expect(interrupts).toEqual(expect.arrayContaining(asked));
  });
});

describe('what the service could not see', () => {
  // Nobody else sweeps here.
  const apart = useDatabase();
  let proxy: FaultProxy;
  let watcher: TestService;

  beforeEach(async () => {
    proxy = await startFaultProxy(apart.url);
    watcher = await startService({ url: proxy.url }, { clock });
    await sweepAll(watcher);
  });
  afterEach(async () => {
    await watcher.stop();
    await proxy.close();
  });

  /** Work entries as they are in the database, whoever can reach it. */
  async function statusesOf(...tasks: { workId: string }[]): Promise<string[]> {
    const rows = await apart.sql<{ work_id: string; status: string }[]>`
      select work_id, status from work`;
    return tasks.map(({ workId }) => rows.find((row) => row.work_id === workId)?.status ?? '');
  }

  async function databaseBack(): Promise<void> {
    await proxy.set('pass');
    await expect.poll(() => watcher.resources.database.ping(), { timeout: 20_000 }).toBe(true);
  }

  /** A child that would stall, one that would time out, one whose runner would be lost: soon. */
  async function waiting() {
    const runner = freshId('runner');
    const tasks = await Promise.all([
      oneOf(watcher),
      oneOf(watcher, { stall: null, childTimeout: 12, deadline: 12 }),
      oneOf(watcher, { runner, stall: null }),
    ]);
    await beat(watcher, tasks[0].child, { api_calls: 1 });
    await renew(watcher, runner, 12);
    await pass(watcher, clock, 8);
    const unharmed = ['running', 'launching', 'launching'];
    expect(await statusesOf(...tasks)).toEqual(unharmed);

    async function expectFullThresholds(): Promise<void> {
      expect(await statusesOf(...tasks)).toEqual(unharmed);
      await pass(watcher, clock, STALL.idle - 1);
      expect(await statusesOf(...tasks)).toEqual(unharmed);
      await pass(watcher, clock, 1);
      expect(await statusesOf(...tasks)).toEqual(['stalling', 'launching', 'launching']);
      await pass(watcher, clock, 2);
      expect(await statusesOf(...tasks)).toEqual(['stalling', 'timeout', 'unknown']);
    }
    return { expectFullThresholds };
  }

  test('is not judged: nobody swept for longer than every threshold', async () => {
    const { expectFullThresholds } = await waiting();
    clock.advance(3_600_000);
    await sweepAll(watcher);
    await expectFullThresholds();
  });

  test('is not judged: the clock jumped forward, and back again', async () => {
    const { expectFullThresholds } = await waiting();
    clock.advance(10 * 365 * 86_400_000);
    await sweepAll(watcher);
    await pass(watcher, clock, 5);
    clock.advance(-10 * 365 * 86_400_000);
    await sweepAll(watcher);
    await expectFullThresholds();
  });

  test('is not judged, and what comes after is: the clock went back', async () => {
    const { expectFullThresholds } = await waiting();
    clock.advance(-86_400_000);
    await sweepAll(watcher);
    await expectFullThresholds();
  });

  test('is not judged: PostgreSQL was stopped for longer than every threshold', async () => {
    const { expectFullThresholds } = await waiting();
    await proxy.set('refuse');
    for (let times = 0; times < 20; times += 1) {
      clock.advance(1000);
      await expect(sweepAll(watcher)).rejects.toThrow(/unavailable/);
    }
    await databaseBack();
    await sweepAll(watcher);
    await expectFullThresholds();
  });

  test('is not judged: the database was away for so short a time that the watch has no gap', async () => {
    const { expectFullThresholds } = await waiting();
    await proxy.set('refuse');
    for (let times = 0; times < 3; times += 1) {
      clock.advance(500);
      await expect(sweepAll(watcher)).rejects.toThrow(/unavailable/);
    }
    await databaseBack();
    await sweepAll(watcher);
    await expectFullThresholds();
  });

  test('is not judged: a heartbeat was lost with the database between two sweeps', async () => {
    const task = await oneOf(watcher);
    await beat(watcher, task.child, { api_calls: 1 });
    await pass(watcher, clock, STALL.idle - 1);
    await proxy.set('refuse');
    expect((await beat(watcher, task.child, { api_calls: 2 })).status).toBe(503);
    await databaseBack();
    await sweepAll(watcher);
    await pass(watcher, clock, STALL.idle - 1);
    expect(await statusesOf(task)).toEqual(['running']);
    await pass(watcher, clock, 1);
    expect(await statusesOf(task)).toEqual(['stalling']);
  });

  test('is not judged: the service was down, though not for long', async () => {
    const task = await oneOf(watcher);
    await beat(watcher, task.child);
    await pass(watcher, clock, STALL.idle - 1);
    await watcher.stop();
    clock.advance(1_100);
    watcher = await startService({ url: proxy.url }, { clock });
    await sweepAll(watcher);
    expect(await statusesOf(task)).toEqual(['running']);
    await pass(watcher, clock, STALL.idle - 1);
    expect(await statusesOf(task)).toEqual(['running']);
    await pass(watcher, clock, 1);
    expect(await statusesOf(task)).toEqual(['stalling']);
  });

  test('many live children whose bounds lie ahead of a clock that went back are all judged anew', async () => {
    const tasks = await Promise.all(
      Array.from({ length: 3 }, () => oneOf(watcher, { deadline: 3_600, stall: null })),
    );
    const call = await order(watcher, { tasks: 1000, deadline: 3_600, stall: null });
    await sweepAll(watcher);
    clock.advance(-365 * 86_400_000);
    await sweepAll(watcher);
    const [row] = await apart.sql`
      select count(*)::int as ahead from work
      where ended_at is null and due_at > ${new Date(clock.now() + 3_600_000)}`;
    expect(row).toEqual({ ahead: 0 });
    expect(await statusesOf(...tasks, ...call.tasks)).toEqual(
      Array.from({ length: 1003 }, () => 'launching'),
    );
  });
});

describe('several replicas', () => {
  test('that sweep at once end each unit once', async () => {
    const others = await Promise.all([1, 2].map(() => startService(database, { clock })));
    try {
      const all = [service, ...others];
      const runner = freshId('runner');
      await renew(service, runner, 6);
      const units = await Promise.all(
        Array.from({ length: 40 }, (_, at) =>
          order(service, {
            tasks: 1 + (at % 3),
            independent: at % 5 === 0,
            ...(at % 4 === 0 ? { runner } : { deadline: 6 }),
          }),
        ),
      );
      await pass(all, clock, 7);
      for (const unit of units) {
        const items = await inboxOf(service, unit);
        const ended = items.map((item) => String(item.delegation_id));
        expect(ended.toSorted()).toEqual(unit.unitIds.toSorted());
        expect(items.every((item) => item.revision === 1)).toBe(true);
      }
    } finally {
      await Promise.all(others.map((other) => other.stop()));
    }
  });

  test('leave a report and the clock that come at once one result', async () => {
    const units = await Promise.all(
      Array.from({ length: 30 }, () => one({ stall: null, deadline: 3 })),
    );
    await forSeconds(2);
    clock.advance(1000);
    await Promise.all([
      sweepAll(service),
      ...units.map((unit) => reportIdle(service, unit.child, { output: 'just in time' })),
    ]);
    for (const unit of units) {
      const [result] = await resultsOf(service, unit);
      expect(['completed', 'timeout']).toContain(result.status);
    }
  });
});

test('children described by their snapshot are judged as well, once their work was rebuilt', async () => {
  const [parent, child] = [freshId('parent'), freshId('child')];
  await describeChild(service, parent, child);
  await service.request('PUT', `${path(parent)}/inbox`);
  expect((await beat(service, child, { api_calls: 1 })).body.work_id).toBeNull();
  await forSeconds(STALL.idle);
  expect(await inbox(parent)).toEqual([]);
});
