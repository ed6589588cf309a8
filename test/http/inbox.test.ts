import { setMaxListeners } from 'node:events';
import { setTimeout as pause } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { createTestClock } from '../support/clock.ts';
import { useDatabase } from '../support/database.ts';
import { deliverTo, describeChild, freshId, path, reportIdle } from '../support/delivery.ts';
import { openRaw } from '../support/raw-http.ts';
import { startService, useService } from '../support/service.ts';

const database = useDatabase();
const clock = createTestClock();
const service = useService(database, { clock });

async function openInbox(parent = freshId('parent')): Promise<string> {
  expect((await service.request('PUT', `${path(parent)}/inbox`)).status).toBe(200);
  return parent;
}

const read = (parent: string, body?: unknown, headers = {}, signal?: AbortSignal) =>
  service.request('POST', `${path(parent)}/inbox/read`, body, headers, signal);
const post = (parent: string, verb: 'ack' | 'release', itemIds: unknown) =>
  service.request('POST', `${path(parent)}/inbox/${verb}`, { item_ids: itemIds });
const list = (parent: string, query = '') =>
  service.request('GET', `${path(parent)}/inbox${query}`);
const ids = (answer: { body: { items?: { id: string }[]; data?: { id: string }[] } }) =>
  (answer.body.items ?? answer.body.data ?? []).map((item) => item.id);

/** Resolves when so many readers wait in this service. */
async function untilWaiting(count: number, on = service): Promise<void> {
  while (on.resources.waiters.count() !== count) await pause(5);
}

describe('an inbox', () => {
  test('opens, closes and opens again', async () => {
    const parent = freshId('parent');
    const opened = await service.request('PUT', `${path(parent)}/inbox`);
    expect(opened.body).toEqual({ open: true, pending: 0, opened_at: expect.any(String) });
    await deliverTo(service, parent);
    const again = await service.request('PUT', `${path(parent)}/inbox`);
    expect(again.body).toEqual({ ...opened.body, pending: 1 });

    expect((await service.request('DELETE', `${path(parent)}/inbox`)).status).toBe(204);
    expect((await service.request('DELETE', `${path(parent)}/inbox`)).status).toBe(204);
    const child = freshId('child');
    await describeChild(service, parent, child);
    expect((await reportIdle(service, child)).body).toMatchObject({
      reason: 'missing_parent_inbox',
    });
    expect((await read(parent)).body.items).toHaveLength(1);

    const reopened = await service.request('PUT', `${path(parent)}/inbox`);
    expect(reopened.body.pending).toBe(2);
    expect((await reportIdle(service, child)).headers['delivery-outcome']).toBe(
      'already_delivered',
    );
  });

  test('opens by being read, unless it was closed', async () => {
    const parent = freshId('parent');
    const child = freshId('child');
    await describeChild(service, parent, child);
    expect((await reportIdle(service, child)).status).toBe(503);
    expect((await read(parent)).body.items).toMatchObject([{ conversation_id: child }]);

    await service.request('DELETE', `${path(parent)}/inbox`);
    const other = freshId('child');
    await describeChild(service, parent, other);
    expect((await reportIdle(service, other)).status).toBe(503);
    expect((await read(parent)).body.items).toEqual([]);
  });

  test('that was closed before it was ever opened stays closed', async () => {
    const parent = freshId('parent');
    await describeChild(service, parent, freshId('child'));
    expect((await service.request('DELETE', `${path(parent)}/inbox`)).status).toBe(204);
    await read(parent);
    const child = freshId('child');
    await describeChild(service, parent, child);
    expect((await reportIdle(service, child)).body.reason).toBe('missing_parent_inbox');
  });

  test('is not found for a deleted session, or one that nobody has named', async () => {
    const unknown = freshId('parent');
    expect((await list(unknown)).status).toBe(404);
    expect((await list(unknown, '/item_0000000000000a')).status).toBe(404);
    expect((await post(unknown, 'ack', [])).status).toBe(404);
    expect((await post(unknown, 'release', [])).status).toBe(404);
    expect((await service.request('DELETE', `${path(unknown)}/inbox`)).status).toBe(404);

    const parent = await openInbox();
    await deliverTo(service, parent);
    await service.request('DELETE', path(parent));
    expect((await list(parent)).status).toBe(404);
    expect((await read(parent)).status).toBe(404);
    expect((await service.request('PUT', `${path(parent)}/inbox`)).status).toBe(404);
  });

  test('takes no more than it may hold, and what waited for room as soon as there is some', async () => {
    const small = await startService(database, { policy: { maxPendingItems: 2 } });
    const parent = await openInbox();
    const first = await deliverTo(small, parent);
    await deliverTo(small, parent);
    const children = [freshId('child'), freshId('child')];
    for (const child of children) {
      await describeChild(small, parent, child);
      expect((await reportIdle(small, child)).body).toMatchObject({ reason: 'inbox_full' });
    }
    await small.request('POST', `${path(parent)}/inbox/ack`, { item_ids: [first.itemId] });
    const drained = await small.request('POST', `${path(parent)}/inbox/read`, { drain: true });
    expect(drained.body.items).toHaveLength(2);
    const late = await small.request('POST', `${path(parent)}/inbox/read`);
    expect(late.body.items).toHaveLength(1);
    const waited = [drained.body.items[1], late.body.items[0]].map((item) => item.conversation_id);
    expect(new Set(waited)).toEqual(new Set(children));
    await small.stop();
  });

  test.each([
    ['once', []],
    ['over another one', [freshId('between')]],
  ])('takes no more either after unread items have moved into it, %s', async (_, between) => {
    const policy = { maxPendingItems: 5_000 };
    const replicas = [
      await startService(database, { policy }),
      await startService(database, { policy }),
    ];
    const [from, to] = [await openInbox(), await openInbox()];
    // Each has counted, and found much room.
    for (const replica of replicas) await deliverTo(replica, to);
    await database.sql`
      insert into items (tenant_id, session_id, seq, source, type, agent, title, status, output,
        delivered_at)
      select 'default', ${from}, nextval('item_seq'), ${from} || g, 'sub_agent', 'a', '',
        'completed', 'x', now()
      from generate_series(1, 4996) g`;
    for (const [at, next] of [...between, to].entries()) {
      const former = [from, ...between][at] ?? '';
      const answer = await service.request('PUT', path(former), { continued_as: next });
      expect(answer.status).toBeLessThan(300);
    }
    const answers = [];
    for (let n = 0; n < 4; n += 1) {
      for (const replica of replicas) {
        const child = freshId('child');
        await describeChild(replica, to, child);
        answers.push((await reportIdle(replica, child)).status);
      }
    }
    expect(answers).toEqual([204, 204, 503, 503, 503, 503, 503, 503]);
    for (const replica of replicas) await replica.stop();
  });
});

describe('an item', () => {
  test('says all that is known of the result', async () => {
    const parent = await openInbox();
    const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
    const child = freshId('child');
    await describeChild(service, parent, child);
    await service.request(
      'POST',
      `${path(child)}/events`,
      {
        type: 'external_session_status',
        data: { status: 'idle', output: 'found it', response_id: 'r1' },
      },
      { traceparent },
    );
    const [item] = (await read(parent)).body.items;
    expect(item).toEqual({
      id: expect.stringMatching(/^item_[0-9a-f]{14}$/),
      type: 'sub_agent',
      work_id: expect.stringMatching(/^subagent_[0-9a-f]{12,}$/),
      task_id: child,
      handle_id: child,
      conversation_id: child,
      tool_name: 'reviewer',
      agent: 'reviewer',
      title: 'reviewer',
      status: 'completed',
      output: 'found it',
      text: `[System: sub-agent task ${child} completed — reviewer:reviewer returned: found it]`,
      recovered: true,
      follows: null,
      revision: 1,
      disposition: 'turn',
      human_input: false,
      response_id: 'r1',
      created_by: null,
      delivered_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
      delivery_count: 1,
      traceparent,
    });
    expect((await list(parent, `/${item.id}`)).body).toEqual(item);
  });

  test('names the one that it follows', async () => {
    const parent = await openInbox();
    const { child, itemId, workId } = await deliverTo(service, parent, { output: 'first' });
    await reportIdle(service, child, { status: 'running', output: undefined });
    await reportIdle(service, child, { output: 'second' });
    const [, second] = (await list(parent)).body.data;
    expect(second).toMatchObject({ follows: itemId, work_id: workId, revision: 2 });
  });

  test('is whole, however long, where its text is cut', async () => {
    const parent = await openInbox();
    const output = '😀'.repeat(1_000_000);
    const { child, itemId } = await deliverTo(service, parent, { output });
    const item = (await list(parent, `/${itemId}`)).body;
    expect(item.output).toBe(output);
    expect(item.text).toBe(
      `[System: sub-agent task ${child} completed — reviewer:reviewer returned: ` +
        `${'😀'.repeat(12_000)}\n...[truncated 988000 chars]\n` +
        `[whole text: GET ${path(parent)}/inbox/${itemId}]]`,
    );
  });
});

describe('reading', () => {
  test('hands out what was delivered, in its order, with what remains', async () => {
    const parent = await openInbox();
    const delivered = [];
    for (let n = 0; n < 5; n += 1) delivered.push(await deliverTo(service, parent));
    const first = await read(parent, { max: 2 });
    expect(ids(first)).toEqual(delivered.slice(0, 2).map((item) => item.itemId));
    expect(first.body).toMatchObject({ remaining: 3, acked: [] });
    const second = await read(parent);
    expect(ids(second)).toEqual(delivered.slice(2).map((item) => item.itemId));
    expect(second.body.remaining).toBe(0);
    expect((await read(parent)).body).toEqual({ items: [], remaining: 0, acked: [] });
  });

  test('offers an item again when its lease ends, and counts how often', async () => {
    const parent = await openInbox();
    const { itemId } = await deliverTo(service, parent);
    expect((await read(parent)).body.items).toMatchObject([{ delivery_count: 1 }]);
    clock.advance(59_999);
    expect((await read(parent)).body.items).toEqual([]);
    clock.advance(1);
    expect((await read(parent, { lease_seconds: 0.5 })).body.items).toMatchObject([
      { id: itemId, delivery_count: 2 },
    ]);
    clock.advance(500);
    expect((await read(parent, { lease_seconds: 0 })).body.items).toMatchObject([
      { delivery_count: 3 },
    ]);
    expect((await read(parent)).body.items).toMatchObject([{ delivery_count: 4 }]);
  });

  test('acks what it names first, in the same request', async () => {
    const parent = await openInbox();
    const first = await deliverTo(service, parent);
    const second = await deliverTo(service, parent);
    expect(ids(await read(parent, { max: 1 }))).toEqual([first.itemId]);
    const answer = await read(parent, { ack: [first.itemId, 'item_nonsense', first.itemId] });
    expect(answer.body.acked).toEqual([first.itemId]);
    expect(ids(answer)).toEqual([second.itemId]);
    const repeat = await read(parent, { ack: [first.itemId, second.itemId] });
    expect(repeat.body).toEqual({ items: [], remaining: 0, acked: [second.itemId] });
  });

  test('acks what it hands out when it drains', async () => {
    const parent = await openInbox();
    const { itemId } = await deliverTo(service, parent);
    expect((await read(parent, { drain: true })).body).toMatchObject({
      items: [{ id: itemId }],
      acked: [itemId],
    });
    clock.advance(120_000);
    expect((await read(parent)).body.items).toEqual([]);
    expect((await post(parent, 'ack', [itemId])).body.already_acked).toEqual([itemId]);
  });

  test('takes null for what is left out, and clamps what is too much', async () => {
    const parent = await openInbox();
    const { itemId } = await deliverTo(service, parent);
    const nulls = { max: null, wait_seconds: null, lease_seconds: null, ack: null, drain: null };
    expect(ids(await read(parent, nulls))).toEqual([itemId]);
    clock.advance(60_000);
    expect(ids(await read(parent, { max: 1e9, lease_seconds: 1e12 }))).toEqual([itemId]);
    clock.advance(86_400_000);
    expect(ids(await read(parent, ''))).toEqual([itemId]);
  });

  test.each([
    { max: 0 },
    { max: 1.5 },
    { max: '10' },
    { wait_seconds: -1 },
    { wait_seconds: true },
    { lease_seconds: -0.1 },
    { lease_seconds: [] },
    { ack: 'item_0000000000000a' },
    { ack: [7] },
    { drain: 'yes' },
    [],
  ])('refuses %j', async (body) => {
    expect((await read(await openInbox(), body)).status).toBe(400);
  });

  test('never hands an item to two concurrent readers', async () => {
    const parent = await openInbox();
    const delivered = await Promise.all(
      Array.from({ length: 60 }, async () => (await deliverTo(service, parent)).itemId),
    );
    const got: string[] = [];
    const readers = Array.from({ length: 20 }, async () => {
      for (;;) {
        const answer = await read(parent, { max: 2 });
        got.push(...ids(answer));
        if (answer.body.items.length === 0 && answer.body.remaining === 0) return;
      }
    });
    await Promise.all(readers);
    expect(got.toSorted()).toEqual(delivered.toSorted());
  });

  test('answers no more than 16 MiB at once, but at least one item', async () => {
    const parent = await openInbox();
    const output = 'x'.repeat(7 * 1024 * 1024);
    for (let n = 0; n < 3; n += 1) await deliverTo(service, parent, { output });
    const answer = await read(parent);
    expect(answer.body.items).toHaveLength(2);
    expect(answer.body.remaining).toBe(1);
    const page = await list(parent);
    expect(page.body.data).toHaveLength(2);
    expect(page.body.has_more).toBe(true);
  });

  test('gives a model the text form, with the ids beside it', async () => {
    const parent = await openInbox();
    const asText = { accept: 'text/plain' };
    const empty = await read(parent, undefined, asText);
    expect(empty.body).toBe('Inbox is empty — no completed tasks.');
    expect(empty.headers['content-type']).toMatch(/^text\/plain/);
    expect(empty.headers['inbox-item-ids']).toBe('');

    const first = await deliverTo(service, parent, { output: 'one' });
    const second = await deliverTo(service, parent, { status: 'failed', output: 'boom' });
    const answer = await read(parent, {}, asText);
    expect(answer.body).toBe(
      `[System: sub-agent task ${first.child} completed — reviewer:reviewer returned: one]\n\n` +
        `[System: sub-agent task ${second.child} failed — reviewer:reviewer error: boom]`,
    );
    expect(answer.headers['inbox-item-ids']).toBe(`${first.itemId}, ${second.itemId}`);
  });
});

describe('what has been acked', () => {
  test.each([{ drain: true }, { drain: false }])(
    'is answered though what waits for room cannot be looked for: $drain',
    async ({ drain }) => {
      const parent = await openInbox();
      const [first, second] = [await deliverTo(service, parent), await deliverTo(service, parent)];
      const other = await database.sql.reserve();
      await other`begin`;
      await other`lock table parked_reports in access exclusive mode`;
      const body = drain ? { drain } : { ack: [first.itemId] };
      const answer = await read(parent, body);
      await other`rollback`;
      other.release();
      expect(answer.status).toBe(200);
      expect(ids(answer)).toEqual(drain ? [first.itemId, second.itemId] : [second.itemId]);
    },
  );
});

describe('acking', () => {
  test('settles items, leased or not, also after their lease', async () => {
    const parent = await openInbox();
    const delivered = [];
    for (let n = 0; n < 3; n += 1) delivered.push((await deliverTo(service, parent)).itemId);
    const [leased, expired, free] = delivered;
    await read(parent, { max: 2, lease_seconds: 10 });
    clock.advance(10_000);
    expect(ids(await read(parent, { max: 1 }))).toEqual([leased]);
    const unknown = ['item_ffffffffffffff', 'item_00000000000000', 'nonsense'];
    const answer = await post(parent, 'ack', [...delivered, ...unknown, free]);
    expect(answer.body).toEqual({ acked: [leased, expired, free], already_acked: [], unknown });
    expect((await post(parent, 'ack', delivered)).body).toEqual({
      acked: [],
      already_acked: delivered,
      unknown: [],
    });
    clock.advance(60_000);
    expect((await read(parent)).body.items).toEqual([]);
  });

  test("knows nothing of another inbox's items", async () => {
    const [parent, other] = [await openInbox(), await openInbox()];
    const { itemId } = await deliverTo(service, parent);
    expect((await post(other, 'ack', [itemId])).body.unknown).toEqual([itemId]);
    expect((await list(other, `/${itemId}`)).status).toBe(404);
    expect(ids(await read(parent))).toEqual([itemId]);
  });

  test.each([{}, { item_ids: 'x' }, { item_ids: [null] }, { item_ids: [''] }])(
    'refuses %j',
    async (body) => {
      const parent = await openInbox();
      const answer = await service.request('POST', `${path(parent)}/inbox/ack`, body);
      expect(answer.status).toBe(400);
    },
  );
});

describe('releasing', () => {
  test('hands items back before their lease ends', async () => {
    const parent = await openInbox();
    const { itemId } = await deliverTo(service, parent);
    const settled = await deliverTo(service, parent);
    await read(parent);
    await post(parent, 'ack', [settled.itemId]);
    const waiting = read(parent, { wait_seconds: 20 });
    await untilWaiting(1);
    const answer = await post(parent, 'release', [itemId, settled.itemId, 'item_x']);
    expect(answer.body).toEqual({
      released: [itemId],
      already_acked: [settled.itemId],
      unknown: ['item_x'],
    });
    expect((await waiting).body.items).toMatchObject([{ id: itemId, delivery_count: 2 }]);
  });
});

describe('listing', () => {
  test('pages through the pending items, or all, and leases nothing', async () => {
    const parent = await openInbox();
    const delivered = [];
    for (let n = 0; n < 5; n += 1) delivered.push((await deliverTo(service, parent)).itemId);
    const [first = '', second = '', third = ''] = delivered;
    await post(parent, 'ack', [second]);
    const page = await list(parent, '?limit=2');
    expect(page.body).toMatchObject({ first_id: first, last_id: third, has_more: true });
    const rest = await list(parent, `?limit=2&after=${third}`);
    expect(ids(rest)).toEqual(delivered.slice(3));
    expect(rest.body.has_more).toBe(false);
    expect(ids(await list(parent, '?state=all&limit=1000000'))).toEqual(delivered);
    expect((await list(parent)).body.data).toMatchObject([{ delivery_count: 0 }, {}, {}, {}]);
    expect((await list(parent, `?after=${delivered.at(-1)}`)).body).toEqual({
      object: 'list',
      data: [],
      first_id: null,
      last_id: null,
      has_more: false,
    });
  });

  test.each(['?state=read', '?limit=0', '?limit=x', '?after=item_z', '?after='])(
    'refuses %s',
    async (query) => {
      expect((await list(await openInbox(), query)).status).toBe(400);
    },
  );
});

describe('a session that goes on under another id', () => {
  test('is read, acked and listed through either', async () => {
    const [former, next] = [await openInbox(), freshId('parent')];
    const acked = await deliverTo(service, former);
    await post(former, 'ack', [acked.itemId]);
    const leased = await deliverTo(service, former);
    await read(former);
    await service.request('PUT', path(former), { continued_as: next });
    const later = await deliverTo(service, former);

    expect(ids(await list(next))).toEqual([leased.itemId, later.itemId]);
    expect(ids(await list(former))).toEqual([leased.itemId, later.itemId]);
    expect(ids(await read(former, { max: 1 }))).toEqual([leased.itemId]);
    const answer = await post(former, 'ack', [acked.itemId, leased.itemId]);
    expect(answer.body).toMatchObject({ acked: [leased.itemId], already_acked: [acked.itemId] });
    expect((await list(former, `/${acked.itemId}`)).status).toBe(200);
    expect((await list(former, `/${later.itemId}`)).body.text).toContain('returned: done');
    expect(ids(await read(next))).toEqual([later.itemId]);
    expect((await service.request('DELETE', `${path(former)}/inbox`)).status).toBe(204);
    const child = freshId('child');
    await describeChild(service, next, child);
    expect((await reportIdle(service, child)).body.reason).toBe('missing_parent_inbox');
  });

  test('takes its waiting readers along', async () => {
    const [former, next] = [await openInbox(), freshId('parent')];
    const waiting = read(former, { wait_seconds: 20 });
    await untilWaiting(1);
    await service.request('PUT', path(former), { continued_as: next });
    await pause(100);
    await untilWaiting(1);
    const { itemId } = await deliverTo(service, next);
    expect(ids(await waiting)).toEqual([itemId]);
  });
});

describe('waiting', () => {
  test('lasts until something is delivered', async () => {
    const parent = await openInbox();
    const startedAt = performance.now();
    const waiting = read(parent, { wait_seconds: 30 });
    await untilWaiting(1);
    const { itemId } = await deliverTo(service, parent);
    expect(ids(await waiting)).toEqual([itemId]);
    expect(performance.now() - startedAt).toBeLessThan(5_000);
    await untilWaiting(0);
  });

  test('lasts no longer than asked for, in the body or by Prefer', async () => {
    const parent = await openInbox();
    const timed = async (body: unknown, prefer?: string) => {
      const startedAt = performance.now();
      const answer = await read(parent, body, prefer === undefined ? {} : { prefer });
      expect(answer.body.items).toEqual([]);
      return { ms: performance.now() - startedAt, applied: answer.headers['preference-applied'] };
    };
    expect((await timed({ wait_seconds: 0.3 })).ms).toBeGreaterThan(290);
    const preferred = await timed({}, 'respond-async, wait=1');
    expect(preferred.ms).toBeGreaterThan(990);
    expect(preferred.applied).toBe('wait=1');
    const bounded = await timed({ wait_seconds: 30 }, 'wait="0"');
    expect(bounded.ms).toBeLessThan(900);
    expect(bounded.applied).toBe('wait=0');
    expect((await timed({}, 'wait=soon')).applied).toBeUndefined();
    expect((await timed({}, 'handling=strict')).ms).toBeLessThan(900);
  });

  test('ends when the lease of another reader does', async () => {
    const real = await startService(database);
    const parent = await openInbox();
    const { itemId } = await deliverTo(real, parent);
    const readAs = (body: object) => real.request('POST', `${path(parent)}/inbox/read`, body);
    await readAs({ lease_seconds: 0.5 });
    const startedAt = performance.now();
    const answer = await readAs({ wait_seconds: 30 });
    expect(answer.body.items).toMatchObject([{ id: itemId, delivery_count: 2 }]);
    expect(performance.now() - startedAt).toBeLessThan(2_000);
    await real.stop();
  });

  test('ends with 404 when the session is deleted', async () => {
    const parent = await openInbox();
    const waiting = read(parent, { wait_seconds: 30 });
    await untilWaiting(1);
    await service.request('DELETE', path(parent));
    expect((await waiting).status).toBe(404);
  });

  test('ends with its connection, also where it was sent ahead behind another', async () => {
    const parent = await openInbox();
    const connection = await openRaw(service.url);
    const body = JSON.stringify({ wait_seconds: 50, drain: true });
    const poll =
      `POST ${path(parent)}/inbox/read HTTP/1.1\r\nHost: localhost\r\n` +
      `Content-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
    connection.send(poll + poll + poll);
    await untilWaiting(3);
    connection.destroy();
    await untilWaiting(0);
    const { itemId } = await deliverTo(service, parent);
    expect(ids(await read(parent))).toEqual([itemId]);
  });

  test('ends when the service drains, with what is there', async () => {
    const draining = await startService(database);
    const parent = await openInbox();
    const readAs = () =>
      draining.request('POST', `${path(parent)}/inbox/read`, { wait_seconds: 30 });
    const waiting = readAs();
    await untilWaiting(1, draining);
    draining.resources.waiters.release();
    expect((await waiting).body).toEqual({ items: [], remaining: 0, acked: [] });
    await deliverTo(draining, parent);
    expect((await readAs()).body.items).toHaveLength(1);
    expect((await readAs()).body.items).toHaveLength(0);
    await draining.stop();
  });

  test('of a reader that leaves ends at once, and leases nothing', async () => {
    const parent = await openInbox();
    const leaving = new AbortController();
    const waiting = read(parent, { wait_seconds: 30 }, {}, leaving.signal);
    await untilWaiting(1);
    leaving.abort();
    await expect(waiting).rejects.toThrow();
    await untilWaiting(0);
    await deliverTo(service, parent);
    expect((await list(parent)).body.data).toMatchObject([{ delivery_count: 0 }]);
  });

  test.each([{ drain: false }, { drain: true }])(
    'hands nothing to a reader that leaves while items are handed to it (%j)',
    async ({ drain }) => {
      const parent = await openInbox();
      const { itemId } = await deliverTo(service, parent);
      const leaving = new AbortController();
      // The items are locked until the reader has left, so it leaves in the middle of its look.
      let waiting: Promise<unknown> | undefined;
      await database.sql.begin(async (tx) => {
        await tx`lock table items in share row exclusive mode`;
        waiting = read(parent, { drain }, {}, leaving.signal);
        waiting.catch(() => {});
        await pause(200);
        leaving.abort();
        await pause(100);
      });
      await expect(waiting).rejects.toThrow();
      for (;;) {
        const [item] = (await list(parent)).body.data;
        if (item?.delivery_count === 0 && ids(await read(parent)).includes(itemId)) break;
        await pause(20);
      }
    },
  );

  test('a thousand readers are woken by a delivery each', { timeout: 120_000 }, async () => {
    const parents = Array.from({ length: 1_000 }, () => freshId('parent'));
    const children = parents.map((parent) => `child_of_${parent}`);
    await database.sql`
      insert into sessions (tenant_id, id, created_at, described_at, parent_session_id)
      select 'default', c, now(), now(), p from unnest(${children}::text[], ${parents}::text[])
        as t(c, p)`;
    const waiting = parents.map((parent) => read(parent, { wait_seconds: 60 }));
    await untilWaiting(1_000);
    await Promise.all(children.map((child) => reportIdle(service, child, { output: child })));
    const answers = await Promise.all(waiting);
    expect(
      answers.map(({ body }) => body.items.map((item: { output: string }) => item.output)),
    ).toEqual(children.map((child) => [child]));
    await untilWaiting(0);
  });

  test('a thousand readers that leave are all freed', { timeout: 120_000 }, async () => {
    const parent = await openInbox();
    const leaving = new AbortController();
    setMaxListeners(0, leaving.signal);
    const waiting = Array.from({ length: 1_000 }, () =>
      read(parent, { wait_seconds: 60 }, {}, leaving.signal),
    );
    await untilWaiting(1_000);
    leaving.abort();
    const ends = await Promise.allSettled(waiting);
    expect(ends.every((end) => end.status === 'rejected')).toBe(true);
    await untilWaiting(0);
    const { itemId } = await deliverTo(service, parent);
    expect((await read(parent)).body.items).toMatchObject([{ id: itemId, delivery_count: 1 }]);
  });
});

describe('two replicas on one database', () => {
  test('a reader at one is woken by what the other delivers', async () => {
    const other = await startService(database);
    const parent = await openInbox();
    const waiting = read(parent, { wait_seconds: 30 });
    await untilWaiting(1);
    const startedAt = performance.now();
    const { itemId } = await deliverTo(other, parent);
    expect(ids(await waiting)).toEqual([itemId]);
    // By the message; the backstop takes two seconds.
    expect(performance.now() - startedAt).toBeLessThan(1_000);
    await other.stop();
  });

  test('a reader is woken without any message, only later', async () => {
    const parent = await openInbox();
    const waiting = read(parent, { wait_seconds: 30 });
    await untilWaiting(1);
    await database.sql`insert into items
      (tenant_id, session_id, seq, source, type, agent, title, status, output, delivered_at)
      select 'default', ${parent}, nextval('item_seq'), ${`work:${parent}:1`}, 'sub_agent', 'a', '',
        'completed', 'x', now()`;
    const startedAt = performance.now();
    expect((await waiting).body.items).toMatchObject([{ output: 'x' }]);
    expect(performance.now() - startedAt).toBeLessThan(5_000);
  });
});
