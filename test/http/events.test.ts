import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { createTestClock } from '../support/clock.ts';
import { useDatabase } from '../support/database.ts';
import { freshId, path, reportIdle } from '../support/delivery.ts';
import { openRaw } from '../support/raw-http.ts';
import { startService, useService, type TestService } from '../support/service.ts';
import {
  closes,
  deletes,
  dispatches,
  inboxOf,
  inShort,
  isChild,
  isDescribed,
  newPair,
  opens,
  reads,
  says,
  shows,
  status,
  take,
  writes,
  type Pair,
  type Step,
} from '../support/steps.ts';

/*
 * What forwarders report, over HTTP. The tables are those of omnigent-behaviours §§4.1–4.4, 4.8 and
 * 4.9 under their ids, with the protocol's answer where it differs.
 */

const database = useDatabase();
const service = useService(database);

const DELIVERED = '204 delivered';
const AGAIN = '204 already_delivered';
const NO_INBOX = '503 not_confirmed missing_parent_inbox';
const NO_TEXT = 'Error: native sub-agent turn failed';

const idle = (output?: unknown, more: object = {}) => ({ status: 'idle', output, ...more });
const failed = (output?: unknown, more: object = {}) => ({ status: 'failed', output, ...more });
const running = { status: 'running' };

/** The id and what happens; the steps; what the parent has received in the end, read or not. */
type Row = [what: string, steps: Step[], inbox: object[]];

function behaves(rows: Row[]): void {
  test.each(rows)('%s', async (_, steps, inbox) => {
    const pair = newPair(service);
    await take(pair, steps);
    expect(await inboxOf(pair)).toMatchObject(inbox);
  });
}

/** The whole row of the child in the database, by which it is seen whether it was written. */
async function versionOf({ child }: Pair): Promise<unknown> {
  return await database.sql`select xmin::text, ctid::text from sessions where id = ${child}`;
}

async function parkedOf(
  { service: at, child }: Pair,
  state: 'parked' | 'dead' = 'parked',
): Promise<Record<string, unknown>[]> {
  const answer = await at.request('GET', `/v1/parked?state=${state}&limit=1000`);
  expect(answer.status).toBe(200);
  return answer.body.data.filter((row: { session_id: string }) => row.session_id === child);
}

const isParked =
  (...rows: object[]): Step =>
  async (pair) =>
    expect(await parkedOf(pair)).toMatchObject(rows);
const isDead =
  (...rows: object[]): Step =>
  async (pair) =>
    expect(await parkedOf(pair, 'dead')).toMatchObject(rows);

const times = (count: number, step: Step): Step => {
  return async (pair) => {
    for (let n = 0; n < count; n += 1) await step(pair);
  };
};

describe('a result reaches the inbox of the parent', () => {
  behaves([
    [
      'rebuilt from the snapshot when the entry is missing',
      [isChild(), opens, says(idle('x'), DELIVERED), shows({ work: { status: 'completed' } })],
      [{ agent: 'reviewer', title: 'reviewer', output: 'x', recovered: true }],
    ],
    [
      'of a child without sub_agent_name, under its agent_name',
      [isChild({ agent_name: 'coder' }), opens, says(idle('x'), DELIVERED)],
      [{ agent: 'coder', title: '', text: expect.stringContaining('completed — coder returned') }],
    ],
    [
      'of registered work, under the names it was registered with',
      [isChild(), dispatches({ agent: 'a', title: 't' }), says(idle('x'), DELIVERED)],
      [{ agent: 'a', title: 't', output: 'x', recovered: false }],
    ],
    [
      'by itself once the inbox opens; the next try is 204, and nothing comes twice',
      [isChild(), says(idle('x'), NO_INBOX), opens, says(idle('x'), AGAIN), reads('x'), reads()],
      [{ output: 'x' }],
    ],
    [
      'once: a replay after the item was read is 204 and nothing',
      [isChild(), opens, says(idle('x'), DELIVERED), reads('x'), says(idle('x'), AGAIN), reads()],
      [{ output: 'x' }],
    ],
    [
      'but not of a top-level session',
      [
        isDescribed(() => ({ agent_name: 'main' })),
        opens,
        says(idle('x'), '204 not_a_subagent'),
        isParked(),
      ],
      [],
    ],
    [
      'but not of a session that is its own parent',
      [
        isDescribed(({ child }) => ({ parent_session_id: child, sub_agent_name: 'x' })),
        says(idle('x'), '204 not_a_subagent'),
        async ({ service: at, child }) => {
          expect((await at.request('GET', `${path(child)}/inbox`)).body.data ?? []).toEqual([]);
        },
      ],
      [],
    ],
  ]);

  test('and where it cannot, the answer says why, flat, and when to try again', async () => {
    const pair = newPair(service);
    await isChild()(pair);
    const answer = await status(pair, idle('x'));
    expect(answer.status).toBe(503);
    expect(answer.headers).toMatchObject({
      'content-type': 'application/problem+json',
      'retry-after': '1',
      'delivery-outcome': 'not_confirmed',
    });
    expect(answer.body).toEqual({
      error: 'subagent_delivery_not_confirmed',
      reason: 'missing_parent_inbox',
      detail: expect.stringContaining('the inbox of the parent session is not open'),
      type: '/problems/subagent_delivery_not_confirmed',
      title: expect.any(String),
      status: 503,
      instance: `${path(pair.child)}/events`,
      retry_after_seconds: 1,
    });
  });

  test('with the ids of its work and its item in the answer, and in those of repeats', async () => {
    const pair = newPair(service);
    await take(pair, [isChild(), opens]);
    const first = await status(pair, idle('x'));
    const [item] = await inboxOf(pair);
    const ids = { 'delivery-item-id': item?.['id'], 'delivery-work-id': item?.['work_id'] };
    expect(first.headers).toMatchObject(ids);
    expect((await status(pair, idle('x'))).headers).toMatchObject(ids);
    expect((await status(pair, running)).headers).not.toHaveProperty('delivery-outcome');
  });
});

describe('4.1 ingest and delivery', () => {
  behaves([
    [
      'ING-01 registered child, idle with text',
      [dispatches({ agent: 'a', title: 't' }), says(idle('done'), DELIVERED)],
      [{ type: 'sub_agent', status: 'completed', output: 'done' }],
    ],
    [
      'ING-02 idle without output, none kept',
      [dispatches(), says(idle(), DELIVERED)],
      [{ status: 'completed', output: '', text: expect.stringContaining('produced no output') }],
    ],
    ...[{ a: 1 }, null, 3, true, ['x']].map((output): Row => [
      `ING-03 idle with the output ${JSON.stringify(output)}`,
      [dispatches(), says(idle(output), DELIVERED)],
      [{ status: 'completed', output: '' }],
    ]),
    [
      'ING-04 idle without text: the newest text of the assistant that is not meta',
      [
        dispatches(),
        writes('older'),
        writes('newest'),
        writes('a summary', { is_meta: true }),
        writes('a question', { role: 'user' }),
        writes(' '),
        says(idle(' '), DELIVERED),
      ],
      [{ status: 'completed', output: 'newest' }],
    ],
    [
      'ING-04 idle with text: the text in the report wins',
      [dispatches(), writes('kept'), says(idle('said'), DELIVERED)],
      [{ output: 'said' }],
    ],
    [
      'ING-05 failed with text',
      [dispatches(), says(failed('boom'), DELIVERED)],
      [{ status: 'failed', output: 'boom', text: expect.stringContaining('error: boom') }],
    ],
    ...[undefined, '', null, 5].map((output): Row => [
      `ING-06 failed with the output ${JSON.stringify(output)}`,
      [dispatches(), says(failed(output), DELIVERED), shows({ last_task_error: null })],
      [{ status: 'failed', output: NO_TEXT }],
    ]),
    [
      'ING-07 failed with white space',
      [dispatches(), says(failed('  '), DELIVERED), shows({ last_task_error: null })],
      [{ status: 'failed', output: '  ' }],
    ],
    [
      'ING-08 failed takes no text of the assistant',
      [dispatches(), writes('so far so good'), says(failed(), DELIVERED)],
      [{ status: 'failed', output: NO_TEXT }],
    ],
    ...['running', 'waiting'].map((sign): Row => [
      `ING-09 ${sign}`,
      [
        dispatches(),
        shows({ work: { status: 'launching' } }),
        says({ status: sign }, '204'),
        shows({ status: sign, busy: true, work: { status: 'running' } }),
      ],
      [],
    ]),
    [
      'ING-10 running a hundred times: written once',
      [
        dispatches(),
        says({ ...running, response_id: 'r' }, '204'),
        async (pair) => {
          const version = await versionOf(pair);
          await times(100, says({ ...running, response_id: 'r' }, '204'))(pair);
          expect(await versionOf(pair)).toEqual(version);
        },
      ],
      [],
    ],
    [
      'ING-11 waiting with background tasks is an ended turn',
      [
        dispatches(),
        says({ status: 'waiting', background_task_count: 2 }, DELIVERED),
        shows({ status: 'idle', busy: false, background_task_count: 2 }),
      ],
      [{ status: 'completed', output: '' }],
    ],
    ...[0, null, undefined, 1.5, -1].map((count): Row => [
      `ING-12 waiting with the count ${JSON.stringify(count)}`,
      [
        dispatches(),
        says({ status: 'waiting', background_task_count: count }, '204'),
        shows({ status: 'waiting', busy: true, background_task_count: 0 }),
      ],
      [],
    ]),
    [
      'ING-13 idle with background tasks keeps their count as a badge',
      [
        dispatches(),
        says(idle('x', { background_task_count: 3 }), DELIVERED),
        shows({ status: 'idle', background_task_count: 3 }),
        says(running, '204'),
        shows({ background_task_count: 3 }),
      ],
      [{ status: 'completed', output: 'x' }],
    ],
    [
      'ING-14 what the server adds, as null',
      [
        dispatches(),
        async ({ service: at, child }) => {
          const answer = await at.request('POST', `${path(child)}/events`, {
            type: 'external_session_status',
            data: { status: 'idle', output: 'x', unknown: null },
            model_override: null,
            tools: null,
            created_by: null,
          });
          expect(inShort(answer)).toBe(DELIVERED);
        },
      ],
      [{ status: 'completed', output: 'x' }],
    ],
    [
      'ING-15 a top-level session',
      [isDescribed(() => ({})), says(idle('x'), '204 not_a_subagent'), shows({ status: 'idle' })],
      [],
    ],
    [
      'ING-16 a session that is its own parent',
      [
        isDescribed(({ child }) => ({ parent_session_id: child })),
        says(idle('x'), '204 not_a_subagent'),
      ],
      [],
    ],
    [
      'ING-17 a child of which nobody has said anything waits, and is not lost',
      [
        says(idle('x'), '503 not_confirmed unknown_session'),
        isParked({ reason: 'unknown_session', output_preview: 'x' }),
      ],
      [],
    ],
  ]);
});

describe('4.2 registration and rebuilding', () => {
  behaves([
    [
      'REG-01 a child with sub_agent_name',
      [isChild({ sub_agent_name: 'reviewer', agent_name: 'x' }), opens, says(idle('x'), DELIVERED)],
      [
        {
          agent: 'reviewer',
          title: 'reviewer',
          text: expect.stringContaining('completed — reviewer:reviewer returned: x'),
        },
      ],
    ],
    [
      'REG-02 with agent_name alone',
      [isChild({ sub_agent_name: null, agent_name: 'coder' }), opens, says(idle('x'), DELIVERED)],
      [{ agent: 'coder', title: '', tool_name: 'coder' }],
    ],
    [
      'REG-03 with neither',
      [isChild({}), opens, says(idle('x'), DELIVERED)],
      [{ agent: 'sub-agent', title: '', recovered: true }],
    ],
    [
      'REG-04 with an entry: its names are kept, whatever the snapshot says by now',
      [dispatches({ agent: 'a', title: 't' }), isChild(), says(idle('x'), DELIVERED)],
      [{ agent: 'a', title: 't', recovered: false }],
    ],
    [
      'REG-05 known by name, its parent not yet: 503, then delivered once',
      [
        opens,
        isDescribed(() => ({ sub_agent_name: 'reviewer' })),
        says(idle('x'), '503 not_confirmed missing_work_entry'),
        isChild({}),
        says(idle('x'), AGAIN),
      ],
      [{ agent: 'reviewer', title: 'reviewer', output: 'x' }],
    ],
    [
      'REG-06 not known at all: 503, then delivered once',
      [
        opens,
        says(idle('x'), '503 not_confirmed unknown_session'),
        isChild(),
        says(idle('x'), AGAIN),
      ],
      [{ output: 'x' }],
    ],
    [
      'REG-07 the parent has no inbox: 503, and kept',
      [
        isChild(),
        says(idle('x'), NO_INBOX),
        isParked({ status: 'idle', reason: 'missing_parent_inbox', tries: 1, output_preview: 'x' }),
      ],
      [],
    ],
    [
      'REG-08 … then the parent opens it, and the forwarder tries again',
      [isChild(), says(idle('x'), NO_INBOX), opens, says(idle('x'), AGAIN), isParked()],
      [{ output: 'x' }],
    ],
    [
      'REG-08 … also where the parent had closed it',
      [isChild(), opens, closes, says(idle('x'), NO_INBOX), opens, says(idle('x'), AGAIN)],
      [{ output: 'x' }],
    ],
    [
      'REG-09 a parked completion is not replaced by a failure',
      [
        isChild(),
        says(idle('a'), NO_INBOX),
        says(failed('hook status idle rejected'), NO_INBOX),
        shows({ status: 'idle', last_task_error: null }),
        opens,
        says(failed('hook status idle rejected'), AGAIN),
      ],
      [{ status: 'completed', output: 'a' }],
    ],
    [
      'REG-09 a parked failure is replaced by a completion',
      [isChild(), says(failed('a'), NO_INBOX), says(idle('b'), NO_INBOX), opens],
      [{ status: 'completed', output: 'b' }],
    ],
    [
      'REG-09 of two completions of a turn the later one is delivered',
      [isChild(), says(idle('a'), NO_INBOX), says(idle('b'), NO_INBOX), opens],
      [{ output: 'b' }],
    ],
    [
      'REG-10 running makes nothing known',
      [
        says(running, '204'),
        async ({ service: at, child }) => {
          expect((await at.request('GET', path(child))).status).toBe(404);
        },
      ],
      [],
    ],
    [
      'REG-11 a parent that is described again keeps its items',
      [
        isChild(),
        opens,
        says(idle('x'), DELIVERED),
        async ({ service: at, parent }) => {
          await at.request('PUT', path(parent), { agent_name: 'main', inbox: 'open' });
        },
        reads('x'),
      ],
      [{ output: 'x' }],
    ],
  ]);
});

const distinctWork: Step = async (pair) => {
  const ids = (await inboxOf(pair)).map((item) => item['work_id']);
  expect(new Set(ids).size).toBe(ids.length);
};

describe('4.3 dispatching to the same child again', () => {
  behaves([
    [
      'RDS-01 after the first result was read',
      [
        dispatches(),
        says(idle('one'), DELIVERED),
        reads('one'),
        dispatches(),
        says(idle('two'), DELIVERED),
        reads('two'),
        distinctWork,
      ],
      [{ output: 'one' }, { output: 'two', follows: null, revision: 1 }],
    ],
    [
      'RDS-02 before the first result is read',
      [
        dispatches(),
        says(idle('one'), DELIVERED),
        dispatches(),
        says(idle('two'), DELIVERED),
        reads('one', 'two'),
        distinctWork,
      ],
      [{ output: 'one' }, { output: 'two' }],
    ],
    [
      'RDS-03 the first result is read while the second turn runs',
      [
        dispatches(),
        says(idle('one'), DELIVERED),
        dispatches(),
        says(running, '204'),
        reads('one'),
        shows({ work: { status: 'running' } }),
        says(idle('two'), DELIVERED),
        reads('two'),
        distinctWork,
      ],
      [{ output: 'one' }, { output: 'two' }],
    ],
    [
      'RDS-04 a late duplicate of the first turn, known by response_id',
      [
        dispatches(),
        says(idle('one', { response_id: 'r1' }), DELIVERED),
        reads('one'),
        dispatches(),
        says(idle('one', { response_id: 'r1' }), AGAIN),
        shows({ work: { status: 'launching' } }),
        says(idle('two', { response_id: 'r2' }), DELIVERED),
        distinctWork,
      ],
      [{ output: 'one' }, { output: 'two', follows: null }],
    ],
    [
      'RDS-04 … known by work_id',
      [
        dispatches(),
        says(idle('one'), DELIVERED),
        async (pair) => {
          const [item] = await inboxOf(pair);
          await take(pair, [
            dispatches(),
            says(idle('one', { work_id: item?.['work_id'] }), AGAIN),
            says(idle('one'), DELIVERED),
          ]);
        },
        distinctWork,
      ],
      [{ output: 'one' }, { output: 'one' }],
    ],
    [
      'RDS-04 … without ids and before a sign of life: the next different result follows it',
      [
        dispatches(),
        says(idle('one'), DELIVERED),
        dispatches(),
        says(idle('one'), DELIVERED),
        says(idle('one'), AGAIN),
        says(idle('two'), DELIVERED),
        says(idle('three'), AGAIN),
        async (pair) => {
          const [, repeat, result] = await inboxOf(pair);
          expect(result).toMatchObject({ follows: repeat?.['id'], work_id: repeat?.['work_id'] });
        },
      ],
      [{ output: 'one' }, { output: 'one', revision: 1 }, { output: 'two', revision: 2 }],
    ],
    [
      'RDS-04 … after a sign of life an equal text is the new result',
      [
        dispatches(),
        says(idle('one'), DELIVERED),
        dispatches(),
        says(running, '204'),
        says(idle('one'), DELIVERED),
        says(idle('two'), AGAIN),
        distinctWork,
      ],
      [{ output: 'one' }, { output: 'one' }],
    ],
    [
      'RDS-05 a dispatch whose launch failed is withdrawn: no entry, no tombstone',
      [
        dispatches({ agent: 'a', title: 't' }),
        async (pair) => {
          const { body } = await service.request('GET', path(pair.child));
          const work = `/v1/work/${body.work.work_id}`;
          expect((await service.request('DELETE', work)).status).toBe(204);
          expect((await service.request('GET', work)).status).toBe(404);
        },
        shows({ work: null }),
        says(idle('x'), DELIVERED),
      ],
      [{ output: 'x', recovered: true }],
    ],
    ...['launching', 'running', 'waiting'].map((state): Row => [
      `RDS-06 while the child is ${state}`,
      [
        dispatches(),
        ...(state === 'launching' ? [] : [says({ status: state }, '204')]),
        dispatches({}, { status: 409, body: { error: 'conflict', reason: 'child_busy' } }),
        says(idle('x'), DELIVERED),
        distinctWork,
      ],
      [{ output: 'x' }],
    ]),
    [
      'RDS-07 the user goes on with a child that was read: a follow-up',
      [
        dispatches(),
        says(idle('first'), DELIVERED),
        reads('first'),
        says(running, '204'),
        says(idle('later'), DELIVERED),
        reads('later'),
        async (pair) => {
          const [first, later] = await inboxOf(pair);
          expect(later).toMatchObject({ follows: first?.['id'], work_id: first?.['work_id'] });
        },
      ],
      [
        { output: 'first', revision: 1 },
        { output: 'later', revision: 2 },
      ],
    ],
    [
      "RDS-08 a dispatch without names takes the child's own",
      [isChild({ agent_name: 'coder' }), dispatches(), says(idle('x'), DELIVERED)],
      [{ agent: 'coder', title: '', recovered: false }],
    ],
  ]);
});

describe('4.4 duplicate, late, out of order', () => {
  behaves([
    [
      'DUP-01 the same idle twice',
      [dispatches(), says(idle('x'), DELIVERED), says(idle('x'), AGAIN)],
      [{ output: 'x' }],
    ],
    [
      'DUP-02 the same idle after it was read',
      [dispatches(), says(idle('x'), DELIVERED), reads('x'), says(idle('x'), AGAIN), reads()],
      [{ output: 'x' }],
    ],
    [
      'DUP-03 idle, then failed',
      [
        dispatches(),
        says(idle('a'), DELIVERED),
        says(failed('b'), AGAIN),
        shows({ status: 'idle', last_task_error: null, work: { status: 'completed' } }),
      ],
      [{ status: 'completed', output: 'a' }],
    ],
    [
      'DUP-04 failed, then a trailing idle; running clears it',
      [
        dispatches(),
        says(failed('b'), DELIVERED),
        says(idle(), AGAIN),
        shows({ status: 'failed', last_task_error: { code: 'turn_error', message: 'b' } }),
        says(running, '204'),
        shows({ status: 'running', last_task_error: null }),
      ],
      [{ status: 'failed', output: 'b' }],
    ],
    [
      'DUP-05 cancelled, then idle',
      [
        dispatches(),
        says(idle('partly', { outcome: 'cancelled' }), DELIVERED),
        says(idle('x'), AGAIN),
      ],
      [{ status: 'cancelled', output: 'partly' }],
    ],
    [
      'DUP-05 stopped, then idle',
      [
        dispatches(),
        async ({ service: at, child }) => {
          const stop = { type: 'stop_session', data: {} };
          expect((await at.request('POST', `${path(child)}/events`, stop)).status).toBe(202);
        },
        says(idle('x'), AGAIN),
      ],
      [{ status: 'cancelled', output: '[System: sub-agent stopped]' }],
    ],
    [
      'DUP-06 idle, running, idle in one dispatch: a follow-up',
      [
        dispatches(),
        says(idle('first'), DELIVERED),
        says(running, '204'),
        says(idle('final'), DELIVERED),
        says(idle('final'), AGAIN),
      ],
      [
        { output: 'first', follows: null, revision: 1 },
        { output: 'final', follows: expect.any(String), revision: 2 },
      ],
    ],
    [
      'DUP-06 … none if it equals what was delivered, or is a failure after a completion',
      [
        dispatches(),
        says(idle('first'), DELIVERED),
        says(running, '204'),
        says(idle('first'), AGAIN),
        says(running, '204'),
        says(failed('boom'), AGAIN),
      ],
      [{ output: 'first' }],
    ],
    [
      'DUP-06 … but one all the same if it names another response_id',
      [
        dispatches(),
        says(idle('first', { response_id: 'r1' }), DELIVERED),
        says({ ...running, response_id: 'r2' }, '204'),
        says(failed('boom', { response_id: 'r2' }), DELIVERED),
        says({ ...running, response_id: 'r3' }, '204'),
        says(failed('boom', { response_id: 'r3' }), DELIVERED),
      ],
      [{ output: 'first' }, { output: 'boom' }, { output: 'boom', revision: 3 }],
    ],
    [
      'DUP-07 idle before running',
      [
        dispatches(),
        says(idle('x'), DELIVERED),
        says(running, '204'),
        shows({ status: 'running', busy: true, work: { status: 'completed' } }),
      ],
      [{ output: 'x' }],
    ],
    [
      'DUP-08 two at once, without an entry',
      [
        isChild(),
        opens,
        async (pair) => {
          const answers = await Promise.all([status(pair, idle('x')), status(pair, idle('x'))]);
          expect(answers.map(inShort).toSorted()).toEqual([AGAIN, DELIVERED]);
        },
      ],
      [{ output: 'x' }],
    ],
    [
      'DUP-09 three children at once',
      [
        async (pair) => {
          const reports = ['a', 'b', 'c'].map((output) =>
            take({ ...pair, child: freshId('child') }, [
              dispatches(),
              says(idle(output), DELIVERED),
            ]),
          );
          await Promise.all(reports);
        },
      ],
      [{}, {}, {}],
    ],
    [
      'DUP-11 another response_id in the same dispatch',
      [
        dispatches(),
        says(idle('x', { response_id: 'r1' }), DELIVERED),
        says(idle('y', { response_id: 'r2' }), AGAIN),
      ],
      [{ output: 'x', response_id: 'r1' }],
    ],
    [
      'DUP-12 the answer is lost, the report is not',
      [
        dispatches(),
        async (pair) => {
          const body = JSON.stringify({ type: 'external_session_status', data: idle('x') });
          const connection = await openRaw(service.url);
          connection.send(
            `POST ${path(pair.child)}/events HTTP/1.1\r\nHost: localhost\r\n` +
              `Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
          );
          connection.destroy();
          const answer = await status(pair, idle('x'));
          expect([DELIVERED, AGAIN]).toContain(inShort(answer));
        },
        says(idle('x'), AGAIN),
      ],
      [{ output: 'x' }],
    ],
  ]);

  test('DUP-10 a replay to a service that was restarted', async () => {
    const before = await startService(database);
    const pair = newPair(before);
    await take(pair, [isChild(), opens, says(idle('x'), DELIVERED), reads('x')]);
    await before.stop();
    const after = await startService(database);
    await take({ ...pair, service: after }, [says(idle('x'), AGAIN), reads()]);
    expect(await inboxOf({ ...pair, service: after })).toHaveLength(1);
    await after.stop();
  });
});

describe('late text', () => {
  behaves([
    [
      'of a turn that was delivered blank follows it, once',
      [
        dispatches(),
        says(idle('', { response_id: 'r' }), DELIVERED),
        writes('late'),
        writes('later'),
        says(idle('', { response_id: 'r' }), AGAIN),
      ],
      [
        { output: '', revision: 1 },
        { output: 'late', revision: 2, follows: expect.any(String) },
      ],
    ],
    [
      'with another known response_id belongs to another turn',
      [
        dispatches(),
        says(idle('', { response_id: 'r' }), DELIVERED),
        writes('late', {}, { response_id: 's' }),
      ],
      [{ output: '' }],
    ],
    [
      'of a turn that was delivered with text adds nothing',
      [dispatches(), says(idle('x'), DELIVERED), writes('late')],
      [{ output: 'x' }],
    ],
    [
      'of an earlier turn is none of the next',
      [
        dispatches(),
        writes('one'),
        says(idle(), DELIVERED),
        dispatches(),
        says(running, '204'),
        says(idle(), DELIVERED),
      ],
      [{ output: 'one' }, { output: '' }],
    ],
    [
      'is not delivered again where the child runs and says nothing',
      [
        dispatches(),
        writes('one'),
        says(idle(), DELIVERED),
        says(running, '204'),
        says(idle(), AGAIN),
        says(running, '204'),
        writes('two'),
        says(idle(), DELIVERED),
      ],
      [{ output: 'one' }, { output: 'two', revision: 2 }],
    ],
    [
      'of a session that nobody knows yet is kept for its report',
      [writes('early'), opens, isChild(), says(idle(), DELIVERED)],
      [{ output: 'early' }],
    ],
  ]);
});

function listed(row: object): Step {
  return async ({ service: at, parent, child }) => {
    const { body } = await at.request('GET', `${path(parent)}/child_sessions`);
    expect(body.data).toMatchObject([{ id: child, parent_session_id: parent, ...row }]);
  };
}

const parentIsKnown: Step = async ({ service: at, parent }) => {
  expect((await at.request('PUT', path(parent), { title: 'main' })).status).toBeLessThan(300);
};

describe('4.8 deleting and listing', () => {
  const toldGone = says(idle('late'), '204 parent_gone');

  behaves([
    [
      'DEL-01 the child is deleted before it ends',
      [
        dispatches(),
        deletes('child'),
        toldGone,
        isDead({ reason: 'parent_gone', output_preview: 'late' }),
        isParked(),
      ],
      [],
    ],
    [
      'DEL-02 the parent is deleted: its inbox, its work, its children are gone',
      [
        dispatches(),
        deletes('parent'),
        async ({ service: at, parent, child }) => {
          for (const gone of [path(parent), path(child), `${path(parent)}/inbox`]) {
            expect((await at.request('GET', gone)).status).toBe(404);
          }
        },
      ],
      [],
    ],
    [
      'DEL-03 the child reports after its parent was deleted',
      [
        dispatches(),
        deletes('parent'),
        toldGone,
        toldGone,
        isDead({ status: 'idle', output_preview: 'late' }),
      ],
      [],
    ],
    [
      'DEL-04 a child made again under the same id delivers again',
      [
        isChild(),
        opens,
        says(idle('x'), DELIVERED),
        deletes('child'),
        isChild(),
        says(idle('x'), DELIVERED),
      ],
      [{ output: 'x' }, { output: 'x' }],
    ],
    [
      'DEL-05 deleting takes the descendants',
      [
        isChild(),
        async (pair) => {
          const grandchild = { ...pair, parent: pair.child, child: freshId('child') };
          await isChild()(grandchild);
          await deletes('parent')(pair);
          await toldGone(grandchild);
        },
      ],
      [],
    ],
    [
      'LST-01 children are listed newest first, direct ones only',
      [
        async (pair) => {
          const [older, newer] = [freshId('child'), freshId('child')];
          await parentIsKnown(pair);
          await isChild()({ ...pair, child: older });
          await isChild()({ ...pair, child: newer });
          await isChild()({ ...pair, parent: newer, child: freshId('child') });
          const { body } = await service.request('GET', `${path(pair.parent)}/child_sessions`);
          expect(body).toMatchObject({
            object: 'list',
            data: [{ id: newer }, { id: older }],
            has_more: false,
          });
          const unknown = `${path(freshId('nobody'))}/child_sessions`;
          expect((await service.request('GET', unknown)).status).toBe(404);
        },
      ],
      [],
    ],
    [
      'LST-02 a row',
      [
        parentIsKnown,
        isChild({ sub_agent_name: 'reviewer', title: 'review:first', agent_id: 'agent_1' }),
        opens,
        says(failed('boom'), DELIVERED),
        listed({
          object: 'child_session',
          title: 'review:first',
          tool: 'review',
          session_name: 'first',
          busy: false,
          current_task_status: 'failed',
          last_task_error: { code: 'turn_error', message: 'boom' },
          agent_id: 'agent_1',
        }),
      ],
      [{ output: 'boom' }],
    ],
    [
      'LST-03 states',
      [
        parentIsKnown,
        dispatches(),
        listed({ busy: false, current_task_status: 'in_progress' }),
        says(running, '204'),
        listed({ busy: true, current_task_status: 'in_progress' }),
        says({ status: 'waiting' }, '204'),
        listed({ busy: true, current_task_status: 'in_progress' }),
        says(idle('x'), DELIVERED),
        listed({ busy: false, current_task_status: 'completed' }),
      ],
      [{ output: 'x' }],
    ],
    ...[
      ['tool:name', 'tool', 'name'],
      ['ui:agent:label:more', 'agent', 'label:more'],
      ['plain', 'plain', null],
    ].map(([title, tool, name]): Row => [
      `LST-04 the title ${title}`,
      [parentIsKnown, isChild({ title }), listed({ title, tool, session_name: name })],
      [],
    ]),
  ]);
});

const event = (data: unknown) => ({ type: 'external_session_status', data });

describe('4.9 validation', () => {
  const events = '/v1/sessions/conv_c/events';

  test.each([
    ['VAL-01 status Idle', event({ status: 'Idle' }), 'data.status'],
    ['VAL-01 status done', event({ status: 'done' }), 'data.status'],
    ['VAL-01 status " idle"', event({ status: ' idle' }), 'data.status'],
    ['VAL-01 status null', event({ status: null }), 'data.status'],
    ['VAL-01 status a list', event({ status: ['idle'] }), 'data.status'],
    ['VAL-01 data {}', event({}), 'data.status'],
    ['VAL-01 no data', { type: 'external_session_status' }, 'data.status'],
    ['VAL-02 response_id a number', event(idle('x', { response_id: 5 })), 'data.response_id'],
    ['VAL-02 response_id an object', event(idle('x', { response_id: {} })), 'data.response_id'],
    ['VAL-02 … of running', event({ status: 'running', response_id: true }), 'data.response_id'],
    ['VAL-02 a long one', event(idle('x', { response_id: 'r'.repeat(513) })), 'data.response_id'],
    ['VAL-03 no JSON', '{"type":', 'The body is not JSON.'],
    ['VAL-03 no type', { data: { status: 'idle' } }, 'type'],
    ['VAL-03 a type that is no string', { type: 5, data: {} }, 'type'],
    ['VAL-03 data null', event(null), 'data'],
    ['VAL-03 data a list', event([]), 'data'],
    ['VAL-03 data a string', event('idle'), 'data'],
    ['VAL-04 an unknown type', { type: 'message', data: {} }, 'Unknown event type: message'],
  ])('%s is 400', async (_, body, names) => {
    const answer = await service.request('POST', events, body);
    expect(answer).toMatchObject({ status: 400, body: { error: 'invalid_input' } });
    expect(answer.body.detail).toContain(names);
  });

  test('VAL-04 other external types are taken and counted', async () => {
    const answer = await service.request('POST', events, { type: 'external_news', data: {} });
    expect(answer).toMatchObject({ status: 202, body: { queued: false } });
  });

  behaves([
    ...[true, -1, '3', 1.5, [], null].map((count): Row => [
      `VAL-05 background_task_count ${JSON.stringify(count)} is ignored`,
      [
        dispatches(),
        says({ status: 'running', background_task_count: 2 }, '204'),
        says({ status: 'running', background_task_count: count }, '204'),
        shows({ background_task_count: 2 }),
      ],
      [],
    ]),
    ...[' ', 5, null, {}].map((blockedOn): Row => [
      `VAL-05 blocked_on ${JSON.stringify(blockedOn)} is ignored`,
      [
        dispatches(),
        says({ status: 'waiting', blocked_on: 'approval' }, '204'),
        says({ status: 'waiting', blocked_on: blockedOn }, '204'),
        shows({ blocked_on: 'approval' }),
      ],
      [],
    ]),
    [
      'VAL-05 an outcome that is none is ignored',
      [dispatches(), says(idle('x', { outcome: 'done', reauth_required: 'yes' }), DELIVERED)],
      [{ status: 'completed' }],
    ],
    [
      'VAL-07 the badge: above 0 sets, 0 clears, absent keeps, failed clears',
      [
        dispatches(),
        says({ status: 'running', background_task_count: 2 }, '204'),
        says(running, '204'),
        shows({ background_task_count: 2 }),
        says({ status: 'running', background_task_count: 0 }, '204'),
        shows({ background_task_count: 0 }),
        says({ status: 'running', background_task_count: 4 }, '204'),
        says(failed('x', { background_task_count: 4 }), DELIVERED),
        shows({ background_task_count: 0 }),
      ],
      [{ status: 'failed' }],
    ],
    [
      'VAL-08 what failed is shown until running; reauth_required only if true',
      [
        dispatches(),
        says(failed('log in', { reauth_required: true }), DELIVERED),
        shows({ last_task_error: { code: 'reauth_required', message: 'log in' } }),
        says(running, '204'),
        shows({ last_task_error: null }),
        says(failed('x', { reauth_required: 'true' }), DELIVERED),
        shows({ last_task_error: { code: 'turn_error', message: 'x' } }),
      ],
      [{ output: 'log in' }, { output: 'x' }],
    ],
  ]);
});

describe('every body that is on the wire today', () => {
  const id = 'codex_turn_1';
  test.each([
    ['claude stop', { status: 'idle', background_task_count: 2, response_id: id }],
    ['claude stop, bare', { status: 'idle' }],
    ['claude stop failure', { status: 'failed', response_id: id }],
    ['claude giving up', { status: 'failed', output: 'hook status idle rejected' }],
    ['older claude', { status: 'waiting', background_task_count: 1 }],
    ['codex running', { status: 'running', response_id: id }],
    ['codex idle', { status: 'idle', response_id: id }],
    ['codex failed', { status: 'failed', response_id: id, output: 'x', reauth_required: true }],
    ['antigravity', { status: 'failed' }],
    ['opencode', { status: 'idle', response_id: 'msg_1' }],
    ['kimi', { status: 'idle', output: 'the final text' }],
    ['kimi without text', { status: 'idle', output: '' }],
    ['hermes', { status: 'running', response_id: 'hermes_turn_1' }],
    ['goose', { status: 'idle', response_id: 'goose:turn:1' }],
    ['the runner', { status: 'waiting', blocked_on: 'approval' }],
    ['a boot that failed', { status: 'failed', output: 'no such binary' }],
  ])('%s', async (_, data) => {
    const pair = newPair(service);
    await dispatches()(pair);
    const answer = await service.request('POST', `${path(pair.child)}/events`, {
      type: 'external_session_status',
      data,
      model_override: null,
      tools: null,
      created_by: null,
    });
    const isSign =
      data.status === 'running' ||
      (data.status === 'waiting' && !('background_task_count' in data));
    expect(inShort(answer)).toBe(isSign ? '204' : DELIVERED);
    expect(await inboxOf(pair)).toHaveLength(isSign ? 0 : 1);
  });
});

describe('a report that cannot be delivered', () => {
  test('is asked for less and less often, and from the twelfth try on it is 202', async () => {
    const pair = newPair(service);
    await isChild()(pair);
    const waits: unknown[] = [];
    for (let n = 1; n < 12; n += 1) {
      const answer = await status(pair, idle('x'));
      expect(inShort(answer)).toBe(NO_INBOX);
      expect(answer.body.retry_after_seconds).toBe(Number(answer.headers['retry-after']));
      waits.push(answer.body.retry_after_seconds);
    }
    expect(waits).toEqual([1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    for (const _ of [12, 13]) {
      const answer = await status(pair, idle('x'));
      expect(answer.body).toEqual({ status: 'parked', reason: 'missing_parent_inbox' });
      expect(inShort(answer)).toBe('202 parked missing_parent_inbox');
    }
    // For a parent of which this is known nobody else has to try so often.
    const sibling = { ...pair, child: freshId('child') };
    await take(sibling, [
      isChild(),
      says(idle('y'), '202 parked missing_parent_inbox'),
      isParked({ tries: 1 }),
    ]);
    // What gives up reports a failure, which is not the result.
    await says(failed('hook status idle rejected'), '202 parked missing_parent_inbox')(pair);
    await opens(pair);
    expect((await inboxOf(pair)).map((item) => [item['status'], item['output']])).toEqual(
      expect.arrayContaining([
        ['completed', 'x'],
        ['completed', 'y'],
      ]),
    );
    expect(await inboxOf(pair)).toHaveLength(2);
    await take(pair, [says(idle('x'), AGAIN), isParked()]);
  });

  test('is listed with why, since when and how often', async () => {
    const pair = newPair(service);
    await take(pair, [
      isChild(),
      says(idle(`a\n  b ${'c'.repeat(200)}`), NO_INBOX),
      says(idle(`a\n  b ${'c'.repeat(200)}`), NO_INBOX),
    ]);
    const [row] = await parkedOf(pair);
    expect(row).toMatchObject({
      session_id: pair.child,
      parent_session_id: pair.parent,
      status: 'idle',
      reason: 'missing_parent_inbox',
      tries: 2,
      output_preview: `a b ${'c'.repeat(146)}`,
    });
    expect(Date.parse(String(row?.['last_at']))).toBeGreaterThanOrEqual(
      Date.parse(String(row?.['first_at'])),
    );
  });

  test('of several turns is delivered in their order', async () => {
    const pair = newPair(service);
    await take(pair, [
      isChild(),
      says(idle('one'), NO_INBOX),
      says(running, '204'),
      says(idle('two'), NO_INBOX),
      opens,
      reads('one', 'two'),
    ]);
  });

  test('of one turn is one, whatever ids the agent gives, and the later one', async () => {
    const pair = newPair(service);
    const [first, second] = [
      failed('a', { response_id: 'r1' }),
      idle('b', { response_id: 'r2' }),
    ] as const;
    await take(pair, [
      isChild(),
      dispatches(),
      closes,
      says(first, NO_INBOX),
      says(second, NO_INBOX),
      isParked({ output_preview: 'b', tries: 2 }),
      opens,
      says(second, AGAIN),
      says(first, AGAIN),
      reads('b'),
    ]);
  });

  describe('of a session of which no parent is known', () => {
    const kept = says(idle('kept'), '503 not_confirmed unknown_session');
    const isTopLevel = isDescribed(() => ({ title: 'x' }));
    const stays = isParked({ reason: 'missing_work_entry', output_preview: 'kept' });

    test.each<[string, Step[]]>([
      ['is described with one', [isChild()]],
      ['is described without one at first', [isTopLevel, stays, isChild()]],
      ['… again and again', [isTopLevel, isTopLevel, stays, isTopLevel, stays, isChild()]],
      ['is given work by it', [dispatches(), says(running, '204')]],
      ['… having been described without one', [isTopLevel, stays, dispatches()]],
    ])('is delivered where it %s', async (_, steps) => {
      const pair = newPair(service);
      await take(pair, [opens, kept, ...steps, isParked(), reads('kept')]);
    });

    test('is no more than listed where it never has one', async () => {
      const pair = newPair(service);
      await take(pair, [kept, isTopLevel, says(idle('kept'), '204 not_a_subagent'), stays]);
    });
  });

  test('becomes a dead letter after its time, and is not dropped before its own', async () => {
    const clock = createTestClock();
    const short = await startService(database, {
      clock,
      policy: { parkedRetentionMs: 60_000, deadLetterRetentionMs: 3_600_000 },
    });
    const pair = newPair(short);
    await take(pair, [isChild(), says(idle('x'), NO_INBOX)]);
    const { prune } = await import('../../src/operations/prune.ts');
    await prune(short.resources, null);
    await isParked({ output_preview: 'x' })(pair);
    clock.advance(61_000);
    await prune(short.resources, null);
    await take(pair, [isParked(), isDead({ output_preview: 'x', reason: 'missing_parent_inbox' })]);
    await short.stop();
  });
});

describe('what only upstream knows', () => {
  // Replicas without an upstream of their own would deliver what waits for it.
  const ownDatabase = useDatabase();
  const REFUSED = { error: 'no such id is possible' };
  /** Answers by path; what is not in it is 404, and while it is `down` everything is 503. */
  const known = new Map<string, object>();
  const upstream = { isDown: false, underWay: 0, mostAtOnce: 0 };
  const server = createServer((request: IncomingMessage, response: ServerResponse) => {
    upstream.underWay += 1;
    upstream.mostAtOnce = Math.max(upstream.mostAtOnce, upstream.underWay);
    response.once('close', () => (upstream.underWay -= 1));
    const answer = known.get(decodeURIComponent(request.url ?? ''));
    const code = upstream.isDown ? 503 : answer === undefined ? 404 : 200;
    response.writeHead(answer === REFUSED ? 422 : code);
    response.end(JSON.stringify(answer ?? {}));
  });
  let asking: TestService;
  let pair: Pair;

  beforeAll(async () => {
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const { port } = server.address() as AddressInfo;
    const env = { SNAPSHOT_URL: `http://127.0.0.1:${port}`, SNAPSHOT_TIMEOUT_MS: '1000' };
    asking = await startService(ownDatabase, { env });
  });
  afterAll(async () => {
    await asking.stop();
    server.close();
  });
  beforeEach(() => {
    upstream.isDown = false;
    pair = newPair(asking);
  });

  const isKnownUpstream = (): void => {
    known.set(path(pair.child), { parent_session_id: pair.parent, agent_name: 'coder' });
  };
  const message = (id: string, text: string): void => {
    known.set(`${path(pair.child)}/items?type=message&order=desc&limit=20`, {
      data: [{ id, type: 'message', role: 'assistant', content: [{ type: 'output_text', text }] }],
    });
  };
  const arrives = async (...outputs: string[]): Promise<void> => {
    await expect
      .poll(async () => (await inboxOf(pair)).map((item) => item['output']), { timeout: 15_000 })
      .toEqual(outputs);
  };

  test('is delivered by itself when upstream answers again', async () => {
    await opens(pair);
    isKnownUpstream();
    upstream.isDown = true;
    await take(pair, [
      says(idle('x'), '503 not_confirmed snapshot_unavailable'),
      isParked({ reason: 'snapshot_unavailable' }),
    ]);
    upstream.isDown = false;
    await arrives('x');
    await take(pair, [says(idle('x'), AGAIN), isParked()]);
  });

  test('… also behind those for which it never will', async () => {
    // More than are tried in one pass.
    for (let n = 0; n < 60; n += 1) {
      const { child } = newPair(asking);
      known.set(path(child), REFUSED);
      expect(inShort(await reportIdle(asking, child))).toContain('503');
    }
    await opens(pair);
    isKnownUpstream();
    upstream.isDown = true;
    await says(idle('x'), '503 not_confirmed snapshot_unavailable')(pair);
    upstream.isDown = false;
    await arrives('x');
  });

  test('… with the text that upstream has, which was not to be had before', async () => {
    await take(pair, [isChild(), opens]);
    message('m1', 'of the turn');
    upstream.isDown = true;
    await says(idle(), '503 not_confirmed output_unavailable')(pair);
    await says(idle(), '503 not_confirmed output_unavailable')(pair);
    upstream.isDown = false;
    await arrives('of the turn');
    await take(pair, [says(idle(), AGAIN), isParked()]);
  });

  test('text in the report needs no upstream', async () => {
    await take(pair, [isChild(), opens]);
    upstream.isDown = true;
    await says(idle('x'), DELIVERED)(pair);
    expect(await inboxOf(pair)).toMatchObject([{ output: 'x' }]);
  });

  test('… nor does it wait behind a try of its turn that needed it', async () => {
    await take(pair, [isChild(), opens]);
    upstream.isDown = true;
    await take(pair, [
      says(idle(), '503 not_confirmed output_unavailable'),
      says(idle('x'), DELIVERED),
      says(idle('x'), AGAIN),
      isParked(),
    ]);
    expect(await inboxOf(pair)).toMatchObject([{ output: 'x', revision: 1 }]);
  });

  test('the message that was delivered before is not the next result', async () => {
    await dispatches()(pair);
    message('m1', 'one');
    await take(pair, [says(idle(), DELIVERED), dispatches(), says(running, '204')]);
    await says(idle(), DELIVERED)(pair);
    message('m2', 'two');
    await take(pair, [dispatches(), says(running, '204'), says(idle(), DELIVERED)]);
    expect((await inboxOf(pair)).map((item) => item['output'])).toEqual(['one', '', 'two']);
  });

  test('the text received here goes before that of upstream', async () => {
    await dispatches()(pair);
    message('m1', 'there');
    await take(pair, [writes('here'), says(idle(), DELIVERED)]);
    expect(await inboxOf(pair)).toMatchObject([{ output: 'here' }]);
  });

  test('a session that it does not have is 404, parked all the same, delivered once known', async () => {
    await take(pair, [
      opens,
      says(idle('x'), '404 not_found'),
      isParked({ reason: 'not_found', output_preview: 'x' }),
      isChild(),
      says(idle('x'), AGAIN),
    ]);
    expect(await inboxOf(pair)).toMatchObject([{ output: 'x' }]);
  });

  test('a hundred reports at once of one session ask one at a time and deliver once', async () => {
    await opens(pair);
    isKnownUpstream();
    upstream.mostAtOnce = 0;
    const answers = await Promise.all(Array.from({ length: 100 }, () => status(pair, idle('x'))));
    const shorts = answers.map(inShort);
    expect(shorts.filter((short) => short === DELIVERED)).toHaveLength(1);
    expect(shorts.filter((short) => short === AGAIN)).toHaveLength(99);
    expect(upstream.mostAtOnce).toBe(1);
    expect(await inboxOf(pair)).toMatchObject([{ agent: 'coder', output: 'x' }]);
  });
});

describe('room in the inbox', () => {
  test.each(['ack', 'drain', 'read'] as const)('made by %s is used at once', async (how) => {
    const small = await startService(database, { policy: { maxPendingItems: 1 } });
    const pair = newPair(small);
    const sibling = { ...pair, child: freshId('child') };
    await take(pair, [isChild(), opens, says(idle('one'), DELIVERED)]);
    await take(sibling, [isChild(), says(idle('two'), '503 not_confirmed inbox_full')]);
    const [item] = await inboxOf(pair);
    const inbox = `${path(pair.parent)}/inbox`;
    if (how === 'ack') await small.request('POST', `${inbox}/ack`, { item_ids: [item?.['id']] });
    if (how === 'drain') await small.request('POST', `${inbox}/read`, { drain: true });
    if (how === 'read') await small.request('POST', `${inbox}/read`, { ack: [item?.['id']] });
    expect(await inboxOf(pair)).toMatchObject([{ output: 'one' }, { output: 'two' }]);
    await small.stop();
  });
});
