import { createServer } from 'node:http';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { prune } from '../../src/operations/prune.ts';
import { createTestClock } from '../support/clock.ts';
import { useDatabase } from '../support/database.ts';
import { path } from '../support/delivery.ts';
import { startService, useService, type TestService } from '../support/service.ts';
import {
  closes,
  deletes,
  dispatches,
  inboxOf,
  inShort,
  isChild,
  newPair,
  opens,
  says,
  shows,
  status,
  take,
  writes,
  type Pair,
  type Step,
} from '../support/steps.ts';

/*
 * Several turns of one child, of which each gets its own result and its own text: whatever comes
 * late, comes twice, waits, or is withdrawn in between.
 */

const DAY_MS = 86_400_000;

const service = useService(useDatabase());
/** For a replica with another clock. */
const database = useDatabase();

const idle = (output?: string, more: object = {}) => ({ status: 'idle', output, ...more });
const failed = (output?: string) => ({ status: 'failed', output });
const run = (responseId?: string) => ({ status: 'running', response_id: responseId });
const r = (responseId: string) => ({ response_id: responseId });
const DELIVERED = '204 delivered';
const WAITS = '503 not_confirmed missing_parent_inbox';
const posts =
  (data: object): Step =>
  (pair) =>
    status(pair, data);

/** The dispatch that has just been made is withdrawn. */
const withdraws: Step = async ({ service: at, child }) => {
  const { body } = await at.request('GET', path(child));
  expect((await at.request('DELETE', `/v1/work/${body.work.work_id}`)).status).toBe(204);
};

const stops: Step = ({ service: at, child }) =>
  at.request('POST', `${path(child)}/events`, { type: 'stop_session', data: {} });

const interrupts: Step = ({ service: at, child }) =>
  at.request('POST', `${path(child)}/events`, { type: 'interrupt', data: {} });

/** A message of the assistant as upstream lists it. */
const message = (id: unknown, text: string, more: object = {}) => ({
  id,
  type: 'message',
  role: 'assistant',
  content: [{ type: 'output_text', text }],
  ...more,
});

async function outputs(pair: Pair): Promise<string[]> {
  return (await inboxOf(pair)).map(
    (item) => `${String(item['status'])}: ${String(item['output'])}`,
  );
}

interface Row {
  what: string;
  steps: Step[];
  inbox: string[];
}

const rows: Row[] = [
  {
    what: 'a report without ids is the new turn’s, though the former had announced one more',
    steps: [
      dispatches(),
      says(idle('one', r('r1')), DELIVERED),
      posts(run('r2')),
      dispatches(),
      says(idle('two'), DELIVERED),
      dispatches(),
    ],
    inbox: ['completed: one', 'completed: two'],
  },
  {
    what: '… though a late running of the former came before it was dispatched',
    steps: [
      dispatches(),
      posts(run('r1')),
      says(idle('one'), DELIVERED),
      posts(run('r1')),
      dispatches(),
      says(idle('two'), DELIVERED),
      dispatches(),
    ],
    inbox: ['completed: one', 'completed: two'],
  },
  {
    what: '… or after that',
    steps: [
      dispatches(),
      says(idle('one', r('r1')), DELIVERED),
      dispatches(),
      posts(run('r1')),
      says(idle('two'), DELIVERED),
    ],
    inbox: ['completed: one', 'completed: two'],
  },
  {
    what: 'a repeated text of the former turn does not take away the new one’s',
    steps: [
      dispatches(),
      writes('one', {}, r('r1')),
      says(idle(undefined, r('r1')), DELIVERED),
      dispatches(),
      posts(run('r2')),
      writes('two', {}, r('r2')),
      writes('one', {}, r('r1')),
      says(idle(undefined, r('r2')), DELIVERED),
    ],
    inbox: ['completed: one', 'completed: two'],
  },
  {
    what: 'late text of a former turn that had none leaves the new one’s where it is',
    steps: [
      dispatches(),
      says(idle(undefined, r('r1')), DELIVERED),
      dispatches(),
      posts(run('r2')),
      writes('two', {}, r('r2')),
      writes('one', {}, r('r1')),
      says(idle(undefined, r('r2')), DELIVERED),
    ],
    inbox: ['completed: ', 'completed: one', 'completed: two'],
  },
  {
    what: 'text that names another turn than the one that runs does not count',
    steps: [dispatches(), posts(run('r2')), writes('x', {}, r('r1')), says(idle(), DELIVERED)],
    inbox: ['completed: '],
  },
  {
    what: 'a failure without text leaves a parked one its text',
    steps: [isChild(), says(failed('boom'), WAITS), says(failed(), WAITS), opens],
    inbox: ['failed: boom'],
  },
  {
    what: 'a completion that is parked stays one when its turn is then asked to stop',
    steps: [dispatches(), closes, says(idle('x'), WAITS), interrupts, opens],
    inbox: ['completed: x'],
  },
  {
    what: 'a late repeat does not close the turn after one that was withdrawn',
    steps: [
      dispatches(),
      says(idle('x'), DELIVERED),
      dispatches(),
      withdraws,
      dispatches(),
      says(idle('x'), DELIVERED),
      says(idle('three'), DELIVERED),
    ],
    inbox: ['completed: x', 'completed: x', 'completed: three'],
  },
  {
    what: '… nor after one that was stopped',
    steps: [
      dispatches(),
      says(idle('x'), DELIVERED),
      dispatches(),
      stops,
      dispatches(),
      says(idle('x'), DELIVERED),
      says(idle('three'), DELIVERED),
    ],
    inbox: [
      'completed: x',
      'cancelled: [System: sub-agent stopped]',
      'completed: x',
      'completed: three',
    ],
  },
  {
    what: 'a session begins anew without the text that came before it was ever named',
    steps: [writes('old'), deletes('child'), isChild(), opens, says(idle(), DELIVERED)],
    inbox: ['completed: '],
  },
];

test.each(rows)('$what', async ({ steps, inbox }) => {
  const pair = newPair(service);
  await take(pair, steps);
  expect(await outputs(pair)).toEqual(inbox);
});

test('a report after a dead letter is one of its own, and lives as long as any', async () => {
  const clock = createTestClock();
  const late = await startService(database, { clock });
  const pair = newPair(late);
  const dead = async () => {
    const { body } = await late.request('GET', '/v1/parked?state=dead&limit=1000');
    const of = body.data.filter((row: { session_id: string }) => row.session_id === pair.child);
    return of.map((row: { output_preview: string }) => row.output_preview);
  };
  await take(pair, [isChild(), says(idle('one'), WAITS)]);
  clock.advance(7 * DAY_MS + 1_000);
  await prune(late.resources, null);
  expect(await dead()).toEqual(['one']);
  expect(inShort(await status(pair, idle('two')))).toMatch(/^503 .*missing_parent_inbox$/);
  await prune(late.resources, null);
  await take(pair, [opens]);
  expect(await outputs(pair)).toEqual(['completed: two']);
  expect(await dead()).toEqual(['one']);
  await late.stop();
});

describe('with an upstream', () => {
  const answers = new Map<string, unknown>();
  const upstream = createServer((request, response) => {
    const answer = answers.get((request.url ?? '').replace('/v1/sessions/', ''));
    response.writeHead(answer === undefined ? 404 : 200, { 'content-type': 'application/json' });
    response.end(JSON.stringify(answer ?? {}));
  });
  // A database of its own: a replica without upstream would settle what waits for it.
  const asked = useDatabase();
  let asking: TestService;

  beforeAll(async () => {
    await once(upstream.listen(0, '127.0.0.1'), 'listening');
    const { port } = upstream.address() as AddressInfo;
    asking = await startService(asked, { env: { SNAPSHOT_URL: `http://127.0.0.1:${port}` } });
  });

  afterAll(async () => {
    await asking.stop();
    upstream.closeAllConnections();
    upstream.close();
  });

  const upstreamWrites =
    (...data: object[]): Step =>
    async ({ child }) => {
      answers.set(
        `${child}/items?type=message&order=desc&limit=20`,
        await Promise.resolve({ data }),
      );
    };
  const upstreamKnows =
    (snapshot: (pair: Pair) => object): Step =>
    async (pair) => {
      answers.set(pair.child, await Promise.resolve(snapshot(pair)));
    };

  test.each<Row>([
    {
      what: 'a message with which a parked turn was filled is not the next turn’s',
      steps: [
        upstreamWrites(message('m1', 'one')),
        dispatches(),
        closes,
        says(idle(), WAITS),
        says(idle(), WAITS),
        opens,
        dispatches(),
        posts(run()),
        says(idle(), DELIVERED),
      ],
      inbox: ['completed: one', 'completed: '],
    },
    {
      what: 'nor that of the turn after one that was withdrawn',
      steps: [
        upstreamWrites(message('m1', 'one')),
        dispatches(),
        says(idle(), DELIVERED),
        dispatches(),
        withdraws,
        posts(run()),
        says(idle(), DELIVERED),
        dispatches(),
        posts(run()),
        says(idle(), DELIVERED),
      ],
      inbox: ['completed: one', 'completed: ', 'completed: '],
    },
    {
      what: 'messages are told apart by numbers, too',
      steps: [
        upstreamWrites(message(1, 'one')),
        dispatches(),
        says(idle(), DELIVERED),
        dispatches(),
        posts(run()),
        says(idle(), DELIVERED),
      ],
      inbox: ['completed: one', 'completed: '],
    },
    {
      what: 'a message of a turn that was delivered here is not another’s',
      steps: [
        upstreamWrites(message('m1', 'one', r('r1'))),
        dispatches(),
        says(idle('one', r('r1')), DELIVERED),
        dispatches(),
        posts(run()),
        says(idle(), DELIVERED),
      ],
      inbox: ['completed: one', 'completed: '],
    },
    {
      what: 'a session that only upstream knows stays deleted',
      steps: [
        upstreamKnows(({ parent }) => ({ parent_session_id: parent, sub_agent_name: 'reviewer' })),
        deletes('child'),
        says(idle('x'), '204 parent_gone'),
        opens,
      ],
      inbox: [],
    },
    {
      what: 'a child gets the names that upstream has when it is dispatched to',
      steps: [
        upstreamKnows(({ parent }) => ({ parent_session_id: parent, sub_agent_name: 'reviewer' })),
        dispatches(),
        shows({ sub_agent_name: 'reviewer', work: { agent: 'reviewer', title: 'reviewer' } }),
      ],
      inbox: [],
    },
    {
      what: '… and is not taken from the parent that upstream says it has',
      steps: [
        upstreamKnows(() => ({ parent_session_id: 'another', sub_agent_name: 'reviewer' })),
        dispatches({}, { status: 409, body: { reason: 'parent_mismatch' } }),
      ],
      inbox: [],
    },
  ])('$what', async ({ steps, inbox }) => {
    const pair = newPair(asking);
    await take(pair, steps);
    expect(await outputs(pair)).toEqual(inbox);
  });
});
