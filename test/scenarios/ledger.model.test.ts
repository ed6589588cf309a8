import * as fc from 'fast-check';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { createTestClock } from '../support/clock.ts';
import { useDatabase } from '../support/database.ts';
import { freshId, path, reportIdle } from '../support/delivery.ts';
import { beat, inboxOf, order, renew, sweepAll } from '../support/ledger.ts';
import { startService, type TestService } from '../support/service.ts';
import {
  beats,
  isInterrupted,
  look,
  newModel,
  renews,
  reports,
  resume,
  type Model,
  type Shown,
  type Task,
  type Terms,
} from './ledger-model.ts';

/*
 * Whole histories of delegations, made up at random and played to two replicas: what is dispatched,
 * what runners say and when they fall silent, what is reported when, who asks to stop, when a
 * replica is started anew, and what the clock does. After each step every task is what a plain
 * model says, and at the end each unit has the items that it should, and no other. fast-check
 * prints the seed and the shortest history that breaks the promise.
 */

// Time passes only where the history has it pass.
vi.mock('../../src/workers/workers.ts', () => ({
  startWorkers: () => ({ stop: () => Promise.resolve() }),
}));

const RUNS = process.env['LONG'] ? 300 : 12;
const TIMEOUT_MS = 30 * 60_000;

type Step =
  | { do: 'dispatch'; tasks: number; independent: boolean; terms: Terms }
  | { do: 'beat'; of: number; apiCalls: number; tool: string | null }
  | { do: 'report'; of: number }
  | { do: 'interrupt'; of: number; grace: number }
  | { do: 'renew'; runner: string; length: number }
  | { do: 'pass'; seconds: number }
  /** The time during which nobody looked, or by which the clock was set. */
  | { do: 'jump'; seconds: number }
  | { do: 'restart'; replica: number };

const small = (min: number, max: number) => fc.integer({ min, max });

const someTerms: fc.Arbitrary<Terms> = fc.record({
  stall: fc.option(fc.record({ idle: small(2, 6), inTool: small(4, 10), grace: small(1, 4) }), {
    freq: 4,
  }),
  childTimeout: fc.option(small(3, 12), { freq: 1 }),
  deadline: small(5, 40),
  runner: fc.constantFrom('a', 'b', null),
});

const task = small(0, 1_000);

const someStep: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant('dispatch' as const),
      tasks: small(1, 3),
      independent: fc.boolean(),
      terms: someTerms,
    }),
  },
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constant('beat' as const),
      of: task,
      apiCalls: small(0, 2),
      tool: fc.constantFrom('bash', null),
    }),
  },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('report' as const), of: task }) },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('interrupt' as const), of: task, grace: small(1, 5) }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constant('renew' as const),
      runner: fc.constantFrom('a', 'b'),
      length: small(2, 12),
    }),
  },
  { weight: 8, arbitrary: fc.record({ do: fc.constant('pass' as const), seconds: small(1, 5) }) },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constant('jump' as const),
      seconds: fc.constantFrom(10, 3_600, -3_600),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({ do: fc.constant('restart' as const), replica: small(0, 1) }),
  },
);

const database = useDatabase();
const clock = createTestClock();
const replicas: TestService[] = [];

beforeAll(async () => {
  for (let at = 0; at < 2; at += 1) replicas.push(await startService(database, { clock }));
});
afterAll(async () => {
  await Promise.all(replicas.map((replica) => replica.stop()));
});

test(
  'each unit ends exactly once, with every result that was reported before, and nothing outlives its clocks',
  async () => {
    await fc.assert(fc.asyncProperty(fc.array(someStep, { minLength: 5, maxLength: 60 }), play), {
      numRuns: RUNS,
      endOnFailure: false,
    });
  },
  TIMEOUT_MS,
);

/** One history; it has parents, children and runners of its own. */
async function play(steps: readonly Step[]): Promise<void> {
  const start = clock.now();
  const seconds = () => (clock.now() - start) / 1000;
  const run = freshId('run');
  const parents = new Map<string, string>();
  await sweepTogether();
  const model = newModel(seconds());
  let turn = 0;
  const anyReplica = () => {
    turn += 1;
    return replicas[turn % 2] as TestService;
  };

  async function take(step: Step): Promise<void> {
    const found = 'of' in step ? model.tasks[step.of % Math.max(1, model.tasks.length)] : null;
    switch (step.do) {
      case 'dispatch':
        return await dispatch(step);
      case 'beat': {
        if (!found) return;
        const { apiCalls, tool } = step;
        beats(model, found, { apiCalls, tool });
        const answer = await beat(anyReplica(), found.child, {
          api_calls: apiCalls,
          current_tool: tool,
        });
        expect(answer.status).toBe(200);
        return;
      }
      case 'report': {
        if (!found) return;
        const summary = freshId('result');
        const delivered = reports(model, found, summary);
        const answer = await reportIdle(anyReplica(), found.child, { output: summary });
        expect(answer.headers['delivery-outcome']).toBe(
          delivered ? 'delivered' : 'already_delivered',
        );
        return;
      }
      case 'interrupt': {
        if (!found) return;
        isInterrupted(model, found, step.grace);
        const data = { grace_seconds: step.grace };
        const event = { type: 'interrupt', data };
        await anyReplica().request('POST', `${path(found.child)}/events`, event);
        return;
      }
      case 'renew':
        renews(model, step.runner, step.length);
        await renew(anyReplica(), `${run}${step.runner}`, step.length);
        return;
      case 'pass':
        return await passSeconds(step.seconds);
      case 'jump':
        clock.advance(step.seconds * 1000);
        resume(model, seconds());
        return await sweepTogether();
      case 'restart':
        await (replicas[step.replica] as TestService).stop();
        replicas[step.replica] = await startService(database, { clock });
        return;
    }
  }

  async function dispatch(step: Extract<Step, { do: 'dispatch' }>): Promise<void> {
    const { stall, childTimeout, deadline, runner } = step.terms;
    const ordered = await order(anyReplica(), {
      tasks: step.tasks,
      independent: step.independent,
      stall,
      deadline,
      ...(childTimeout === null ? {} : { childTimeout }),
      ...(runner === null ? {} : { runner: `${run}${runner}` }),
    });
    for (const [at, { child, workId }] of ordered.tasks.entries()) {
      const unitId = ordered.unitIds[ordered.unitIds.length === 1 ? 0 : at] ?? '';
      parents.set(unitId, ordered.parent);
      model.tasks.push(newTask(model, { child, workId, unitId, terms: step.terms }));
    }
  }

  async function passSeconds(count: number): Promise<void> {
    for (let second = 0; second < count; second += 1) {
      clock.advance(1000);
      model.now = seconds();
      look(model);
      await sweepTogether();
      await expectStatuses(model);
    }
  }

  for (const step of steps) {
    await take(step);
    await expectStatuses(model);
  }
  // All clocks run out.
  await passSeconds(45);
  for (const [unitId, parent] of parents) {
    const items = (await inboxOf(anyReplica(), { parent })).filter(
      (item) => item.delegation_id === unitId,
    );
    expect(items.map((item) => shownBy(item))).toEqual(model.items.get(unitId));
    expect(items.map((item) => item.revision)).toEqual(items.map((_, at) => at + 1));
  }
}

function newTask(
  { now }: Model,
  of: { child: string; workId: string; unitId: string; terms: Terms },
): Task {
  return {
    ...of,
    status: 'launching',
    summary: null,
    createdAt: now,
    beat: null,
    progressed: false,
    progressAt: now,
    interruptedAt: now,
    grace: 0,
  };
}

function shownBy(item: { results: { status: Shown[0]['status']; summary: string | null }[] }) {
  return item.results.map(({ status, summary }) => ({ status, summary }));
}

async function sweepTogether(): Promise<void> {
  await Promise.all(replicas.map(sweepAll));
}

/** Every task is what the model says. */
async function expectStatuses({ tasks }: Model): Promise<void> {
  const rows = await database.sql<{ workId: string; status: string }[]>`
    select work_id as "workId", coalesce(result ->> 'status', status) as status from work
    where work_id = any(${tasks.map((one) => one.workId)}::text[]) order by work_id`;
  const expected = tasks
    .map(({ workId, status }) => ({ workId, status }))
    .toSorted((a, b) => (a.workId < b.workId ? -1 : 1));
  expect([...rows]).toEqual(expected);
}
