import { connect } from 'node:net';
import { once } from 'node:events';
import { describe, expect, onTestFinished, test } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { deliverTo, describeChild, freshId, path, reportIdle } from '../support/delivery.ts';
import { openEventStream } from '../support/sse.ts';
import { startService, useService, type TestService } from '../support/service.ts';
import { attach, forgetLease } from '../support/viewers.ts';

const database = useDatabase();
const here = useService(database);
const there = useService(database);
const deaf = useService(database, { env: { NOTIFICATIONS: 'false' } });

async function stream(service: Pick<TestService, 'url'>, session: string, query = '') {
  const opened = await openEventStream(service.url, `${path(session)}/stream${query}`);
  onTestFinished(() => opened.close());
  return opened;
}

const says = (service: TestService, session: string, data: object) =>
  service.request('POST', `${path(session)}/events`, { type: 'external_session_status', data });

describe('a stream', () => {
  test('begins with a snapshot, on every connect', async () => {
    const parent = freshId('parent');
    await here.request('PUT', path(parent), { inbox: 'open' });
    await deliverTo(here, parent);
    for (const service of [here, there]) {
      const opened = await stream(service, parent);
      expect(opened).toMatchObject({
        status: 200,
        headers: {
          'content-type': 'text/event-stream; charset=utf-8',
          'cache-control': 'no-store',
          'x-accel-buffering': 'no',
        },
      });
      expect(await opened.next()).toEqual({
        event: 'session.snapshot',
        data: { status: 'idle', pending: 1 },
      });
    }
  });

  test('is not opened by a HEAD, which has its headers, and renews the lease of nobody', async () => {
    const id = freshId();
    const viewer = await attach(here, id);
    await forgetLease(database.sql, viewer);
    const before = here.resources.streams.count();
    const head = await here.request('HEAD', `${path(id)}/stream?viewer_id=${viewer}`);
    expect([head.status, head.headers['content-type']]).toEqual([
      200,
      'text/event-stream; charset=utf-8',
    ]);
    expect(here.resources.streams.count()).toBe(before);
    const renewed = await database.sql`
      select 1 from viewers where viewer_id = ${viewer} and renewed_at > now() - interval '1 second'`;
    expect(renewed).toEqual([]);
  });

  test('makes a stub of a session of which nobody has heard', async () => {
    const opened = await stream(here, freshId());
    expect(await opened.next()).toMatchObject({ data: { status: 'idle', pending: 0 } });
  });

  test('is refused for a deleted session, and ends when its session is deleted', async () => {
    const id = freshId();
    await here.request('PUT', path(id), {});
    const opened = await stream(there, id);
    await opened.next('session.snapshot');
    await here.request('DELETE', path(id));
    expect(await opened.ended).not.toContain('retry:');
    expect((await stream(here, id)).status).toBe(404);
  });

  describe.each([
    ['here', () => here],
    ['on another replica', () => there],
    ['where no notification is heard', () => deaf],
  ] as const)('opened %s', (_, at) => {
    test('tells of a wake with its notice, its count and its item', async () => {
      const parent = freshId('parent');
      await here.request('PUT', path(parent), { inbox: 'open' });
      const opened = await stream(at(), parent);
      await opened.next('session.snapshot');
      const { itemId } = await deliverTo(here, parent);
      expect(await opened.next('inbox.wake')).toEqual({
        event: 'inbox.wake',
        data: {
          pending: 1,
          notice:
            '[System: sub-agent reviewer/reviewer finished (completed) — ' +
            '1 result waiting in inbox. Call sys_read_inbox to collect.]',
          item_id: itemId,
        },
      });
    });

    test('tells of the status, and of children that come and change', async () => {
      const [parent, child] = [freshId('parent'), freshId('child')];
      await here.request('PUT', path(parent), { inbox: 'open' });
      const opened = await stream(at(), parent);
      await opened.next('session.snapshot');
      await describeChild(here, parent, child);
      expect(await opened.next('session.created')).toMatchObject({
        data: { id: child, parent_session_id: parent, busy: false },
      });
      await says(here, child, { status: 'running' });
      expect(await opened.next('session.child_session.updated')).toMatchObject({
        data: { id: child, object: 'child_session', busy: true },
      });
      await says(here, parent, { status: 'running', background_task_count: 2 });
      expect(await opened.next('session.status')).toEqual({
        event: 'session.status',
        data: {
          status: 'running',
          busy: true,
          background_task_count: 2,
          blocked_on: null,
          last_task_error: null,
        },
      });
      await reportIdle(here, child);
      expect(await opened.next('session.child_session.updated')).toMatchObject({
        data: { id: child, busy: false, current_task_status: 'completed' },
      });
    });
  });

  test('goes on with the inbox of the session that its own goes on as', async () => {
    const [before, after] = [freshId('before'), freshId('after')];
    await here.request('PUT', path(before), { inbox: 'open' });
    await here.request('PUT', path(after), {});
    const opened = await stream(there, before);
    await opened.next('session.snapshot');
    await here.request('PUT', path(before), { continued_as: after });
    await deliverTo(here, after);
    expect(await opened.next('inbox.wake')).toMatchObject({ data: { pending: 1 } });
  });

  test('is not told again what that session was told when it had something', async () => {
    const [before, after] = [freshId('before'), freshId('after')];
    for (const id of [before, after]) await here.request('PUT', path(id), { inbox: 'open' });
    await deliverTo(here, after);
    await here.resources.wakes.idle();
    await here.request('POST', `${path(after)}/inbox/read`, { drain: true });
    await here.resources.wakes.idle();
    const opened = await stream(there, before);
    await opened.next('session.snapshot');
    await here.request('PUT', path(before), { continued_as: after });
    for (const child of [freshId('child'), freshId('child')]) {
      await describeChild(here, before, child);
      expect(await opened.next()).toMatchObject({ event: 'session.created', data: { id: child } });
    }
  });

  test('shows that it lives, and renews the lease of its viewer', async () => {
    const id = freshId();
    const viewer = await attach(here, id);
    const opened = await stream(here, id, `?viewer_id=${viewer}`);
    await opened.next('session.snapshot');
    await database.sql`
      update viewers set renewed_at = renewed_at - interval '50 seconds'
      where viewer_id = ${viewer}`;
    const before = await renewedAt(viewer);
    await here.resources.streams.ping();
    await expect.poll(() => opened.comments()).toBe(1);
    expect(await renewedAt(viewer)).toBeGreaterThan(before);
  });

  test('is refused to a viewer whose lease has run out', async () => {
    const id = freshId();
    const viewer = await attach(here, id);
    await forgetLease(database.sql, viewer);
    expect((await stream(here, id, `?viewer_id=${viewer}`)).status).toBe(404);
  });

  test('is ended on drain, whole and with the time after which to come back', async () => {
    const service = await startService(database);
    const opened = await stream(service, freshId());
    await opened.next('session.snapshot');
    const stopping = service.stop({ drainMs: 200 });
    expect(await opened.ended).toMatch(/\n\nretry: \d+\n\n$/);
    await stopping;
  });

  test('tells who reads of an error of any length, and of all that comes at once', async () => {
    const [parent, child] = [freshId('parent'), freshId('child')];
    await here.request('PUT', path(parent), { inbox: 'open' });
    await describeChild(here, parent, child);
    const [ofParent, ofChild] = [await stream(here, parent), await stream(here, child)];
    for (const opened of [ofParent, ofChild]) await opened.next('session.snapshot');

    const message = 'e'.repeat(300_000);
    await reportIdle(here, child, { status: 'failed', output: message });
    const told = { data: { last_task_error: { message: message.slice(0, 4_000) } } };
    expect(await ofChild.next('session.status')).toMatchObject(told);
    expect(await ofParent.next('session.child_session.updated')).toMatchObject(told);
    await ofParent.next('inbox.wake');

    const tasks = Array.from({ length: 1_000 }, () => ({ goal: 'look', title: 't'.repeat(400) }));
    const call = await here.request('POST', `${path(parent)}/delegations`, { tasks });
    const created = new Set<string>();
    while (created.size < 1_000) created.add((await ofParent.next('session.created')).data.id);
    const ids = call.body.tasks.map((task: { child_session_id: string }) => task.child_session_id);
    expect([...created].toSorted()).toEqual(ids.toSorted());
  });

  test('is cut off for a reader that does not read', async () => {
    const parent = freshId('parent');
    await here.request('PUT', path(parent), { inbox: 'open', max_concurrent: 100 });
    const slow = connect(Number(new URL(here.url).port), '127.0.0.1');
    await once(slow, 'connect');
    slow.pause();
    slow.write(`GET ${path(parent)}/stream HTTP/1.1\r\nHost: localhost\r\n\r\n`);
    const before = here.resources.streams.count();
    await expect.poll(() => here.resources.streams.count()).toBe(before + 1);
    // Some megabytes of events each.
    const task = { goal: 'look', title: 't'.repeat(4_000) };
    const tasks = Array.from({ length: 1_000 }, () => task);
    for (let n = 0; here.resources.streams.count() > before && n < 40; n += 1) {
      const answer = await here.request('POST', `${path(parent)}/delegations`, { tasks });
      expect(answer.status).toBe(202);
    }
    expect(here.resources.streams.count()).toBe(before);
    slow.destroy();
  });
});

async function renewedAt(viewer: string): Promise<number> {
  const [row] = await database.sql<{ at: Date }[]>`
    select renewed_at as at from viewers where viewer_id = ${viewer}`;
  return Number(row?.at);
}
