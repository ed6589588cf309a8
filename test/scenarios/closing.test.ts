import { describe, expect, test } from 'vitest';
import { END_REASONS } from '../../src/domain/closing.ts';
import { sweepClosed } from '../../src/operations/close-session.ts';
import { useDatabase } from '../support/database.ts';
import { freshId, path, reportIdle } from '../support/delivery.ts';
import { useService } from '../support/service.ts';
import { attach, leave } from '../support/viewers.ts';

/*
 * Leaving a session for good stops its own background work and nobody else's
 * (hermes-behaviours.md, C 003).
 */

const database = useDatabase();
const service = useService(database);
const other = useService(database);
const ROUNDS = process.env['LONG'] ? 1_000 : 200;
const AT_ONCE = 5;

async function session(snapshot: object = {}): Promise<string> {
  const id = freshId();
  await service.request('PUT', path(id), { inbox: 'open', ...snapshot });
  return id;
}

const route = () => `telegram:${freshId('route')}`;

interface Child {
  child: string;
  workId: string;
}

async function dispatch(parent: string): Promise<Child> {
  const child = freshId('child');
  const body = { child_session_id: child };
  const answer = await service.request('POST', `${path(parent)}/work`, body);
  expect(answer.status).toBe(201);
  return { child, workId: answer.body.work_id };
}

const delegate = (parent: string, body: object = {}) =>
  service.request('POST', `${path(parent)}/delegations`, { tasks: [{ goal: 'look' }], ...body });

async function delegated(parent: string, body: object = {}): Promise<Child> {
  const answer = await delegate(parent, body);
  expect(answer.status).toBe(202);
  const [task] = answer.body.tasks;
  return { child: task.child_session_id, workId: task.work_id };
}

const statusOf = async ({ workId }: Child): Promise<string> =>
  (await service.request('GET', `/v1/work/${workId}`)).body.status;

/** What the runner is told about its child. */
const isAskedToStop = async ({ child }: Child) => {
  const answer = await service.request('POST', `${path(child)}/heartbeat`, {});
  const { interrupt_requested, reason } = answer.body;
  return { interrupt_requested, reason };
};
const STOPS = { interrupt_requested: true, reason: 'session_closed' };
const GOES_ON = { interrupt_requested: false, reason: null };

async function close(id: string, reason = 'cli_close'): Promise<void> {
  await leave(service, id, await attach(service, id), reason);
}

describe('the last viewer who leaves for good', () => {
  test.each(END_REASONS)(
    'with %s stops the work and delegations of that session',
    async (reason) => {
      const mine = await session();
      const theirs = await session();
      const stopped = [await dispatch(mine), await delegated(mine)];
      const untouched = [await dispatch(theirs), await delegated(theirs)];
      await attach(service, theirs);
      await close(mine, reason);
      expect(await Promise.all(stopped.map(statusOf))).toEqual(['cancelling', 'cancelling']);
      expect(await Promise.all(stopped.map(isAskedToStop))).toEqual([STOPS, STOPS]);
      expect(await Promise.all(untouched.map(isAskedToStop))).toEqual([GOES_ON, GOES_ON]);
    },
  );

  test('stops the calls of its route, whoever has dispatched them', async () => {
    const key = route();
    const mine = await session({ channel: { kind: 'telegram', route: key } });
    const theirs = await session();
    const byRoute = await delegated(theirs, { session_key: key });
    const byOther = await delegated(theirs, { session_key: route() });
    const plain = await dispatch(theirs);
    await close(mine);
    expect(await isAskedToStop(byRoute)).toEqual(STOPS);
    for (const child of [byOther, plain]) expect(await isAskedToStop(child)).toEqual(GOES_ON);
  });

  test('stops nothing of others by a route that it does not have', async () => {
    const mine = await session();
    const theirs = await session();
    const child = await delegated(theirs);
    await close(mine);
    expect(await isAskedToStop(child)).toEqual(GOES_ON);
  });

  test('stops what the session had dispatched before it was continued', async () => {
    const before = await session();
    const child = await dispatch(before);
    const after = await session();
    await service.request('PUT', path(before), { continued_as: after });
    await close(after);
    expect(await isAskedToStop(child)).toEqual(STOPS);
  });

  test('leaves a result that comes within the grace as it is, and it is delivered', async () => {
    const parent = await session({ channel: { kind: 'cli' } });
    const { child } = await dispatch(parent);
    await close(parent);
    const answer = await reportIdle(service, child, { output: 'half of it' });
    expect(answer.headers['delivery-outcome']).toBe('delivered');
    const { items } = (await service.request('POST', `${path(parent)}/inbox/read`, {})).body;
    expect(items).toMatchObject([
      { status: 'cancelled', output: 'half of it', disposition: 'note' },
    ]);
  });
});

describe('nothing is stopped', () => {
  test('by leaving without a reason', async () => {
    const parent = await session();
    const child = await dispatch(parent);
    await leave(service, parent, await attach(service, parent));
    expect(await isAskedToStop(child)).toEqual(GOES_ON);
  });

  test('while somebody else watches', async () => {
    const parent = await session();
    const children = [await dispatch(parent), await delegated(parent)];
    await attach(other, parent);
    await close(parent);
    for (const child of children) expect(await isAskedToStop(child)).toEqual(GOES_ON);
    expect((await delegate(parent)).status).toBe(202);
  });
});

test(`of a detach and an attach at once, ${ROUNDS} times, either closes and all is stopped, or nothing is`, async () => {
  const ends = { closed: 0, open: 0 };

  async function race(round: number): Promise<void> {
    const parent = await session();
    const children = [await dispatch(parent), await dispatch(parent)];
    const viewer = await attach(service, parent);
    const leaves = () => leave(service, parent, viewer, 'tui_close');
    const comes = () => attach(other, parent);
    await Promise.all(round % 2 === 0 ? [leaves(), comes()] : [comes(), leaves()]);
    // Who came is there in either case: its coming was first, or has opened what was closed.
    const { closed_at } = (await service.request('GET', path(parent))).body;
    expect(closed_at).toBeNull();
    const statuses = new Set(await Promise.all(children.map(statusOf)));
    expect([...statuses]).toHaveLength(1);
    ends[statuses.has('cancelling') ? 'closed' : 'open'] += 1;
    await dispatch(parent);
  }

  for (let round = 0; round < ROUNDS; round += AT_ONCE) {
    await Promise.all(Array.from({ length: AT_ONCE }, (_, n) => race(round + n)));
  }
  expect(ends.closed).toBeGreaterThan(0);
  expect(ends.open).toBeGreaterThan(0);
}, 120_000);

describe('a closed session', () => {
  const refused = { status: 409, body: { error: 'conflict', reason: 'session_closed' } };

  test('dispatches nothing until a viewer returns; another one dispatches', async () => {
    const parent = await session();
    const elsewhere = await session();
    await close(parent);
    const work = { child_session_id: freshId('child') };
    expect(await service.request('POST', `${path(parent)}/work`, work)).toMatchObject(refused);
    expect(await delegate(parent)).toMatchObject({
      ...refused,
      body: { ...refused.body, outcome: 'rejected' },
    });
    expect((await delegate(elsewhere)).status).toBe(202);
    const { body } = await service.request('GET', `${path(parent)}/work`);
    expect(body.data).toEqual([]);

    await attach(service, parent);
    expect((await service.request('POST', `${path(parent)}/work`, work)).status).toBe(201);
    expect((await delegate(parent)).status).toBe(202);
  });

  test('refuses calls by its route as well, until a viewer returns', async () => {
    const key = route();
    const closed = await session({ channel: { kind: 'telegram', route: key } });
    const elsewhere = await session();
    await close(closed);
    expect(await delegate(elsewhere, { session_key: key })).toMatchObject(refused);
    expect((await delegate(elsewhere, { session_key: route() })).status).toBe(202);
    await attach(service, closed);
    expect((await delegate(elsewhere, { session_key: key })).status).toBe(202);
  });

  test('does not refuse a new session on the same route', async () => {
    const key = route();
    const channel = { kind: 'telegram', route: key };
    await close(await session({ channel }), 'new_session');
    const fresh = await session({ channel });
    expect((await delegate(fresh, { session_key: key })).status).toBe(202);
  });

  test('takes its refusal with it when it is deleted, and only its own', async () => {
    const key = route();
    const gone = await session({ channel: { kind: 'telegram', route: key } });
    const kept = await session();
    const elsewhere = await session();
    await Promise.all([close(gone), close(kept)]);
    await service.request('DELETE', path(gone));
    expect((await delegate(elsewhere, { session_key: key })).status).toBe(202);
    expect((await delegate(gone)).status).toBe(404);
    expect(await delegate(kept)).toMatchObject(refused);
    await service.request('PUT', path(gone), {});
    expect((await delegate(gone)).status).toBe(202);
  });

  test('still receives', async () => {
    const parent = await session();
    const child = freshId('child');
    await service.request('PUT', path(child), { parent_session_id: parent });
    await close(parent);
    const answer = await reportIdle(service, child);
    expect(answer.headers['delivery-outcome']).toBe('delivered');
  });
});

test('what a process that died had not stopped yet is stopped by the sweep', async () => {
  const parent = await session();
  const child = await dispatch(parent);
  await database.sql`
    insert into closing_interrupts (tenant_id, work_id, session_id, child_session_id, closed_at)
    values ('default', ${child.workId}, ${parent}, ${child.child}, now() - interval '1 minute')`;
  await sweepClosed(service.resources);
  expect(await isAskedToStop(child)).toEqual(STOPS);
  const left = await database.sql`
    select 1 from closing_interrupts where work_id = ${child.workId}`;
  expect(left).toHaveLength(0);
});

test('the late result of a deleted parent is a dead letter, and its forwarder is told once for all', async () => {
  const parent = await session();
  const child = freshId('child');
  await service.request('PUT', path(child), { parent_session_id: parent });
  await database.sql`update sessions set deleted_at = now() where id = ${parent}`;
  for (let n = 0; n < 2; n += 1) {
    const answer = await reportIdle(service, child);
    expect([answer.status, answer.headers['delivery-outcome']]).toEqual([204, 'parent_gone']);
  }
  const { body } = await service.request('GET', '/v1/parked?state=dead&limit=1000');
  expect(body.data.filter((row: { session_id: string }) => row.session_id === child)).toMatchObject(
    [{ reason: 'parent_gone' }],
  );
});
