import { once } from 'node:events';
import { describe, expect, onTestFinished, test } from 'vitest';
import { repeatWakes, stepParents, sweepUntold } from '../../src/operations/wake-parents.ts';
import { useDatabase } from '../support/database.ts';
import { deliverTo, freshId, path, reportIdle } from '../support/delivery.ts';
import { useService, type TestService } from '../support/service.ts';
import { openEventStream } from '../support/sse.ts';
import { attach } from '../support/viewers.ts';
import { useWebhookReceiver } from '../support/webhook-receiver.ts';

/*
 * When an idle parent is told of its inbox, over two replicas (omnigent-behaviours.md, 4.6, with
 * the answers of PROTOCOL).
 */

const database = useDatabase();
const env = { WEBHOOK_ALLOW_PRIVATE: 'true' };
const one = useService(database, { env });
const two = useService(database, { env });
const receiver = useWebhookReceiver();

const notice = (pending: number, who = 'coder/fix', status = 'completed') =>
  `[System: sub-agent ${who} finished (${status}) — ${pending} ` +
  `${pending === 1 ? 'result' : 'results'} waiting in inbox. Call sys_read_inbox to collect.]`;

/** A parent with a webhook of its own; what it was told is what that has been told. */
async function newParent(snapshot: object = {}) {
  const id = freshId('parent');
  await one.request('PUT', path(id), { inbox: 'open', ...snapshot });
  const hook = { url: receiver.url(`/${id}`), format: 'session_message' };
  await one.request('PUT', `${path(id)}/wake`, hook);
  return id;
}

const noticesOf = (parent: string) =>
  receiver.calls(`/${parent}`).map((call) => call.body.data.content[0].text);

/** All that was committed has been stepped, and all wakes of the parent have been sent. */
async function settled(parent: string): Promise<void> {
  for (const { resources } of [one, two]) {
    await resources.wakes.idle();
    await resources.webhooks.sendDue();
  }
  await expect
    .poll(async () => await database.sql`select 1 from webhook_wakes where session_id = ${parent}`)
    .toHaveLength(0);
}

/** A child of the parent completes what it was dispatched for. */
async function completes(parent: string, at: TestService = one, work: object = {}) {
  const child = freshId('child');
  const body = { child_session_id: child, agent: 'coder', title: 'fix', ...work };
  expect((await at.request('POST', `${path(parent)}/work`, body)).status).toBe(201);
  const answer = await reportIdle(at, child);
  expect(answer.headers['delivery-outcome']).toBe('delivered');
  await settled(parent);
  return child;
}

async function says(parent: string, status: string, at: TestService = one): Promise<void> {
  const body = { type: 'external_session_status', data: { status } };
  expect((await at.request('POST', `${path(parent)}/events`, body)).status).toBe(204);
  await settled(parent);
}

const read = async (parent: string, body: object = {}, at: TestService = one) => {
  const answer = await at.request('POST', `${path(parent)}/inbox/read`, body);
  await settled(parent);
  return answer.body;
};

const wakeOf = async (parent: string) => {
  const [row] = await database.sql`
    select pending, last_notice, repeat_at, repeat_delay_ms::int from wakes
    where session_id = ${parent}`;
  return row;
};

/** Lets the time of the next repetition come. */
async function repeatIsDue(parent: string): Promise<void> {
  await database.sql`
    update wakes set repeat_at = now() - interval '1 second' where session_id = ${parent}`;
  await repeatWakes(two.resources);
  await settled(parent);
}

test('the whole sequence, event by event on either replica', async () => {
  const parent = await newParent();
  await completes(parent, one);
  expect(noticesOf(parent)).toEqual([notice(1)]);
  await completes(parent, two);
  expect(noticesOf(parent)).toHaveLength(1);
  await says(parent, 'idle', two);
  expect(noticesOf(parent)).toEqual([notice(1), notice(2)]);
  await says(parent, 'idle', one);
  expect(noticesOf(parent)).toHaveLength(2);
  await completes(parent, two);
  expect(noticesOf(parent)).toEqual([notice(1), notice(2), notice(3)]);
  expect((await read(parent, { drain: true }, one)).items).toHaveLength(3);
  await completes(parent, two);
  expect(noticesOf(parent)).toEqual([notice(1), notice(2), notice(3), notice(1)]);
});

describe('a notice', () => {
  test('counts all items that are not acked, leased or not', async () => {
    const parent = await newParent();
    await completes(parent);
    await read(parent, { max: 1 });
    await says(parent, 'running');
    await completes(parent);
    expect(noticesOf(parent).at(-1)).toBe(notice(2));
  });

  test('names a target without a title by its agent, and how it has ended', async () => {
    const parent = await newParent();
    const child = freshId('child');
    const work = { child_session_id: child, agent: 'coder', title: '' };
    await one.request('POST', `${path(parent)}/work`, work);
    await reportIdle(one, child, { status: 'failed', output: 'broken' });
    await settled(parent);
    expect(noticesOf(parent)).toEqual([notice(1, 'coder', 'failed')]);
  });

  test('names a delegation by its id', async () => {
    const parent = await newParent();
    const answer = await one.request('POST', `${path(parent)}/delegations`, {
      tasks: [{ goal: 'look' }],
    });
    const { delegation_id, tasks } = answer.body;
    await reportIdle(two, tasks[0].child_session_id);
    await settled(parent);
    expect(noticesOf(parent)).toEqual([
      `[System: delegation ${delegation_id} finished (completed) — 1 result waiting in inbox. ` +
        'Call sys_read_inbox to collect.]',
    ]);
  });
});

describe('a wake that is pending', () => {
  test('is one, however many complete at once on both replicas', async () => {
    const parent = await newParent();
    await Promise.all(Array.from({ length: 20 }, (_, n) => deliverTo(n % 2 ? one : two, parent)));
    await settled(parent);
    expect(noticesOf(parent)).toHaveLength(1);
  });

  test('is cleared by the start of the turn: what completes during it is told', async () => {
    const parent = await newParent();
    await completes(parent);
    await says(parent, 'running', two);
    await completes(parent, one);
    expect(noticesOf(parent)).toEqual([notice(1), notice(2)]);
    // The turn goes on, which is no start: the wake of what completed meanwhile is pending still.
    await says(parent, 'running', two);
    await completes(parent, one);
    expect(noticesOf(parent)).toHaveLength(2);
  });

  test('is cleared by a call that failed: the next result is told', async () => {
    const parent = await newParent();
    receiver.reply(`/${parent}`, 400, 204);
    await completes(parent);
    await expect.poll(() => wakeOf(parent)).toMatchObject({ pending: false });
    await completes(parent);
    expect(noticesOf(parent)).toEqual([notice(1), notice(2)]);
  });

  test('is gone with its deleted parent', async () => {
    const parent = await newParent();
    await completes(parent);
    await one.request('DELETE', path(parent));
    expect(await wakeOf(parent)).toBeUndefined();
    await one.request('PUT', path(parent), { inbox: 'open' });
    expect(await wakeOf(parent)).toBeUndefined();
  });

  test('goes on in the session that continues: what is unread is told there', async () => {
    const parent = await newParent();
    await completes(parent);
    const after = freshId('after');
    await one.request('PUT', path(after), {});
    await one.request('PUT', path(parent), { continued_as: after });
    await settled(after);
    expect(await wakeOf(parent)).toBeUndefined();
    expect(noticesOf(parent)).toEqual([notice(1), notice(1)]);
    expect(receiver.calls(`/${parent}`)).toHaveLength(2);
  });
});

/** How many wait for a lock. */
const waiting = async () =>
  (
    await database.sql`
      select 1 from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock'`
  ).length;

describe('a result that comes right after what clears the pending wake', () => {
  test('is told though the start of the turn is stepped late', async () => {
    const parent = await newParent();
    await completes(parent, two);
    await database.sql.begin(async (sql) => {
      await sql`select 1 from wakes where session_id = ${parent} for update`;
      expect((await post(parent, 'running')).status).toBe(204);
      await expect.poll(waiting).toBe(1);
      await deliverTo(one, parent);
      let isStepped = false;
      void one.resources.wakes.idle().then(() => (isStepped = true));
      await expect.poll(async () => isStepped || (await waiting()) === 2).toBe(true);
    });
    await settled(parent);
    expect(noticesOf(parent)).toHaveLength(2);
  });

  test.each<[string, (parent: string, id: string) => Promise<unknown>]>([
    ['acks', (p, id) => one.request('POST', `${path(p)}/inbox/ack`, { item_ids: [id] })],
    ['drains', (p) => two.request('POST', `${path(p)}/inbox/read`, { max: 1, drain: true })],
    ['reads that ack', (p, id) => two.request('POST', `${path(p)}/inbox/read`, { ack: [id] })],
  ])('is told where two %s at once have emptied the inbox', async (_, empties) => {
    async function isTold(): Promise<boolean> {
      const parent = await newParent();
      const [first, second] = [await deliverTo(one, parent), await deliverTo(one, parent)];
      await settled(parent);
      await Promise.all([empties(parent, first.itemId), empties(parent, second.itemId)]);
      await settled(parent);
      await deliverTo(two, parent);
      await settled(parent);
      return noticesOf(parent).length === 2;
    }
    const told = await Promise.all(Array.from({ length: 10 }, isTold));
    expect(told).not.toContain(false);
  });
});

test('a parent whose own parent is gone is told when it goes idle all the same', async () => {
  const [root, after] = [freshId('root'), freshId('after')];
  const parent = await newParent({ parent_session_id: root });
  for (const id of [root, after]) await one.request('PUT', path(id), {});
  await one.request('PUT', path(root), { continued_as: after });
  await one.request('DELETE', path(after));
  await says(parent, 'running');
  for (const at of [one, two]) await completes(parent, at);
  const answer = await reportIdle(two, parent);
  expect(answer.headers['delivery-outcome']).toBe('parent_gone');
  await settled(parent);
  expect(noticesOf(parent)).toEqual([notice(1), notice(2)]);
});

const onTheWay = (parent: string) =>
  database.sql`select id from webhook_wakes where session_id = ${parent}`;

const post = (parent: string, status: string) =>
  two.request('POST', `${path(parent)}/events`, {
    type: 'external_session_status',
    data: { status },
  });

describe('a webhook call that waits to be tried again', () => {
  const busy = { status: 503, headers: { 'Retry-After': '60' } };
  /** A parent whose webhook has not taken its first wake, but takes the next one. */
  async function untoldParent() {
    const parent = await newParent();
    receiver.reply(`/${parent}`, busy, 204);
    const { itemId } = await deliverTo(one, parent);
    await receiver.received(`/${parent}`, 1);
    return { parent, itemId };
  }

  test.each<[string, (of: { parent: string; itemId: string }) => Promise<unknown>]>([
    ['running', ({ parent }) => post(parent, 'running')],
    [
      'an inbox that is drained',
      ({ parent }) => two.request('POST', `${path(parent)}/inbox/read`, { drain: true }),
    ],
    [
      'an inbox of which all is acked',
      ({ parent, itemId }) =>
        two.request('POST', `${path(parent)}/inbox/ack`, { item_ids: [itemId] }),
    ],
  ])('is dropped by %s; a later result is told anew', async (_, clears) => {
    const { parent, itemId } = await untoldParent();
    await clears({ parent, itemId });
    await settled(parent);
    expect(receiver.calls(`/${parent}`)).toHaveLength(1);
    await deliverTo(two, parent);
    const ids = (await receiver.received(`/${parent}`, 2)).map(
      ({ headers }) => headers['webhook-id'],
    );
    expect(new Set(ids).size).toBe(2);
  });

  test.each<[string, (parent: string) => Promise<unknown>]>([
    ['idle, again', (parent) => post(parent, 'idle')],
    ['a reader that only holds a lease', (p) => two.request('POST', `${path(p)}/inbox/read`)],
    ['a further result', (parent) => deliverTo(two, parent)],
  ])('is kept by %s', async (_, leaves) => {
    const { parent } = await untoldParent();
    const [before] = await onTheWay(parent);
    await leaves(parent);
    for (const { resources } of [one, two]) await resources.wakes.idle();
    expect(await onTheWay(parent)).toEqual([before]);
  });

  test('is not tried again either if it was under way when the turn began', async () => {
    const parent = await newParent();
    const patience = new AbortController();
    const slow = once(patience.signal, 'abort').then(() => 503);
    receiver.reply(`/${parent}`, slow, 204);
    await deliverTo(one, parent);
    await receiver.received(`/${parent}`, 1);
    await post(parent, 'running');
    await settled(parent);
    patience.abort();
    await deliverTo(two, parent);
    const [first, second] = await receiver.received(`/${parent}`, 2);
    expect(second?.headers['webhook-id']).not.toBe(first?.headers['webhook-id']);
    await settled(parent);
  });
});

test('no wake comes of a repeat, whether it was read or not', async () => {
  const parent = await newParent();
  const child = await completes(parent);
  await reportIdle(two, child);
  await settled(parent);
  await read(parent, { drain: true });
  await reportIdle(two, child);
  await settled(parent);
  expect(noticesOf(parent)).toHaveLength(1);
});

test('nor of a note, and the repetition does not find it either', async () => {
  const parent = await newParent({ channel: { kind: 'cli' } });
  await completes(parent);
  await says(parent, 'running');
  await says(parent, 'idle');
  await database.sql`
    update items set delivered_at = now() - interval '1 hour' where session_id = ${parent}`;
  await sweepUntold(one.resources, null);
  await settled(parent);
  expect(noticesOf(parent)).toEqual([]);
  await attach(one, parent);
  await completes(parent);
  expect(noticesOf(parent)).toEqual([notice(2)]);
});

test('nor of a result for a client that reads its history', async () => {
  const parent = await newParent({ channel: { kind: 'api_server' } });
  const answer = await one.request('POST', `${path(parent)}/delegations`, {
    tasks: [{ goal: 'look' }],
    channel: { kind: 'api_server', history_delivery: true },
  });
  expect(answer.status).toBe(202);
  await reportIdle(one, answer.body.tasks[0].child_session_id);
  await settled(parent);
  expect((await read(parent, { max: 1 })).items).toHaveLength(1);
  expect(noticesOf(parent)).toEqual([]);
});

describe('while items stay unread', () => {
  test('the wake is repeated, each time after twice as long', async () => {
    const parent = await newParent();
    await completes(parent);
    for (const delay of [120_000, 240_000]) {
      await repeatIsDue(parent);
      expect(await wakeOf(parent)).toMatchObject({ pending: true, repeat_delay_ms: delay });
    }
    expect(noticesOf(parent)).toEqual([notice(1), notice(1), notice(1)]);
  });

  test('not while a turn runs, but when it ends without having read', async () => {
    const parent = await newParent();
    await completes(parent);
    await says(parent, 'running');
    await repeatIsDue(parent);
    expect(noticesOf(parent)).toHaveLength(1);
    await says(parent, 'idle');
    expect(await wakeOf(parent)).toMatchObject({ repeat_at: expect.any(Date) });
    await repeatIsDue(parent);
    expect(noticesOf(parent)).toHaveLength(2);
  });

  test('also for items whose reader has died with its leases', async () => {
    const parent = await newParent();
    await completes(parent);
    await read(parent, { lease_seconds: 3600 });
    await repeatIsDue(parent);
    expect(noticesOf(parent)).toHaveLength(1);
    await database.sql`
      update items set leased_until = now() - interval '1 second' where session_id = ${parent}`;
    await repeatIsDue(parent);
    expect(noticesOf(parent)).toHaveLength(2);
  });

  test('also for items that a reader has given back, as if there had been no lease', async () => {
    const parent = await newParent();
    const { itemId } = await deliverTo(one, parent);
    await settled(parent);
    await read(parent, { lease_seconds: 3600 });
    await repeatIsDue(parent);
    const repeatIn = async () => Number((await wakeOf(parent))?.['repeat_at']) - Date.now();
    expect(await repeatIn()).toBeGreaterThan(3_000_000);
    await one.request('POST', `${path(parent)}/inbox/release`, { item_ids: [itemId] });
    await settled(parent);
    expect(await repeatIn()).toBeLessThanOrEqual(60_000);
  });

  test('no longer once they are acked', async () => {
    const parent = await newParent();
    await completes(parent);
    const { items } = await read(parent);
    await one.request('POST', `${path(parent)}/inbox/ack`, { item_ids: [items[0].id] });
    await settled(parent);
    expect(await wakeOf(parent)).toMatchObject({ pending: false, repeat_at: null });
  });
});

async function deliveredUntold(parent: string) {
  const delivered = await deliverTo(one, parent);
  await settled(parent);
  const before = noticesOf(parent).length;
  await database.sql`
    update wakes set pending = false, last_notice = null, repeat_at = null
    where session_id = ${parent}`;
  await database.sql`
    update items set delivered_at = now() - interval '1 minute' where session_id = ${parent}`;
  return { ...delivered, before };
}

async function swept(parent: string): Promise<void> {
  let after = await sweepUntold(two.resources, null);
  while (after !== null) after = await sweepUntold(two.resources, after);
  await settled(parent);
}

describe('a process that dies between the commit and the wake', () => {
  test('loses none: the sweep of another finds the parent, once', async () => {
    const parent = await newParent();
    const { before } = await deliveredUntold(parent);
    await swept(parent);
    expect(noticesOf(parent)).toHaveLength(before + 1);
    await swept(parent);
    expect(noticesOf(parent)).toHaveLength(before + 1);
  });

  test('and a parent of which there was no state yet as well', async () => {
    const parent = await newParent();
    const { before } = await deliveredUntold(parent);
    await database.sql`delete from wakes where session_id = ${parent}`;
    await swept(parent);
    expect(noticesOf(parent)).toHaveLength(before + 1);
  });
});

test('a result that came just before the inbox was known to be empty is told', async () => {
  const parent = await newParent();
  await completes(parent);
  await read(parent, { drain: true });
  await deliverTo(two, parent);
  await settled(parent);
  // As if this had been heard of before it was stepped: its wake would have been coalesced.
  await database.sql`update wakes set pending = true, as_of = 0 where session_id = ${parent}`;
  await stepParents(one.resources, [
    { kind: 'inbox_emptied', tenantId: 'default', sessionId: parent },
  ]);
  await settled(parent);
  expect(noticesOf(parent)).toHaveLength(3);
});

test('streams on both replicas are told what the webhook is told', async () => {
  const parent = await newParent();
  const streams = await Promise.all(
    [one, two].map((at) => openEventStream(at.url, `${path(parent)}/stream`)),
  );
  onTestFinished(() => streams.forEach((stream) => stream.close()));
  for (const stream of streams) await stream.next('session.snapshot');
  await completes(parent, two);
  for (const stream of streams) {
    expect((await stream.next('inbox.wake')).data).toMatchObject({
      pending: 1,
      notice: notice(1),
      item_id: expect.stringMatching(/^item_/),
    });
  }
});
