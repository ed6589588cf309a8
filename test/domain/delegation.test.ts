import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  planUnits,
  recordedOfLost,
  secondsBetween,
  taskResult,
  unitStatus,
  type TaskResult,
} from '../../src/domain/delegation.ts';
import {
  delegationDetails,
  taskFailedDetails,
  withOrigin,
  type DelegationOrigin,
} from '../../src/domain/delegation-item.ts';
import {
  FAILED_STATUSES,
  interruptedResult,
  isFailure,
  lostRunnerResult,
  resultFromReport,
  stalledResult,
  timedOutResult,
  type ResultStatus,
  type TaskReport,
} from '../../src/domain/task-end.ts';
import { cutSummaries } from '../../src/domain/text-budget.ts';
import { LIVE_STATUSES } from '../../src/domain/work.ts';

function report(over: Partial<TaskReport> = {}) {
  return resultFromReport({
    reportStatus: 'idle',
    outcome: null,
    output: 'the output',
    result: null,
    workStatus: 'running',
    apiCalls: null,
    model: null,
    ...over,
  });
}

function result(over: Partial<TaskResult> = {}): TaskResult {
  return {
    task_index: 0,
    session_id: 'child',
    work_id: 'subagent_1',
    status: 'completed',
    summary: 'done',
    error: null,
    exit_reason: 'completed',
    truncated: false,
    api_calls: 1,
    duration_seconds: 2,
    model: null,
    ...over,
  };
}

function cancelling(over: Partial<TaskReport>) {
  return report({ workStatus: 'cancelling', ...over });
}

function summaries(...texts: string[]): TaskResult[] {
  return texts.map((summary, task_index) => result({ task_index, summary }));
}

const withStatus = (...statuses: ResultStatus[]) =>
  statuses.map((status, task_index) => result({ task_index, status }));

const STATUSES = ['completed', ...FAILED_STATUSES] as const;
const anyStatus = fc.constantFrom(...STATUSES);
const groups = fc.array(
  fc.record({ group: fc.constantFrom('a', 'b', 'c', '__proto__', '', null, undefined) }),
  { minLength: 1, maxLength: 20 },
);

describe('planning the units of a call', () => {
  it('makes one unit of the whole call, and groups are inert, by default (001.30)', () => {
    expect(planUnits('deleg_1', [{ group: 'a' }, {}, { group: 'b' }], false)).toEqual([
      { unitId: 'deleg_1', group: null, taskIndexes: [0, 1, 2] },
    ]);
  });

  it('makes one for each group and one for each ungrouped task, when they are independent (001.28)', () => {
    expect(planUnits('deleg_1', [{}, { group: 'a' }, { group: 'a' }, {}], true)).toEqual([
      { unitId: 'deleg_1-1', group: null, taskIndexes: [0] },
      { unitId: 'deleg_1-2', group: 'a', taskIndexes: [1, 2] },
      { unitId: 'deleg_1-3', group: null, taskIndexes: [3] },
    ]);
  });

  it('numbers groups in the order of their first appearance, wherever the rest stands', () => {
    const tasks = [{ group: 'b' }, { group: 'a' }, {}, { group: 'b' }];
    expect(
      planUnits('c', tasks, true).map(({ group, taskIndexes }) => [group, taskIndexes]),
    ).toEqual([
      ['b', [0, 3]],
      ['a', [1]],
      [null, [2]],
    ]);
  });

  it.each([[[{}]], [[{ group: 'a' }, { group: 'a' }]]])(
    'keeps the id of the call for a single unit: %j',
    (tasks) => {
      expect(planUnits('deleg_1', tasks, true).map(({ unitId }) => unitId)).toEqual(['deleg_1']);
    },
  );

  it('puts every task into exactly one unit, and never two groups into one', () => {
    fc.assert(
      fc.property(groups, fc.boolean(), (tasks, independent) => {
        const units = planUnits('c', tasks, independent);
        const planned = units.flatMap(({ taskIndexes }) => taskIndexes);
        expect(planned.toSorted((a, b) => a - b)).toEqual(tasks.map((_, index) => index));
        expect(new Set(units.map(({ unitId }) => unitId)).size).toBe(units.length);
        if (!independent) return;
        for (const { group, taskIndexes } of units) {
          expect(taskIndexes.map((index) => tasks[index]?.group || null)).toEqual(
            taskIndexes.map(() => group),
          );
        }
        const named = units.flatMap(({ group }) => (group === null ? [] : [group]));
        expect(new Set(named).size).toBe(named.length);
      }),
    );
  });
});

describe('the result of a report', () => {
  it('of idle is completed, with the output as its summary', () => {
    expect(report()).toEqual({
      status: 'completed',
      summary: 'the output',
      error: null,
      exitReason: 'completed',
      truncated: false,
      apiCalls: 0,
      model: null,
    });
  });

  it('of idle without any output is completed all the same', () => {
    expect(report({ output: '' })).toMatchObject({ status: 'completed', summary: '', error: null });
  });

  it('of failed has the output as its error, and the exit reason error (002.1)', () => {
    expect(report({ reportStatus: 'failed', output: 'boom' })).toMatchObject({
      status: 'failed',
      summary: null,
      error: 'boom',
      exitReason: 'error',
      truncated: false,
    });
  });

  it("is what the child's own result says", () => {
    const said = { status: 'error', summary: 'half', error: 'boom', api_calls: 7, model: 'm' };
    expect(report({ result: said })).toEqual({
      status: 'error',
      summary: 'half',
      error: 'boom',
      exitReason: 'error',
      truncated: false,
      apiCalls: 7,
      model: 'm',
    });
  });

  it.each([
    [{ failed: true, summary: 'looks fine' }, 'failed'],
    [{ failed: true, status: 'completed', exit_reason: 'completed', summary: 'fine' }, 'failed'],
    [{ failed: true, status: 'timeout' }, 'timeout'],
    [{ failed: 'true', summary: 'fine' }, 'completed'],
    [{ failed: 1 }, 'completed'],
  ])('of %j is %s: a failure beats a summary', (said, status) => {
    const end = report({ result: said, outcome: 'completed' });
    expect(end.status).toBe(status);
    expect(end.exitReason).toBe({ failed: 'error' }[status] ?? status);
    if (isFailure(end.status)) expect(end.error).toMatch(/\S/u);
  });

  it('that hit max_iterations stays completed, and is truncated (001.22)', () => {
    expect(report({ result: { exit_reason: 'max_iterations', summary: 'half' } })).toMatchObject({
      status: 'completed',
      summary: 'half',
      exitReason: 'max_iterations',
      truncated: true,
    });
  });

  it('that did not is not truncated (001.23)', () => {
    expect(report({ result: { exit_reason: 'completed' } }).truncated).toBe(false);
  });

  it('of a time-out has its exit reason, and says so in its error', () => {
    const end = report({ result: { status: 'timeout', error: 'too slow', exit_reason: 'x' } });
    expect(end).toMatchObject({ status: 'timeout', exitReason: 'timeout' });
    expect(end.error).toBe('The sub-agent timed out: too slow');
    const said = report({ result: { status: 'timeout', error: 'it timed out' } });
    expect(said.error).toBe('it timed out');
  });

  it.each([
    ['success', 'completed'],
    ['failure', 'failed'],
    ['cancelled', 'interrupted'],
    ['stalled', 'stalled'],
  ])('takes the word %s for %s', (status, means) => {
    expect(report({ result: { status } }).status).toBe(means);
  });

  it.each(['unknown', 'great', '', 1, null, ['failed'], {}, '__proto__'])(
    'does not take the word %j for a status',
    (status) => {
      expect(report({ result: { status } }).status).toBe('completed');
      expect(report({ result: { status }, reportStatus: 'failed' }).status).toBe('failed');
    },
  );

  it("takes the child's status before the outcome, and that before idle and failed", () => {
    expect(report({ result: { status: 'timeout' }, outcome: 'failed' }).status).toBe('timeout');
    expect(report({ outcome: 'failed' }).status).toBe('failed');
    expect(report({ outcome: 'cancelled' }).status).toBe('interrupted');
    expect(report({ outcome: 'interrupted' }).status).toBe('interrupted');
    const rescued = report({ outcome: 'completed', reportStatus: 'failed' });
    expect(rescued).toMatchObject({ status: 'completed', summary: 'the output', error: null });
  });

  it('of failed keeps what the child had got so far', () => {
    const end = report({ reportStatus: 'failed', output: 'boom', result: { summary: 'half' } });
    expect(end).toMatchObject({ status: 'failed', summary: 'half', error: 'boom' });
  });

  it('falls back on what the heartbeats and the dispatch said', () => {
    expect(report({ apiCalls: 4, model: 'm' })).toMatchObject({ apiCalls: 4, model: 'm' });
    const said = { api_calls: 5, model: 'other' };
    expect(report({ apiCalls: 4, model: 'm', result: said })).toMatchObject({
      apiCalls: 5,
      model: 'other',
    });
  });

  it.each([
    { api_calls: -1 },
    { api_calls: 1.5 },
    { api_calls: '3' },
    { api_calls: true },
    { api_calls: Number.NaN },
    { model: '' },
    { model: 3 },
    { model: 'm'.repeat(513) },
    { summary: {} },
    { summary: ' \n' },
    { error: ['boom'] },
    { exit_reason: 5 },
    { exit_reason: 'x'.repeat(513) },
  ])('ignores what does not fit: %j', (said) => {
    expect(report({ result: said })).toEqual(report());
  });

  it('can always be stored, whatever the child says', () => {
    const end = report({ result: { summary: 'a\0b\ud800', model: '\udc00' } });
    expect(end).toMatchObject({ summary: 'a\ufffdb\ufffd', model: '\ufffd' });
  });

  it('is whole, whatever the child says', () => {
    const fields = ['status', 'summary', 'error', 'exit_reason', 'api_calls', 'model', 'failed'];
    const said = fc.dictionary(
      fc.constantFrom(...fields),
      fc.oneof(fc.anything(), fc.string(), fc.constantFrom(...STATUSES, 'max_iterations')),
    );
    fc.assert(
      fc.property(
        said,
        fc.constantFrom('idle', 'failed'),
        fc.constantFrom(...LIVE_STATUSES),
        fc.constantFrom(null, 'completed', 'failed', 'cancelled', 'interrupted'),
        (claimed, reportStatus, workStatus, outcome) => {
          const end = report({ result: claimed, reportStatus, workStatus, outcome });
          expect(STATUSES).toContain(end.status);
          expect(end.status).not.toBe('unknown');
          expect(end.truncated).toBe(end.exitReason === 'max_iterations');
          expect(Number.isSafeInteger(end.apiCalls)).toBe(true);
          if (isFailure(end.status)) expect(end.error).toMatch(/\S/u);
          else expect(typeof end.summary).toBe('string');
          if (end.status === 'timeout') expect(end.error).toContain('timed out');
          if (claimed['failed'] === true) expect(end.status).not.toBe('completed');
        },
      ),
    );
  });
});

describe('a report within the grace of an interrupt', () => {
  it('is interrupted, and its output is kept (001.8)', () => {
    expect(cancelling({ output: 'half' })).toMatchObject({
      status: 'interrupted',
      summary: 'half',
      exitReason: 'interrupted',
      truncated: false,
    });
    expect(cancelling({ reportStatus: 'failed', output: 'stopped' })).toMatchObject({
      status: 'interrupted',
      error: 'stopped',
    });
  });

  it('is completed only if it says so', () => {
    expect(cancelling({ outcome: 'completed' }).status).toBe('completed');
    expect(cancelling({ result: { status: 'completed' } }).status).toBe('completed');
    expect(cancelling({ outcome: 'completed', result: { failed: true } }).status).toBe(
      'interrupted',
    );
    expect(cancelling({ result: { status: 'error', summary: 'half' } })).toMatchObject({
      status: 'interrupted',
      summary: 'half',
    });
  });

  it('after a stall counts as it is (001.11)', () => {
    expect(report({ workStatus: 'stalling' })).toEqual(report());
    const said = { status: 'interrupted', summary: 'half', api_calls: 3 };
    expect(report({ workStatus: 'stalling', result: said })).toMatchObject({
      status: 'interrupted',
      summary: 'half',
      apiCalls: 3,
    });
  });
});

describe('what is said in place of a report', () => {
  const soFar = { apiCalls: 3, model: 'm' };
  const task = { taskIndex: 1, sessionId: 'c', workId: 'w', durationSeconds: 1.5 };

  it('of a stalled child has its four figures and says that it stopped responding (001.9, 001.13)', () => {
    const figures = { quietMs: 1_210_500, thresholdMs: 1_200_000, graceMs: 120_000 };
    const end = stalledResult({ apiCalls: null, model: 'm', ...figures, phase: 'in_tool' });
    expect(taskResult(task, end)).toMatchObject({
      task_index: 1,
      session_id: 'c',
      work_id: 'w',
      status: 'stalled',
      exit_reason: 'stalled',
      api_calls: 0,
      duration_seconds: 1.5,
      stalled_after_quiet_seconds: 1210.5,
      stall_threshold_seconds: 1200,
      stall_phase: 'in_tool',
      stall_grace_seconds: 120,
    });
    expect(end.error).toMatch(/stopped responding.*1210\.5 s.*tool.*1200 s.*120 s/u);
  });

  it.each(['child_timeout', 'deadline'] as const)('of a child past its %s timed out', (cause) => {
    const end = timedOutResult({ ...soFar, cause, timeoutMs: 30_000 });
    expect(taskResult(task, end)).toMatchObject({
      status: 'timeout',
      exit_reason: 'timeout',
      timeout_seconds: 30,
      api_calls: 3,
      model: 'm',
    });
    expect(end.error).toMatch(/timed out.*30 s/u);
  });

  it('of a child whose runner was lost is unknown', () => {
    expect(lostRunnerResult(soFar)).toMatchObject({ status: 'unknown', summary: null });
  });

  it.each([
    ['interrupted', /interrupted/u],
    ['stopped', /stopped/u],
    ['withdrawn', /withdrawn/u],
    ['session_deleted', /deleted/u],
    ['session_closed', /closed/u],
    ['client_gone', /client/u],
  ] as const)('of a child ended by %s is interrupted, and names the cause', (by, cause) => {
    const end = interruptedResult({ ...soFar, by });
    expect(end).toMatchObject({ status: 'interrupted', exitReason: 'interrupted' });
    expect(end.error).toMatch(cause);
  });

  it('has no figures that do not apply', () => {
    const keys = Object.keys(taskResult(task, lostRunnerResult(soFar)));
    expect(keys).toEqual(Object.keys(result()));
  });

  it('counts no time for a clock that was set back', () => {
    expect(secondsBetween(1000, 2500)).toBe(1.5);
    expect(secondsBetween(2500, 1000)).toBe(0);
  });
});

describe('the status of a unit', () => {
  it("of one task is the task's", () => {
    for (const status of STATUSES) expect(unitStatus(withStatus(status))).toBe(status);
  });

  it.each([
    [['completed', 'completed'], 'completed'],
    [['completed', 'failed'], 'completed'],
    [['failed', 'stalled'], 'error'],
    [['interrupted', 'interrupted'], 'error'],
    [['timeout', 'timeout'], 'error'],
    [['completed', 'unknown'], 'unknown'],
    [['failed', 'unknown'], 'unknown'],
    [[], 'completed'],
  ] as [ResultStatus[], ResultStatus][])('of %j is %s', (statuses, status) => {
    expect(unitStatus(withStatus(...statuses))).toBe(status);
  });

  it('does not depend on the order of the tasks', () => {
    fc.assert(
      fc.property(fc.array(anyStatus), (statuses) => {
        expect(unitStatus(withStatus(...statuses.toReversed()))).toBe(
          unitStatus(withStatus(...statuses)),
        );
      }),
    );
  });

  it('takes every end but completed for a failure', () => {
    expect(STATUSES.filter(isFailure)).toEqual(FAILED_STATUSES);
  });
});

describe('a unit that lost a runner', () => {
  it('says how many child results were recorded (001.32, 001.33)', () => {
    expect(recordedOfLost(withStatus('completed', 'unknown'))).toContain(
      '1/2 child results were recorded',
    );
    expect(recordedOfLost(withStatus('unknown'))).toContain('0/1 child results were recorded');
    expect(recordedOfLost(withStatus('failed', 'unknown', 'timeout'))).toContain('2/3 child');
  });

  it('is the only one that says so', () => {
    expect(recordedOfLost(withStatus('completed', 'failed'))).toBeNull();
    expect(recordedOfLost([])).toBeNull();
  });
});

describe('cutting summaries', () => {
  const encoder = new TextEncoder();
  const bytes = (text: string | null) => encoder.encode(text ?? '').length;

  it('leaves what fits as it is', () => {
    const results = summaries('a'.repeat(256 * 1024), 'b');
    expect(cutSummaries(results)).toEqual(results);
  });

  it('cuts a summary over 256 KiB, and says so', () => {
    const [cut, whole] = cutSummaries(summaries('a'.repeat(256 * 1024 + 1), 'b'));
    expect(cut?.summary).toHaveLength(256 * 1024);
    expect(cut?.summary_truncated).toBe(true);
    expect(whole).not.toHaveProperty('summary_truncated');
  });

  it.each([
    ['€€', 5, '€'],
    ['a😀b', 4, 'a'],
    ['a😀b', 5, 'a😀'],
    ['éé', 3, 'é'],
    ['😀', 3, ''],
  ])('cuts %j at %d bytes to %j, never within a code point', (summary, each, kept) => {
    const [cut] = cutSummaries(summaries(summary), { each, together: 1000 });
    expect(cut).toMatchObject({ summary: kept, summary_truncated: true });
  });

  it('lets the longest give way first when all together are too much', () => {
    const cut = cutSummaries(summaries('aaaaaaaaaa', 'bb', 'cccccccc'), { each: 9, together: 12 });
    expect(cut.map(({ summary }) => summary)).toEqual(['aaaaa', 'bb', 'ccccc']);
  });

  it('holds a thousand of the longest within 32 MiB', () => {
    const cut = cutSummaries(
      Array.from({ length: 1000 }, () => result({ summary: 'x'.repeat(300 * 1024) })),
    );
    const total = cut.reduce((sum, { summary }) => sum + bytes(summary), 0);
    expect(total).toBeLessThanOrEqual(32 * 1024 * 1024);
    expect(total).toBeGreaterThan(31 * 1024 * 1024);
  });

  it('cuts errors as well: they are as long as a child makes them', () => {
    const [cut] = cutSummaries([result({ summary: null, error: 'abcdef' })], {
      each: 3,
      together: 100,
    });
    expect(cut).toMatchObject({ summary: null, error: 'abc', error_truncated: true });
  });

  it('keeps to both limits, keeps beginnings, and marks exactly what it cut', () => {
    const text = fc.string({ unit: 'binary', maxLength: 30 });
    const budget = fc.record({ each: fc.nat(40), together: fc.nat(200) });
    fc.assert(
      fc.property(
        fc.array(fc.record({ summary: text, error: fc.option(text) }), { maxLength: 10 }),
        budget,
        (texts, limits) => {
          const results = texts.map((said) => result(said));
          const cut = cutSummaries(results, limits);
          const sizes = cut.flatMap(({ summary, error }) => [bytes(summary), bytes(error)]);
          expect(Math.max(0, ...sizes)).toBeLessThanOrEqual(limits.each);
          expect(sizes.reduce((sum, size) => sum + size, 0)).toBeLessThanOrEqual(limits.together);
          for (const [place, { summary, summary_truncated }] of cut.entries()) {
            const whole = results[place]?.summary ?? '';
            expect(whole.startsWith(summary ?? '')).toBe(true);
            expect(summary?.isWellFormed()).toBe(whole.isWellFormed());
            expect(summary_truncated ?? false).toBe(summary !== whole);
          }
        },
      ),
    );
  });
});

describe('an item', () => {
  const origin: DelegationOrigin = {
    session_key: 'key',
    origin_ui_session_id: null,
    origin_session_id: 'origin',
    parent_session_id: 'parent',
    goals: ['first', 'second'],
    context: 'why',
    toolsets: ['web'],
    role: 'researcher',
    model: 'm',
  };
  const span = {
    dispatchedAt: '2026-11-01T10:00:00.000Z',
    completedAt: '2026-11-01T10:00:02.000Z',
  };
  const unit = { unitId: 'deleg_1', group: null };
  const details = (results: TaskResult[]) =>
    delegationDetails({ ...span, unit, results, totalDurationSeconds: 2 });

  it('of a unit of one task has what the task has, and the whole call (001.5)', () => {
    const stalled = {
      stalled_after_quiet_seconds: 451,
      stall_threshold_seconds: 450,
      stall_phase: 'idle' as const,
      stall_grace_seconds: 120,
    };
    const only = result({
      task_index: 1,
      status: 'stalled',
      error: 'e',
      summary: null,
      ...stalled,
    });
    expect(withOrigin(details([only]), origin)).toEqual({
      type: 'async_delegation',
      delegation_id: 'deleg_1',
      ...origin,
      goal: 'second',
      status: 'stalled',
      is_batch: true,
      results: [only],
      group: null,
      dispatched_at: span.dispatchedAt,
      completed_at: span.completedAt,
      total_duration_seconds: 2,
      display_kind: 'async_delegation_complete',
      summary: null,
      error: 'e',
      api_calls: 1,
      exit_reason: 'completed',
      ...stalled,
    });
  });

  it('of several has the results by task_index, and no fields of one', () => {
    const results = [
      result({ task_index: 1 }),
      result({ task_index: 0, status: 'failed', error: 'boom' }),
    ];
    const item = withOrigin(details(results), origin);
    expect(item.results.map(({ task_index }) => task_index)).toEqual([0, 1]);
    expect(item.status).toBe('completed');
    for (const field of ['goal', 'summary', 'error', 'api_calls', 'exit_reason', 'stall_phase']) {
      expect(item).not.toHaveProperty(field);
    }
  });

  it('of a unit that lost a runner keeps what was reported, and counts it in its error (001.32)', () => {
    const item = details([
      result({ summary: 'kept' }),
      result({ task_index: 1, status: 'unknown', summary: null }),
    ]);
    expect(item.status).toBe('unknown');
    expect(item.error).toContain('1/2 child results were recorded');
    expect(item.results[0]?.summary).toBe('kept');
    const lost = details([result({ status: 'unknown', error: 'lost' })]);
    expect(lost.error).toContain('0/1 child results were recorded');
  });

  it('holds no more text than its budget', () => {
    const item = details([result({ summary: 'x'.repeat(300 * 1024) })]);
    expect(item.summary).toHaveLength(256 * 1024);
    expect(item.results[0]?.summary_truncated).toBe(true);
  });

  it('of a failed task has that task alone', () => {
    const failed = result({ task_index: 1, status: 'failed', error: 'boom' });
    const early = taskFailedDetails({ ...span, unit, result: failed });
    expect(withOrigin(early, origin)).toMatchObject({
      type: 'task_failed',
      delegation_id: 'deleg_1',
      goal: 'second',
      goals: ['first', 'second'],
      status: 'failed',
      error: 'boom',
      results: [failed],
      display_kind: 'task_failed',
    });
  });

  it('of a session that was continued has the key of the one that goes on', () => {
    const stored = { ...details([result()]), session_key: 'goes on' };
    expect(withOrigin(stored, origin).session_key).toBe('goes on');
  });

  it('stores nothing of what its call keeps', () => {
    const early = taskFailedDetails({ ...span, unit, result: result({ status: 'failed' }) });
    for (const stored of [details([result()]), early]) {
      for (const field of [...Object.keys(origin), 'goal'])
        expect(stored).not.toHaveProperty(field);
    }
  });

  it('is read again from JSON as it was stored', () => {
    const item = details([result(), result({ task_index: 1, status: 'failed' })]);
    const stored: Record<string, unknown> = item;
    expect(JSON.parse(JSON.stringify(stored))).toEqual(item);
  });
});
