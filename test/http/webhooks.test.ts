import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { Webhook } from 'standardwebhooks';
import { describe, expect, test } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { deliverTo, freshId, path, reportIdle } from '../support/delivery.ts';
import { startService, useService } from '../support/service.ts';
import { useWebhookReceiver, type Reply } from '../support/webhook-receiver.ts';

const database = useDatabase();
const service = useService(database, { env: { WEBHOOK_ALLOW_PRIVATE: 'true' } });
const receiver = useWebhookReceiver();

const base64 = (bytes: number) => randomBytes(bytes).toString('base64');
const secret = () => `whsec_${base64(32)}`;
const put = (session: string, body: object, at = service) =>
  at.request('PUT', `${path(session)}/wake`, body);

/** A parent with an open inbox that is woken at a path of its own. */
async function wokenParent(hook: object = {}, ...replies: Reply[]) {
  const parent = freshId('parent');
  const at = `/${parent}`;
  receiver.reply(at, ...replies);
  await service.request('PUT', path(parent), { inbox: 'open' });
  const answer = await put(parent, { url: receiver.url(at), ...hook });
  expect(answer.status).toBe(200);
  return { parent, at };
}

async function dispatchTo(parent: string, createdBy?: string) {
  const child = freshId('child');
  const body = { child_session_id: child, agent: 'coder', title: 'fix', created_by: createdBy };
  const answer = await service.request('POST', `${path(parent)}/work`, body);
  expect(answer.status).toBe(201);
  return child;
}

const wakeState = async (parent: string) => {
  const [row] = await database.sql`select * from wakes where session_id = ${parent}`;
  return row;
};
const onTheWay = async (parent: string) => {
  const [row] = await database.sql`
    select count(*)::int as count from webhook_wakes where session_id = ${parent}`;
  return Number(row?.['count']);
};

describe('a webhook', () => {
  test('is put without its secret ever being shown', async () => {
    const parent = freshId('parent');
    const hidden = secret();
    const answer = await put(parent, { url: receiver.url('/x'), secret: hidden });
    expect(answer).toMatchObject({
      status: 200,
      body: { url: receiver.url('/x'), format: 'standard', signed: true },
    });
    const shown = await service.request('PUT', path(parent), { inbox: 'open' });
    for (const { body } of [answer, shown]) expect(JSON.stringify(body)).not.toContain(hidden);
  });

  test.each([
    [{ url: 'ftp://example.com/' }],
    [{ url: 'https://user:pass@example.com/' }],
    [{ url: 'nowhere' }],
    [{ url: 7 }],
    [{ url: `https://example.com/${'x'.repeat(3_000)}` }],
    [{ url: 'https://example.com/', format: 'slack' }],
    [{ url: 'https://example.com/', format: '' }],
  ])('is refused as %j', async (body) => {
    expect(await put(freshId(), body)).toMatchObject({ status: 400 });
  });

  test.each(['', 'whsec_'])('is refused with a secret that holds no key (%j)', async (prefix) => {
    const url = 'https://example.com/';
    for (const encoded of ['', 'short', '=', base64(23), base64(65), `${base64(24)}!`]) {
      const answer = await put(freshId(), { url, secret: prefix + encoded });
      expect(answer).toMatchObject({ status: 400, body: { errors: [{ path: 'secret' }] } });
    }
  });

  test.each([{}, { format: null }, { format: null, secret: null }])(
    'as %j is in the standard form, unsigned',
    async (hook) => {
      const answer = await put(freshId(), { url: receiver.url('/x'), ...hook });
      expect(answer).toMatchObject({ status: 200, body: { format: 'standard', signed: false } });
    },
  );

  test('is removed, which is harmless again', async () => {
    const { parent, at } = await wokenParent();
    for (let n = 0; n < 2; n += 1) {
      expect((await service.request('DELETE', `${path(parent)}/wake`)).status).toBe(204);
    }
    await deliverTo(service, parent);
    await service.resources.wakes.idle();
    expect(await onTheWay(parent)).toBe(0);
    expect(receiver.calls(at)).toEqual([]);
  });

  test('goes on with its session', async () => {
    const { parent, at } = await wokenParent();
    const after = freshId('after');
    await service.request('PUT', path(after), {});
    await service.request('PUT', path(parent), { continued_as: after });
    await deliverTo(service, after);
    const [call] = await receiver.received(at, 1);
    expect(call?.body.data.session_id).toBe(after);
  });

  test('goes with its deleted session', async () => {
    const { parent } = await wokenParent();
    await service.request('DELETE', path(parent));
    expect((await put(parent, { url: receiver.url('/x') })).status).toBe(404);
    const rows = await database.sql`select 1 from webhooks where session_id = ${parent}`;
    expect(rows).toHaveLength(0);
  });
});

describe('a wake in the standard form', () => {
  test.each([
    ['whsec_', 32],
    ['whsec_', 24],
    ['whsec_', 64],
    ['', 24],
    ['', 32],
    ['', 64],
  ])('carries a signature that the public library verifies (%j, %i bytes)', async (...made) => {
    const [prefix, bytes] = made;
    const hidden = prefix + base64(bytes);
    const { parent, at } = await wokenParent({ secret: hidden });
    const { itemId } = await deliverTo(service, parent);
    const [call] = await receiver.received(at, 1);
    const verified = new Webhook(hidden).verify(call?.text ?? '', {
      'webhook-id': String(call?.headers['webhook-id']),
      'webhook-timestamp': String(call?.headers['webhook-timestamp']),
      'webhook-signature': String(call?.headers['webhook-signature']),
    });
    expect(verified).toEqual({
      type: 'inbox.wake',
      timestamp: expect.stringMatching(/^\d{4}-.*Z$/),
      data: {
        session_id: parent,
        pending: 1,
        notice: expect.stringMatching(/^\[System: sub-agent .* 1 result waiting in inbox\./),
        item_id: itemId,
      },
    });
    expect(call?.headers).toMatchObject({
      'content-type': 'application/json',
      'webhook-id': expect.stringMatching(/^wake_[0-9a-f]+$/),
    });
    expect(() => new Webhook(secret()).verify(call?.text ?? '', call?.headers as never)).toThrow();
  });

  test('carries none where there is no secret', async () => {
    const { parent, at } = await wokenParent();
    await deliverTo(service, parent);
    const [call] = await receiver.received(at, 1);
    expect(call?.headers).toMatchObject({ 'webhook-timestamp': expect.stringMatching(/^\d+$/) });
    expect(call?.headers).not.toHaveProperty('webhook-signature');
  });
});

describe('a wake in the form of a session message', () => {
  test('is what a user of the session would post, by whoever dispatched the work', async () => {
    const { parent, at } = await wokenParent({ format: 'session_message' });
    await reportIdle(service, await dispatchTo(parent, 'user_7'));
    const [call] = await receiver.received(at, 1);
    expect(call?.body).toEqual({
      type: 'message',
      created_by: 'user_7',
      data: {
        role: 'user',
        content: [
          {
            type: 'input_text',
            text:
              '[System: sub-agent coder/fix finished (completed) — ' +
              '1 result waiting in inbox. Call sys_read_inbox to collect.]',
          },
        ],
      },
    });
    expect(call?.headers['webhook-id']).toMatch(/^wake_/);
  });

  test('leaves out who it was where nobody knows', async () => {
    const { parent, at } = await wokenParent({ format: 'session_message' });
    await deliverTo(service, parent);
    const [call] = await receiver.received(at, 1);
    expect(call?.body).not.toHaveProperty('created_by');
  });

  test('is tried once more, at once and without who it was, if that is forbidden', async () => {
    const { parent, at } = await wokenParent({ format: 'session_message' }, 403, 202);
    await reportIdle(service, await dispatchTo(parent, 'user_7'));
    const [first, second] = await receiver.received(at, 2);
    expect(first?.body.created_by).toBe('user_7');
    expect(second?.body).not.toHaveProperty('created_by');
    expect(second?.headers['webhook-id']).toBe(first?.headers['webhook-id']);
    expect(Number(second?.at) - Number(first?.at)).toBeLessThan(450);
    await expect.poll(() => onTheWay(parent)).toBe(0);
  });
});

describe('a receiver that', () => {
  test('answers 503 twice gets the same wake a third time, later each time', async () => {
    const { parent, at } = await wokenParent({}, 503, 503, 202);
    await deliverTo(service, parent);
    const calls = await receiver.received(at, 3);
    expect(new Set(calls.map((call) => call.headers['webhook-id'])).size).toBe(1);
    const [first, second, third] = calls.map((call) => call.at);
    expect(Number(second) - Number(first)).toBeGreaterThanOrEqual(490);
    expect(Number(third) - Number(second)).toBeGreaterThanOrEqual(990);
    await expect.poll(() => onTheWay(parent)).toBe(0);
    expect(await wakeState(parent)).toMatchObject({ pending: true });
  });

  test.each([
    ['answers 500 to every try', 500, 4],
    ['drops the connection', 'drop', 4],
    ['answers 404', 404, 1],
    ['changes the protocol', { status: 101, headers: { Connection: 'Upgrade', Upgrade: 'x' } }, 1],
  ] as const)(
    '%s is left alone after its last try, and woken by the next result',
    async (...row) => {
      const [, reply, tries] = row;
      const { parent, at } = await wokenParent({}, reply);
      await deliverTo(service, parent);
      await receiver.received(at, tries);
      await expect
        .poll(() => wakeState(parent), { timeout: 10_000 })
        .toMatchObject({
          pending: false,
        });
      expect(receiver.calls(at)).toHaveLength(tries);
      expect(await onTheWay(parent)).toBe(0);
      receiver.reply(at, 204);
      await deliverTo(service, parent);
      const calls = await receiver.received(at, tries + 1);
      expect(calls.at(-1)?.body.data.pending).toBe(2);
    },
  );

  test('refuses a notice does not get it again however often its parent says that it is idle', async () => {
    const { parent, at } = await wokenParent({}, 400);
    await deliverTo(service, parent);
    await receiver.received(at, 1);
    await expect.poll(() => wakeState(parent)).toMatchObject({ pending: false });
    for (let n = 0; n < 3; n += 1) {
      await reportIdle(service, parent);
      await service.resources.wakes.idle();
      expect(await wakeState(parent)).toMatchObject({ pending: false, announcements: 1 });
    }
    expect(await onTheWay(parent)).toBe(0);
    expect(receiver.calls(at)).toHaveLength(1);
  });

  test.each(['', '-elsewhere'])(
    'answers 503 gets the wake again where the webhook was put anew meanwhile (%j)',
    async (moved) => {
      const { parent, at } = await wokenParent({}, 503, 204);
      await deliverTo(service, parent);
      const [first] = await receiver.received(at, 1);
      expect((await put(parent, { url: receiver.url(at + moved) })).status).toBe(200);
      const again = (await receiver.received(at + moved, moved === '' ? 2 : 1)).at(-1);
      expect(again?.headers['webhook-id']).toBe(first?.headers['webhook-id']);
    },
  );

  test('asks for patience is not called before', async () => {
    const busy = { status: 429, headers: { 'Retry-After': '2' } };
    const { parent, at } = await wokenParent({}, busy, 204);
    await deliverTo(service, parent);
    const [first, second] = await receiver.received(at, 2);
    expect(Number(second?.at) - Number(first?.at)).toBeGreaterThanOrEqual(1_990);
  });

  test('is gone is not called again', async () => {
    const { parent, at } = await wokenParent({}, 410);
    await deliverTo(service, parent);
    await receiver.received(at, 1);
    await expect
      .poll(() => database.sql`select 1 from webhooks where session_id = ${parent}`)
      .toHaveLength(0);
    await deliverTo(service, parent);
    await service.resources.wakes.idle();
    expect(await onTheWay(parent)).toBe(0);
  });

  test.each([
    ['the same', {}],
    ['another secret', { secret: secret() }],
    ['another form', { format: 'session_message' }],
  ])('is gone too late removes no webhook that was put since (%s)', async (_, hook) => {
    const patience = new AbortController();
    const { parent, at } = await wokenParent(
      {},
      once(patience.signal, 'abort').then(() => 410),
      204,
    );
    await deliverTo(service, parent);
    await receiver.received(at, 1);
    expect((await put(parent, { url: receiver.url(at), ...hook })).status).toBe(200);
    patience.abort();
    await expect.poll(() => wakeState(parent)).toMatchObject({ pending: false });
    await deliverTo(service, parent);
    await receiver.received(at, 2);
  });

  test('takes long to answer is called once, and other results wait for it', async () => {
    const patience = new AbortController();
    const slow = once(patience.signal, 'abort').then(() => 204);
    const { parent, at } = await wokenParent({}, slow);
    await deliverTo(service, parent);
    await receiver.received(at, 1);
    await deliverTo(service, parent);
    await service.resources.wakes.idle();
    await service.resources.webhooks.sendDue();
    expect(receiver.calls(at)).toHaveLength(1);
    patience.abort();
    await expect.poll(() => onTheWay(parent)).toBe(0);
    expect(receiver.calls(at)).toHaveLength(1);
  });

  test('redirects is not followed', async () => {
    const elsewhere = `/${freshId('elsewhere')}`;
    const redirect = { status: 307, headers: { Location: receiver.url(elsewhere) } };
    const { parent, at } = await wokenParent({}, redirect);
    await deliverTo(service, parent);
    await receiver.received(at, 1);
    await expect.poll(() => wakeState(parent)).toMatchObject({ pending: false });
    expect(receiver.calls(elsewhere)).toEqual([]);
    expect(receiver.calls(at)).toHaveLength(1);
  });
});

test('wakes whose webhook went at the moment they were announced hold up no others', async () => {
  await database.sql`
    insert into webhook_wakes (tenant_id, session_id, id, number, notice, pending, due_at, created_at)
    select 'default', 'left-' || n, 'wake_' || n, 1, '', 1, now() - interval '1 hour', now()
    from generate_series(1, 64) n`;
  const { parent, at } = await wokenParent();
  await deliverTo(service, parent);
  await receiver.received(at, 1);
});

describe('without leave to go into private networks', () => {
  const names: Record<string, string[]> = {
    'rebound.example': ['127.0.0.1'],
    'mixed.example': ['93.184.215.14', '10.0.0.1'],
    'mapped.example': ['::ffff:127.0.0.1'],
  };
  const careful = useService(database, {
    resolveName: (name, answer) =>
      answer(
        null,
        (names[name] ?? []).map((address) => ({ address, family: address.includes(':') ? 6 : 4 })),
      ),
  });

  test.each([
    'http://127.0.0.1/',
    'http://2130706433/',
    'http://0x7f.1/',
    'http://[::1]/',
    'http://[::ffff:127.0.0.1]/',
    'http://[64:ff9b::7f00:1]/',
    'http://10.1.2.3/',
    'http://172.31.0.1/',
    'http://192.168.1.1/',
    'http://169.254.169.254/latest/meta-data',
    'http://100.100.100.200/',
    'http://0.0.0.0/',
    'http://[fe80::1]/',
    'http://[fd00::1]/',
    'http://localhost/',
    'http://LOCALHOST./',
    'http://metadata.google.internal/',
  ])('%s is refused', async (url) => {
    expect(await put(freshId(), { url }, careful)).toMatchObject({
      status: 400,
      body: { errors: [{ path: 'url' }] },
    });
  });

  test.each(Object.keys(names))(
    'nothing is sent to %s, whose name only turns out to lead there',
    async (name) => {
      const parent = freshId('parent');
      const at = `/${parent}`;
      const url = receiver.url(at).replace('127.0.0.1', name);
      await careful.request('PUT', path(parent), { inbox: 'open' });
      expect((await put(parent, { url }, careful)).status).toBe(200);
      await deliverTo(careful, parent);
      // At once: no later try would end otherwise.
      await expect.poll(() => wakeState(parent)).toMatchObject({ pending: false });
      expect(receiver.calls(at)).toEqual([]);
    },
  );
});

describe('over two replicas', () => {
  test('a wake is sent once, whichever sends it', async () => {
    const other = await startService(database, { env: { WEBHOOK_ALLOW_PRIVATE: 'true' } });
    const woken = await Promise.all(Array.from({ length: 20 }, () => wokenParent()));
    await Promise.all(
      woken.map(({ parent }, n) => deliverTo(n % 2 === 0 ? service : other, parent)),
    );
    await Promise.all(woken.map(({ at }) => receiver.received(at, 1)));
    await Promise.all([service, other].flatMap(({ resources }) => [resources.webhooks.sendDue()]));
    expect(woken.flatMap(({ at }) => receiver.calls(at))).toHaveLength(20);
    await other.stop();
  });

  test('a wake whose sender died is sent by another when its lease has ended, not before', async () => {
    const { parent, at } = await wokenParent({}, 'never');
    const dying = await startService(database, { env: { WEBHOOK_ALLOW_PRIVATE: 'true' } });
    await deliverTo(service, parent);
    await receiver.received(at, 1);
    await dying.resources.webhooks.sendDue();
    expect(receiver.calls(at)).toHaveLength(1);
    receiver.reply(at, 204);
    await database.sql`
      update webhook_wakes set due_at = now() - interval '1 second' where session_id = ${parent}`;
    await dying.resources.webhooks.sendDue();
    const [first, second] = await receiver.received(at, 2);
    expect(second?.headers['webhook-id']).toBe(first?.headers['webhook-id']);
    await expect.poll(() => onTheWay(parent)).toBe(0);
    await dying.stop();
  });
});
