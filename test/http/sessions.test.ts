import { createServer, type RequestListener, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import * as fc from 'fast-check';
import { afterEach, describe, expect, it, test } from 'vitest';
import { createTestClock } from '../support/clock.ts';
import { useDatabase } from '../support/database.ts';
import { countDeadlocks } from '../support/counters.ts';
import { longText } from '../support/long-text.ts';
import { startService, useService, type TestService } from '../support/service.ts';

const database = useDatabase();
const clock = createTestClock();
const service = useService(database, { clock });

let made = 0;
/** An id that no other test has. */
const newId = (name: string) => `${name}-${(made += 1)}`;
const path = (id: string) => `/v1/sessions/${encodeURIComponent(id)}`;

const put = (id: string, body: object = {}) => service.request('PUT', path(id), body);
const post = (body: object) => service.request('POST', '/v1/sessions', body);
const get = (id: string) => service.request('GET', path(id));
const remove = (id: string) => service.request('DELETE', path(id));
const report = (id: string, data: object) =>
  service.request('POST', `${path(id)}/events`, { type: 'external_session_status', data });
const finish = (id: string, output = 'done') => report(id, { status: 'idle', output });
const children = (id: string, query = '') =>
  service.request('GET', `${path(id)}/child_sessions${query}`);

/** The outputs in a session's inbox, in the order of delivery. */
async function inboxOf(id: string): Promise<string[]> {
  const rows = await database.sql<{ output: string }[]>`
    select output from items where session_id = ${id} order by seq`;
  return rows.map(({ output }) => output);
}

async function rowOf(id: string) {
  const [row] = await database.sql`select * from sessions where id = ${id}`;
  return row;
}

/** For each session the last one of its chain, or null. */
const tips = async (...ids: string[]) =>
  await Promise.all(ids.map(async (id) => (await rowOf(id))?.['tip_session_id'] ?? null));

/** Each chain ends where its links lead. */
async function expectWholeChains(ids: string[]): Promise<void> {
  const rows = await database.sql`
    with recursive walk(start, id) as (
      select id, id from sessions where id = any(${ids})
      union
      select walk.start, s.continued_as from walk join sessions s on s.id = walk.id
      where s.continued_as is not null
    )
    select walk.start, walk.id as walked, coalesce(t.tip_session_id, t.id) as stored
    from walk join sessions s on s.id = walk.id join sessions t on t.id = walk.start
    where s.continued_as is null`;
  expect(rows).toHaveLength(ids.length);
  for (const row of rows) expect(row['stored']).toBe(row['walked']);
}

/** A parent with an open inbox and a child of it. */
async function family(): Promise<{ parent: string; child: string }> {
  const [parent, child] = [newId('parent'), newId('child')];
  await put(parent, { inbox: 'open' });
  await put(child, { parent_session_id: parent });
  return { parent, child };
}

describe('PUT', () => {
  it('makes a session anew that is deleted while it is repeated', async () => {
    const id = newId('s');
    await put(id, { title: 'one' });
    const other = await database.sql.reserve();
    await other`begin`;
    // What is shown of a session is read behind its row.
    await other`lock table parked_reports in access exclusive mode`;
    const repeat = put(id, { title: 'one' });
    const waiting = () => database.sql`
      select 1 from pg_locks where not granted and relation = 'parked_reports'::regclass`;
    await expect.poll(waiting).toHaveLength(1);
    await other`update sessions set described_at = null, deleted_at = now() where id = ${id}`;
    await other`commit`;
    other.release();
    expect(await repeat).toMatchObject({ status: 201, body: { title: 'one' } });
  });

  it('creates a session, says where it is, and shows all of it', async () => {
    const [id, parent] = [newId('c'), newId('p')];
    const said = {
      parent_session_id: parent,
      agent_id: 'agent-1',
      agent_name: 'coder',
      sub_agent_name: 'reviewer',
      title: 'tool:name',
      workspace: '/work',
      runner_id: 'runner-1',
      channel: { kind: 'cli', async_delivery: false, route: 'r' },
      max_concurrent: 3,
    };
    const created = await put(id, said);
    expect(created.status).toBe(201);
    expect(created.headers['location']).toBe(path(id));
    expect(created.body).toEqual({
      ...said,
      id,
      root_session_id: parent,
      created_at: new Date(clock.now()).toISOString(),
      continued_as: null,
      status: 'idle',
      busy: false,
      background_task_count: 0,
      blocked_on: null,
      last_task_error: null,
      closed_at: null,
      end_reason: null,
      inbox: null,
      work: null,
    });
    expect((await get(id)).body).toEqual(created.body);
  });

  it('updates what it names, keeps what it leaves out, clears what is null', async () => {
    const id = newId('c');
    await put(id, { title: 't', workspace: '/w', agent_name: 'a', max_concurrent: 2 });
    const updated = await put(id, { title: 'new', workspace: null });
    expect(updated.status).toBe(200);
    expect(updated.body).toMatchObject({
      title: 'new',
      workspace: null,
      agent_name: 'a',
      max_concurrent: 2,
    });
  });

  it('with an empty body, or none, creates a session of which nothing is known', async () => {
    const [id, other] = [newId('c'), newId('c')];
    expect((await put(id)).status).toBe(201);
    expect((await service.request('PUT', path(other))).status).toBe(201);
    expect((await get(id)).body).toMatchObject({ root_session_id: id, parent_session_id: null });
  });

  it('repeated writes nothing', async () => {
    const id = newId('c');
    const said = {
      parent_session_id: newId('p'),
      title: 't',
      channel: { kind: 'cli', route: null },
    };
    await put(id, said);
    const before = await database.sql`select xmin from sessions where id = ${id}`;
    expect((await put(id, said)).status).toBe(200);
    expect(await database.sql`select xmin from sessions where id = ${id}`).toEqual(before);
  });

  it('is the same as POST with the id in the body', async () => {
    const id = newId('c');
    expect((await post({ session_id: id, title: 't' })).status).toBe(201);
    expect((await post({ session_id: id, workspace: '/w' })).status).toBe(200);
    expect((await get(id)).body).toMatchObject({ id, title: 't', workspace: '/w' });
    expect((await post({ title: 't' })).status).toBe(400);
    expect((await post({ session_id: '..' })).status).toBe(400);
  });

  it('opens the inbox, harmlessly again', async () => {
    const id = newId('p');
    expect((await put(id, { inbox: 'open' })).body.inbox).toEqual({ open: true, pending: 0 });
    expect((await put(id, { inbox: 'open' })).body.inbox).toEqual({ open: true, pending: 0 });
    expect((await put(id, { inbox: null })).body.inbox).toEqual({ open: true, pending: 0 });
  });

  test.each<[string, unknown]>([
    ['parent_session_id', 5],
    ['parent_session_id', ''],
    ['parent_session_id', '.'],
    ['parent_session_id', 'a\u0000b'],
    ['parent_session_id', '\ud800'],
    ['parent_session_id', 'x'.repeat(256)],
    ['parent_session_id', {}],
    ['agent_id', 'x'.repeat(513)],
    ['agent_name', []],
    ['sub_agent_name', 1],
    ['title', { toString: 'x' }],
    ['title', true],
    ['workspace', 0],
    ['runner_id', false],
    ['channel', 'cli'],
    ['channel', []],
    ['channel', {}],
    ['channel', { kind: null }],
    ['channel', { kind: 'cli', async_delivery: 'true' }],
    ['channel', { kind: 'cli', route: 1 }],
    ['max_concurrent', 0],
    ['max_concurrent', -1],
    ['max_concurrent', 1.5],
    ['max_concurrent', '3'],
    ['max_concurrent', true],
    ['continued_as', 7],
    ['continued_as', '..'],
    ['inbox', 'closed'],
    ['inbox', true],
    ['inbox', {}],
  ])('refuses %s %j, naming the field, and stores nothing', async (field, value) => {
    const id = newId('c');
    const refused = await put(id, { [field]: value });
    expect(refused.status).toBe(400);
    expect(refused.body.error).toBe('invalid_input');
    expect(refused.body.errors[0].path).toContain(field);
    expect(await rowOf(id)).toBeUndefined();
  });

  test.each([['null'], ['[]'], ['"x"'], ['5'], ['{'], ['{"title":"x"']])(
    'refuses the body %s',
    async (body) => {
      const id = newId('c');
      expect((await service.request('PUT', path(id), body)).status).toBe(400);
      expect(await rowOf(id)).toBeUndefined();
    },
  );

  it('ignores unknown keys, clamps what is too large, and takes an empty name for none', async () => {
    const id = newId('c');
    const body = JSON.stringify({ max_concurrent: 1e12, agent_name: '', unknown: { a: 1 } });
    const created = await service.request(
      'PUT',
      path(id),
      `{"__proto__":{"title":"x"},${body.slice(1)}`,
    );
    expect(created.status).toBe(201);
    expect(created.body).toMatchObject({ max_concurrent: 10_000, agent_name: null, title: null });
  });

  it('stores NUL and lone surrogates as U+FFFD, and all else as it is', async () => {
    const id = newId('c');
    const evil = 'a\u0000b\ud800c\u001b[31m😀\u202e"\\';
    const kept = 'a\ufffdb\ufffdc\u001b[31m😀\u202e"\\';
    const created = await put(id, {
      title: evil,
      agent_name: evil,
      sub_agent_name: evil,
      workspace: evil,
      channel: { kind: evil, route: evil },
    });
    expect(created.body).toMatchObject({
      title: kept,
      agent_name: kept,
      sub_agent_name: kept,
      workspace: kept,
      channel: { kind: kept, route: kept },
    });
  });

  test.each([['__proto__'], ['constructor'], ['a/b:c@d#e%f?g'], ['😀 ü'], ["'; drop table x--"]])(
    'takes %s for an id like any other',
    async (id) => {
      expect((await put(id, { parent_session_id: `${id}-parent` })).status).toBe(201);
      expect((await get(id)).body).toMatchObject({ id, root_session_id: `${id}-parent` });
      expect((await put(`${id}-parent`)).status).toBe(201);
      expect((await children(`${id}-parent`)).body.data[0].id).toBe(id);
      expect((await remove(id)).status).toBe(204);
      expect((await get(id)).status).toBe(404);
    },
  );
});

describe('a session that was only named', () => {
  it('is not known, whether as a parent or as a continuation', async () => {
    const [id, parent, next] = [newId('c'), newId('p'), newId('n')];
    await put(id, { parent_session_id: parent, continued_as: next });
    for (const stub of [parent, next]) {
      expect((await get(stub)).status).toBe(404);
      expect((await children(stub)).status).toBe(404);
    }
  });

  it('is created by PUT, with the time of the PUT', async () => {
    const [id, parent] = [newId('c'), newId('p')];
    await put(id, { parent_session_id: parent });
    clock.advance(60_000);
    const created = await put(parent);
    expect(created.status).toBe(201);
    expect(created.body.created_at).toBe(new Date(clock.now()).toISOString());
    expect((await children(parent)).body.data).toHaveLength(1);
  });

  it('is not even a stub where what names it is refused', async () => {
    const { child } = await family();
    const stub = newId('s');
    expect((await put(child, { parent_session_id: stub })).status).toBe(409);
    expect((await put(child, { continued_as: child, workspace: stub })).status).toBe(400);
    expect(await rowOf(stub)).toBeUndefined();
  });
});

describe('a parent', () => {
  it('can be set later, but neither changed nor cleared', async () => {
    const [id, parent] = [newId('c'), newId('p')];
    await put(id);
    expect((await put(id, { parent_session_id: parent })).status).toBe(200);
    for (const parent_session_id of [newId('q'), id, null]) {
      const refused = await put(id, { parent_session_id, title: 'x' });
      expect(refused.status).toBe(409);
      expect(refused.body).toMatchObject({ error: 'conflict', reason: 'parent_mismatch' });
    }
    expect((await get(id)).body).toMatchObject({ parent_session_id: parent, title: null });
    expect((await put(id, { parent_session_id: parent, title: 'x' })).status).toBe(200);
  });

  it('may be the session itself, which is then its own root and not its own child', async () => {
    const id = newId('c');
    expect((await put(id, { parent_session_id: id })).status).toBe(201);
    expect((await get(id)).body).toMatchObject({ root_session_id: id, parent_session_id: id });
    expect((await children(id)).body.data).toEqual([]);
    expect((await finish(id)).headers['delivery-outcome']).toBe('not_a_subagent');
  });

  it('is refused where it descends from the session, however deep', async () => {
    const ids = Array.from({ length: 5 }, () => newId('c'));
    for (const [n, id] of ids.slice(1).entries()) {
      await put(id, { parent_session_id: ids[n] ?? null });
    }
    const [top, ...below] = ids;
    for (const parent_session_id of below) {
      const refused = await put(top ?? '', { parent_session_id });
      expect(refused.status).toBe(400);
      expect(refused.body.errors[0].path).toBe('parent_session_id');
    }
    expect((await get(ids.at(-1) ?? '')).body.root_session_id).toBe(top);
  });

  it('never closes a cycle, whoever names whom at once', async () => {
    for (let round = 0; round < 15; round += 1) {
      const ids = Array.from({ length: 4 }, () => newId('ring'));
      await Promise.all(ids.map((id) => put(id)));
      const answers = await Promise.all(
        ids.map((id, n) => put(id, { parent_session_id: ids[(n + 1) % ids.length] })),
      );
      expect(answers.filter(({ status }) => status === 400)).toHaveLength(1);
      expect(answers.filter(({ status }) => status === 200)).toHaveLength(3);
    }
  });

  it('never closes a cycle among sessions that are all being created', async () => {
    for (let round = 0; round < 15; round += 1) {
      const ids = Array.from({ length: 3 }, () => newId('ring'));
      const answers = await Promise.all(
        ids.map((id, n) => put(id, { parent_session_id: ids[(n + 1) % ids.length] })),
      );
      expect(answers.filter(({ status }) => status === 400)).toHaveLength(1);
    }
  });
});

describe('GET', () => {
  it('answers 404 for a session that was never named', async () => {
    const answer = await get(newId('nobody'));
    expect(answer.status).toBe(404);
    expect(answer.body.error).toBe('not_found');
  });

  it('shows status, error, work and inbox as reports leave them', async () => {
    const { parent, child } = await family();
    await report(child, { status: 'running', background_task_count: 2 });
    expect((await get(child)).body).toMatchObject({
      status: 'running',
      busy: true,
      background_task_count: 2,
      work: null,
    });
    await report(child, { status: 'failed', output: 'boom' });
    expect((await get(child)).body).toMatchObject({
      status: 'failed',
      busy: false,
      background_task_count: 0,
      last_task_error: { code: 'turn_error', message: 'boom' },
      work: {
        parent_session_id: parent,
        child_session_id: child,
        agent: 'sub-agent',
        title: '',
        status: 'failed',
        recovered: true,
        ended_at: new Date(clock.now()).toISOString(),
      },
    });
    expect((await get(parent)).body.inbox).toEqual({ open: true, pending: 1 });
  });

  it('finds the root over many generations, known or not', async () => {
    const ids = Array.from({ length: 30 }, () => newId('generation'));
    for (const [n, id] of ids.slice(1).entries()) {
      await put(id, { parent_session_id: ids[n] ?? null });
    }
    expect((await get(ids.at(-1) ?? '')).body.root_session_id).toBe(ids[0]);
  });
});

describe('what waits for a session', () => {
  it('is delivered when the session becomes known, before the PUT is answered', async () => {
    const [parent, child] = [newId('p'), newId('c')];
    await put(parent, { inbox: 'open' });
    expect((await finish(child, 'early')).body.reason).toBe('unknown_session');
    await put(child, { parent_session_id: parent });
    expect(await inboxOf(parent)).toEqual(['early']);
    expect((await finish(child, 'early')).headers['delivery-outcome']).toBe('already_delivered');
  });

  it('is delivered when its parent becomes known', async () => {
    const [parent, child] = [newId('p'), newId('c')];
    await put(parent, { inbox: 'open' });
    await put(child, { sub_agent_name: 'reviewer' });
    expect((await finish(child)).body.reason).toBe('missing_work_entry');
    await put(child, { parent_session_id: parent });
    expect(await inboxOf(parent)).toEqual(['done']);
  });

  it('is delivered when the inbox opens, for all children', async () => {
    const parent = newId('p');
    const ids = Array.from({ length: 5 }, () => newId('c'));
    await Promise.all(ids.map((id) => put(id, { parent_session_id: parent })));
    for (const id of ids) {
      expect((await finish(id, id)).body.reason).toBe('missing_parent_inbox');
    }
    expect((await put(parent, { inbox: 'open' })).body.inbox).toEqual({ open: true, pending: 5 });
    expect((await inboxOf(parent)).toSorted()).toEqual(ids.toSorted());
  });

  it('is never parked beside an open inbox, however they meet', async () => {
    for (let round = 0; round < 40; round += 1) {
      const [parent, child] = [newId('p'), newId('c')];
      await put(child, { parent_session_id: parent });
      await Promise.all([finish(child), put(parent, { inbox: 'open' })]);
      await expect.poll(() => inboxOf(parent), { timeout: 2_000 }).toEqual(['done']);
    }
  });
});

describe('DELETE', () => {
  it('takes the session; it is 404 until it is created again; again is 204', async () => {
    const { parent, child } = await family();
    expect((await remove(child)).status).toBe(204);
    expect((await remove(child)).status).toBe(204);
    expect((await get(child)).status).toBe(404);
    expect((await children(child)).status).toBe(404);
    expect((await children(parent)).body.data).toEqual([]);
  });

  it('of a session that was never named leaves a marker', async () => {
    const id = newId('nobody');
    for (const _ of ['at first', 'again']) expect((await remove(id)).status).toBe(204);
    expect(await rowOf(id)).toMatchObject({ deleted_at: expect.any(Date) });
  });

  it('of a stub leaves a marker: its children have no parent any more', async () => {
    const [parent, child] = [newId('p'), newId('c')];
    await put(child, { parent_session_id: parent });
    await remove(parent);
    expect(await rowOf(parent)).toMatchObject({ deleted_at: expect.any(Date) });
    expect((await get(child)).status).toBe(404);
  });

  it('takes all descendants, and nobody else', async () => {
    const [top, left, right, leaf, other] = ['t', 'l', 'r', 'leaf', 'o'].map(newId) as [
      string,
      string,
      string,
      string,
      string,
    ];
    await put(left, { parent_session_id: top });
    await put(right, { parent_session_id: top });
    await put(leaf, { parent_session_id: left });
    await put(other, { parent_session_id: right });
    await remove(left);
    const statuses = await Promise.all(
      [left, leaf, right, other].map(async (id) => (await get(id)).status),
    );
    expect(statuses).toEqual([404, 404, 200, 200]);
  });

  it('of a session that is its own parent ends', async () => {
    const [id, child] = [newId('c'), newId('c')];
    await put(id, { parent_session_id: id });
    await put(child, { parent_session_id: id });
    expect((await remove(id)).status).toBe(204);
    expect((await get(child)).status).toBe(404);
  });

  it('leaves what the child has delivered in the inbox of its parent', async () => {
    const { parent, child } = await family();
    await finish(child, 'kept');
    await remove(child);
    expect(await inboxOf(parent)).toEqual(['kept']);
    expect((await get(parent)).body.inbox).toEqual({ open: true, pending: 1 });
  });

  it('empties the inboxes of those it takes, and forgets their work and texts', async () => {
    const { parent, child } = await family();
    await service.request('POST', `${path(child)}/events`, {
      type: 'external_conversation_item',
      data: {
        item_type: 'message',
        item_data: { role: 'assistant', content: [{ type: 'output_text', text: 'said' }] },
      },
    });
    await report(child, { status: 'idle', output: 'x', response_id: 'r1' });
    await remove(parent);
    expect(await inboxOf(parent)).toEqual([]);
    const [left] = await database.sql`
      select (select count(*)::int from work where child_session_id = ${child}) as work,
        (select count(*)::int from turn_responses where child_session_id = ${child}) as responses,
        (select count(*)::int from assistant_texts where session_id = ${child}) as texts`;
    expect(left).toEqual({ work: 0, responses: 0, texts: 0 });
    expect(await rowOf(child)).toMatchObject({ parent_session_id: null, current_work_id: null });
  });

  it('turns what is parked into a dead letter: nothing is dropped silently', async () => {
    const [parent, child] = [newId('p'), newId('c')];
    await put(child, { parent_session_id: parent });
    expect((await finish(child, 'precious')).status).toBe(503);
    await remove(parent);
    const dead = await database.sql`
      select state, reason, output from parked_reports where child_session_id = ${child}`;
    expect(dead).toEqual([{ state: 'dead', reason: 'parent_gone', output: 'precious' }]);
  });

  it('makes later reports dead letters', async () => {
    const { parent, child } = await family();
    await remove(parent);
    const late = await finish(child, 'late');
    expect([late.status, late.headers['delivery-outcome']]).toEqual([204, 'parent_gone']);
    expect(await inboxOf(parent)).toEqual([]);
  });

  it('takes thousands of descendants, wide and deep', async () => {
    const top = newId('top');
    await put(top, { inbox: 'open' });
    await database.sql`
      insert into sessions (tenant_id, id, created_at, described_at, parent_session_id)
      select 'default', ${top} || '-w' || n, now(), now(), ${top} from generate_series(1, 2000) n
      union all
      select 'default', ${top} || '-d' || n, now(), now(),
        case n when 1 then ${top} else ${top} || '-d' || (n - 1) end
      from generate_series(1, 1500) n`;
    await database.sql`
      insert into items (tenant_id, session_id, seq, source, type, agent, title, status, output, delivered_at)
      select 'default', ${top}, -n, ${top} || n, 'sub_agent', 'a', '', 'completed', 'x', now()
      from generate_series(1, 12000) n`;
    expect((await remove(top)).status).toBe(204);
    const [left] = await database.sql`
      select count(*) filter (where deleted_at is null)::int as alive, count(*)::int as all,
        (select count(*)::int from items where session_id = ${top}) as items
      from sessions where id like ${`${top}%`}`;
    expect(left).toEqual({ alive: 0, all: 3501, items: 0 });
  });
});

describe('a session that is created again after it was deleted', () => {
  it('is a new one: nothing of the old one is left', async () => {
    const { parent, child } = await family();
    await put(child, {
      title: 'old',
      channel: { kind: 'cli' },
      continued_as: newId('n'),
      inbox: 'open',
    });
    await report(child, { status: 'failed', output: 'boom' });
    const before = (await get(child)).body;
    await remove(child);
    clock.advance(1_000);
    const again = await put(child);
    expect(again.status).toBe(201);
    expect(again.body).toEqual({
      ...before,
      created_at: new Date(clock.now()).toISOString(),
      root_session_id: child,
      parent_session_id: null,
      title: null,
      channel: null,
      continued_as: null,
      status: 'idle',
      last_task_error: null,
      inbox: null,
      work: null,
    });
    expect(await inboxOf(parent)).toEqual(['boom']);
  });

  it('may have another parent, and delivers the same text again', async () => {
    const { parent, child } = await family();
    const other = newId('p');
    await put(other, { inbox: 'open' });
    await report(child, { status: 'idle', output: 'x', response_id: 'r' });
    await remove(child);
    await put(child, { parent_session_id: other });
    const delivered = await report(child, { status: 'idle', output: 'x', response_id: 'r' });
    expect(delivered.headers['delivery-outcome']).toBe('delivered');
    expect([await inboxOf(parent), await inboxOf(other)]).toEqual([['x'], ['x']]);
  });

  it('does not take its dead letters for its own, nor loses them', async () => {
    const { parent, child } = await family();
    for (const life of ['first', 'second', 'third']) {
      await remove(child);
      expect((await finish(child, life)).headers['delivery-outcome']).toBe('parent_gone');
      expect((await finish(child, life)).headers['delivery-outcome']).toBe('parent_gone');
      await put(child, { parent_session_id: parent });
    }
    const unopened = newId('p');
    await remove(child);
    await put(child, { parent_session_id: unopened });
    const first = await finish(child, 'parked');
    expect([first.status, first.headers['retry-after']]).toEqual([503, '1']);
    const rows = await database.sql`
      select state, output from parked_reports where child_session_id = ${child} order by first_at, turn`;
    expect(rows.map((row) => `${row['state']} ${row['output']}`).toSorted()).toEqual([
      'dead first',
      'dead second',
      'dead third',
      'parked parked',
    ]);
  });
});

describe('a session that goes on under another id', () => {
  it('has its items delivered to the last session of the chain', async () => {
    const { parent, child } = await family();
    const [second, third] = [newId('second'), newId('third')];
    await put(parent, { continued_as: second });
    await put(second, { continued_as: third });
    await finish(child);
    expect(await inboxOf(third)).toEqual(['done']);
    expect((await get(parent)).body).toMatchObject({
      continued_as: second,
      inbox: { open: true, pending: 1 },
    });
  });

  const orders = [
    [0, 1, 2],
    [0, 2, 1],
    [1, 0, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
  ] as const;
  it.each(orders)(
    'has its unread items moved, in whatever order a chain of four is made: %i %i %i',
    async (...order) => {
      const { parent, child } = await family();
      const ids = [parent, newId('b'), newId('c'), newId('d')] as const;
      await finish(child, 'unread');
      for (const at of order) await put(ids[at], { continued_as: ids[at + 1] ?? null });
      expect(await tips(...ids)).toEqual([ids[3], ids[3], ids[3], null]);
      expect(await inboxOf(ids[3])).toEqual(['unread']);
      await report(child, { status: 'running' });
      await finish(child, 'later');
      expect(await inboxOf(ids[3])).toEqual(['unread', 'later']);
    },
  );

  it('leaves what was acked where it was read, and ends the leases of what moves', async () => {
    const { parent, child } = await family();
    await finish(child, 'read');
    await database.sql`update items set acked_at = now() where session_id = ${parent}`;
    await report(child, { status: 'running' });
    await finish(child, 'leased');
    await database.sql`
      update items set leased_until = now() + interval '1 hour', delivery_count = 1
      where session_id = ${parent} and acked_at is null`;
    const [before] = await database.sql`
      select seq from items where session_id = ${parent} and acked_at is null`;
    const next = newId('next');
    await put(parent, { continued_as: next });
    expect(await inboxOf(parent)).toEqual(['read']);
    const moved = await database.sql`
      select seq, leased_until, delivery_count from items where session_id = ${next}`;
    expect(moved).toEqual([{ seq: before?.['seq'], leased_until: null, delivery_count: 1 }]);
  });

  it('may go on as yet another one: its own unread items follow, those of others stay', async () => {
    const { parent, child } = await family();
    const [first, second, childOfFirst] = [newId('first'), newId('second'), newId('c')];
    await put(parent, { continued_as: first });
    await put(childOfFirst, { parent_session_id: first });
    await finish(child, 'mine');
    await finish(childOfFirst, 'theirs');
    expect(await inboxOf(first)).toEqual(['mine', 'theirs']);
    await put(parent, { continued_as: second });
    expect([await inboxOf(first), await inboxOf(second)]).toEqual([['theirs'], ['mine']]);
    await put(parent, { continued_as: null });
    expect([await inboxOf(second), await inboxOf(parent)]).toEqual([[], ['mine']]);
    const sibling = newId('c');
    await put(sibling, { parent_session_id: parent });
    await finish(sibling, 'later');
    expect(await inboxOf(parent)).toEqual(['mine', 'later']);
  });

  it('takes those along that go on as it', async () => {
    const [a, b, c, d] = ['a', 'b', 'c', 'd'].map(newId) as [string, string, string, string];
    await put(a, { continued_as: c });
    await put(b, { continued_as: c });
    await put(c, { continued_as: d });
    expect(await tips(a, b, c)).toEqual([d, d, d]);
    await put(c, { continued_as: null });
    expect(await tips(a, b, c)).toEqual([c, c, null]);
    await put(a, { continued_as: null });
    expect(await tips(a, b, c)).toEqual([null, c, null]);
  });

  it('never comes back to itself', async () => {
    const [a, b, c] = ['a', 'b', 'c'].map(newId) as [string, string, string];
    await put(a, { continued_as: b });
    await put(b, { continued_as: c });
    for (const [id, continued_as] of [
      [a, a],
      [b, a],
      [c, a],
      [c, b],
    ] as const) {
      const refused = await put(id, { continued_as });
      expect(refused.status).toBe(400);
      expect(refused.body.errors[0].path).toBe('continued_as');
    }
    expect(await tips(a, b)).toEqual([c, c]);
    // Once the chain is cut it may go the other way.
    await put(a, { continued_as: null });
    expect((await put(c, { continued_as: a })).status).toBe(201);
  });

  it('never comes back to itself when all links are made at once', async () => {
    for (let round = 0; round < 15; round += 1) {
      const ids = Array.from({ length: 3 }, () => newId('ring'));
      const answers = await Promise.all(
        ids.map((id, n) => put(id, { continued_as: ids[(n + 1) % ids.length] })),
      );
      expect(answers.filter(({ status }) => status === 400)).toHaveLength(1);
      const cut = answers.findIndex(({ status }) => status === 400);
      const tip = ids[cut] ?? '';
      const others = ids.filter((id) => id !== tip);
      expect(await tips(...others, tip)).toEqual([tip, tip, null]);
    }
  });

  it('is no child of it', async () => {
    const [a, b] = [newId('a'), newId('b')];
    await put(b);
    await put(a, { continued_as: b });
    expect((await children(a)).body.data).toEqual([]);
    expect((await get(b)).body.root_session_id).toBe(b);
    await remove(a);
    expect((await get(b)).status).toBe(200);
  });

  it('takes its open inbox along, but opens none that was closed on purpose', async () => {
    const { parent, child } = await family();
    const next = newId('next');
    await put(next, { inbox: 'open' });
    await database.sql`update sessions set inbox_closed_at = now() where id = ${next}`;
    await put(parent, { continued_as: next });
    expect((await finish(child)).body.reason).toBe('missing_parent_inbox');
    // The inbox of a session is that of the last one of its chain.
    await put(parent, { inbox: 'open' });
    expect(await inboxOf(next)).toEqual(['done']);
  });

  it('has what was parked for it delivered where it goes on', async () => {
    const [parent, child, next] = [newId('p'), newId('c'), newId('n')];
    await put(next, { inbox: 'open' });
    await put(child, { parent_session_id: parent });
    expect((await finish(child, 'waiting')).status).toBe(503);
    await put(parent, { continued_as: next });
    expect(await inboxOf(next)).toEqual(['waiting']);
  });

  it('goes on through one that was deleted, and not at all to one', async () => {
    const { parent, child } = await family();
    const [middle, last] = [newId('middle'), newId('last')];
    await put(parent, { continued_as: middle });
    await put(middle, { continued_as: last });
    await remove(middle);
    await finish(child, 'through');
    expect(await inboxOf(last)).toEqual(['through']);
    await remove(last);
    await report(child, { status: 'running' });
    expect((await finish(child, 'lost')).headers['delivery-outcome']).toBe('parent_gone');
  });

  it('has a full inbox moved, though that takes longer than other requests may', async () => {
    const [parent, next] = [newId('p'), newId('n')];
    await put(parent, { inbox: 'open' });
    await database.sql`
      insert into items (tenant_id, session_id, seq, source, type, agent, title, status, output, delivered_at)
      select 'default', ${parent}, n, ${parent} || n, 'sub_agent', 'a', '', 'completed', 'x', now()
      from generate_series(1000000, 1030000) n`;
    const moved = await put(parent, { continued_as: next });
    expect(moved.body.inbox).toEqual({ open: true, pending: 30_001 });
    expect(await inboxOf(parent)).toEqual([]);
  });

  it('loses nothing and repeats nothing while results arrive', async () => {
    const before = await countDeadlocks(database);
    for (let round = 0; round < 6; round += 1) {
      const ids = Array.from({ length: 4 }, () => newId('chain'));
      const [parent, ...rest] = ids as [string, ...string[]];
      await put(parent, { inbox: 'open' });
      const childIds = Array.from({ length: 40 }, () => newId('c'));
      await Promise.all(childIds.map((id) => put(id, { parent_session_id: parent })));
      const link = async () => {
        for (const [n, id] of rest.entries()) await put(ids[n] ?? '', { continued_as: id });
      };
      const [answers] = await Promise.all([
        Promise.all(childIds.map((id) => finish(id, id))),
        link(),
      ]);
      expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([204]));
      expect((await inboxOf(ids.at(-1) ?? '')).toSorted()).toEqual(childIds.toSorted());
    }
    expect(await countDeadlocks(database)).toBe(before);
  });
});

describe('requests for the same sessions at once', () => {
  it('never deadlock, in whatever order they name them', async () => {
    const before = await countDeadlocks(database);
    const ids = Array.from({ length: 6 }, () => newId('crowd'));
    const id = fc.constantFrom(...ids);
    const steps = fc.sample(
      fc.oneof(
        fc.tuple(fc.constant('parent' as const), id, id),
        fc.tuple(fc.constant('link' as const), id, id),
        fc.tuple(fc.constant('unlink' as const), id, id),
        fc.tuple(fc.constant('delete' as const), id, id),
        fc.tuple(fc.constant('report' as const), id, id),
      ),
      { numRuns: 300, seed: 2 },
    );
    const answers = await Promise.all(
      steps.map(([kind, one, other], n) => {
        switch (kind) {
          case 'parent':
            return put(one, { parent_session_id: other });
          case 'link':
            return put(one, { continued_as: other });
          case 'unlink':
            return put(one, { inbox: 'open', continued_as: null });
          case 'delete':
            return remove(one);
          case 'report':
            return finish(one, `${n}`);
        }
      }),
    );
    const known = new Set([200, 201, 204, 400, 409, 202, 503]);
    expect(answers.filter(({ status }) => !known.has(status))).toEqual([]);
    const unavailable = answers.filter(({ body }) => body?.error === 'unavailable');
    expect(unavailable).toEqual([]);
    expect(await countDeadlocks(database)).toBe(before);
    await expectWholeChains(ids);
  });

  it('create a session once', async () => {
    const id = newId('c');
    const answers = await Promise.all(Array.from({ length: 20 }, () => put(id, { title: 't' })));
    expect(answers.filter(({ status }) => status === 201)).toHaveLength(1);
    expect(answers.filter(({ status }) => status === 200)).toHaveLength(19);
  });

  it('set a parent once', async () => {
    const id = newId('c');
    const answers = await Promise.all(
      Array.from({ length: 10 }, (_, n) => put(id, { parent_session_id: `${id}-${n}` })),
    );
    expect(answers.filter(({ status }) => status === 201)).toHaveLength(1);
    expect(answers.filter(({ status }) => status === 409)).toHaveLength(9);
  });
});

describe('the list of children', () => {
  it('shows each as its session and its current work stand', async () => {
    const parent = newId('p');
    await put(parent, { inbox: 'open' });
    const [plain, done, failed, busy] = ['plain', 'done', 'failed', 'busy'].map(newId) as [
      string,
      string,
      string,
      string,
    ];
    for (const id of [plain, done, failed, busy]) {
      clock.advance(1);
      await put(id, { parent_session_id: parent, title: `tool:${id}`, agent_id: 'a1' });
    }
    await service.request('POST', `${path(done)}/events`, {
      type: 'external_conversation_item',
      data: {
        item_type: 'message',
        item_data: {
          role: 'assistant',
          content: [{ type: 'output_text', text: `  one\n\ttwo ${'😀'.repeat(200)}` }],
        },
      },
    });
    await finish(done);
    await report(failed, { status: 'failed', output: 'boom' });
    await report(busy, { status: 'running' });
    const { status, body } = await children(parent);
    expect(status).toBe(200);
    const common = { object: 'child_session', parent_session_id: parent, agent_id: 'a1' };
    const row = (id: string, more: object) => ({
      ...common,
      id,
      title: `tool:${id}`,
      tool: 'tool',
      session_name: id,
      busy: false,
      current_task_status: null,
      last_task_error: null,
      last_message_preview: null,
      ...more,
    });
    expect(body).toEqual({
      object: 'list',
      first_id: busy,
      last_id: plain,
      has_more: false,
      data: [
        row(busy, { busy: true }),
        row(failed, {
          current_task_status: 'failed',
          last_task_error: { code: 'turn_error', message: 'boom' },
        }),
        row(done, {
          current_task_status: 'completed',
          last_message_preview: `one two ${'😀'.repeat(142)}`,
        }),
        row(plain, {}),
      ],
    });
  });

  it('previews the newest message, or else the result of the turn', async () => {
    const parent = 'previewing';
    await service.request('PUT', path(parent), { inbox: 'open' });
    for (const child of ['preview-result', 'preview-task']) {
      await service.request('PUT', path(child), { parent_session_id: parent });
    }
    const tasks = [{ goal: 'x', child_session_id: 'preview-task' }];
    await service.request('POST', `${path(parent)}/delegations`, { tasks });
    const previews = async () =>
      (await children(parent)).body.data.map(
        (child: { last_message_preview: string }) => child.last_message_preview,
      );
    expect(await previews()).toEqual([null, null]);
    await report('preview-result', { status: 'idle', output: 'of a turn' });
    await report('preview-task', { status: 'idle', output: 'of a task' });
    expect(await previews()).toEqual(['of a task', 'of a turn']);
    await service.request('POST', `${path('preview-result')}/events`, {
      type: 'external_conversation_item',
      data: { item_type: 'message', item_data: { role: 'assistant', content: 'a message' } },
    });
    expect(await previews()).toEqual(['of a task', 'a message']);
  });

  it('has direct children only', async () => {
    const { parent, child } = await family();
    await put(newId('grandchild'), { parent_session_id: child });
    expect((await children(parent)).body.data.map((row: { id: string }) => row.id)).toEqual([
      child,
    ]);
  });

  it('goes through a thousand in pages, each once, newest first', async () => {
    const parent = newId('p');
    await put(parent);
    // A hundred share each instant.
    await database.sql`
      insert into sessions (tenant_id, id, created_at, described_at, parent_session_id)
      select 'default', ${parent} || '-' || n, to_timestamp(1e9 + n / 100), now(), ${parent}
      from generate_series(0, 999) n`;
    const seen: string[] = [];
    let after = '';
    for (;;) {
      const { body } = await children(parent, `?limit=99${after}`);
      seen.push(...body.data.map((row: { id: string }) => row.id));
      expect(body.last_id).toBe(seen.at(-1));
      if (!body.has_more) break;
      after = `&after=${encodeURIComponent(body.last_id)}`;
    }
    expect(new Set(seen).size).toBe(1000);
    expect(seen).toHaveLength(1000);
    expect(seen[0]).toBe(`${parent}-999`);
    expect((await children(parent, '?limit=5000')).body.data).toHaveLength(1000);
    expect((await children(parent)).body).toMatchObject({ has_more: true, data: { length: 20 } });
  });

  it('goes on behind a child that has been deleted since', async () => {
    const parent = newId('p');
    await put(parent);
    const ids = Array.from({ length: 3 }, () => newId('c'));
    for (const id of ids) {
      clock.advance(1);
      await put(id, { parent_session_id: parent });
    }
    await remove(ids[1] ?? '');
    const { body } = await children(parent, `?after=${ids[1]}`);
    expect(body.data.map((row: { id: string }) => row.id)).toEqual([ids[0]]);
  });

  test.each([['?limit=0'], ['?limit=-1'], ['?limit=x'], ['?after=nobody-at-all'], ['?after=']])(
    'refuses %s',
    async (query) => {
      const { parent } = await family();
      expect((await children(parent, query)).status).toBe(400);
    },
  );
});

describe('a session that only upstream knows', () => {
  const running: { server: Server; service: TestService }[] = [];
  afterEach(async () => {
    for (const { server, service: started } of running.splice(0)) {
      await started.stop();
      server.close();
      server.closeAllConnections();
    }
  });

  const idle = { type: 'external_session_status', data: { status: 'idle', output: 'x' } };

  async function withUpstream(known: Record<string, unknown>, handler?: RequestListener) {
    const asked: string[] = [];
    const listener: RequestListener = (request, response) => {
      const url = request.url ?? '';
      asked.push(url);
      const found = known[decodeURIComponent(url.replace('/v1/sessions/', ''))];
      response.writeHead(found === undefined ? 404 : 200, { 'content-type': 'application/json' });
      response.end(JSON.stringify(found ?? {}));
    };
    const server = createServer(handler ?? listener);
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address() as AddressInfo;
    const started = await startService(database, {
      clock,
      env: { SNAPSHOT_URL: `http://127.0.0.1:${port}`, SNAPSHOT_TIMEOUT_MS: '500' },
    });
    running.push({ server, service: started });
    return { asked, request: started.request };
  }

  it('is looked up by GET, stored, and its parent named', async () => {
    const [id, parent] = [newId('up/c'), newId('p')];
    const snapshot = {
      id,
      parent_session_id: parent,
      agent_name: 'coder',
      title: 't',
      status: 'running',
    };
    const { asked, request } = await withUpstream({ [id]: snapshot });
    const shown = await request('GET', path(id));
    expect(shown.status).toBe(200);
    expect(shown.body).toMatchObject({
      id,
      parent_session_id: parent,
      agent_name: 'coder',
      title: 't',
      status: 'idle',
      root_session_id: parent,
    });
    await request('GET', path(id));
    expect(asked).toEqual([path(id)]);
    expect((await get(id)).status).toBe(200);
  });

  it('is looked up for its report, which is delivered', async () => {
    const [id, parent] = [newId('c'), newId('p')];
    await put(parent, { inbox: 'open' });
    const { request } = await withUpstream({
      [id]: { parent_session_id: parent, sub_agent_name: 'reviewer' },
    });
    const answer = await request('POST', `${path(id)}/events`, idle);
    expect(answer.headers['delivery-outcome']).toBe('delivered');
    expect((await get(id)).body.work).toMatchObject({ agent: 'reviewer', title: 'reviewer' });
  });

  it('is delivered from where it was parked, when GET makes it known', async () => {
    const [id, parent] = [newId('c'), newId('p')];
    await put(parent, { inbox: 'open' });
    expect((await finish(id, 'parked')).body.reason).toBe('unknown_session');
    const { request } = await withUpstream({ [id]: { parent_session_id: parent } });
    expect((await request('GET', path(id))).status).toBe(200);
    expect(await inboxOf(parent)).toEqual(['parked']);
  });

  it('is looked up for its children', async () => {
    const { child, parent } = await family();
    const stub = newId('p');
    const { request } = await withUpstream({ [stub]: {} });
    expect((await request('GET', `${path(stub)}/child_sessions`)).body.data).toEqual([]);
    const known = await request('GET', `${path(parent)}/child_sessions`);
    expect(known.body.data).toMatchObject([{ id: child }]);
  });

  it('is 404 where upstream does not know it either, and 503 where upstream cannot say', async () => {
    const absent = await withUpstream({});
    expect((await absent.request('GET', path(newId('c')))).status).toBe(404);
    const silent = await withUpstream({}, () => {});
    const unavailable = await silent.request('GET', path(newId('c')));
    expect([unavailable.status, unavailable.body.error]).toEqual([503, 'unavailable']);
    expect(unavailable.headers['retry-after']).toBeDefined();
  });

  it('stays deleted where it was deleted here, and upstream is not asked', async () => {
    const { child } = await family();
    await remove(child);
    const { asked, request } = await withUpstream({ [child]: { title: 'still here' } });
    expect((await request('GET', path(child))).status).toBe(404);
    expect(asked).toEqual([]);
  });

  it('is not described by what upstream says wrongly', async () => {
    const id = newId('c');
    const { request } = await withUpstream({
      [id]: { parent_session_id: 7, title: ['x'], agent_name: 'a\u0000b', workspace: null },
    });
    expect((await request('GET', path(id))).body).toMatchObject({
      parent_session_id: null,
      title: null,
      agent_name: 'a\ufffdb',
    });
  });

  const lengths = [512, 3_000, 40_000];

  test.each([
    ['agent_id'],
    ['agent_name'],
    ['sub_agent_name'],
    ['title'],
    ['workspace'],
    ['runner_id'],
    ['continued_as'],
  ])('has its report delivered, however long a %s upstream says', async (field) => {
    const parent = newId('p');
    await put(parent, { inbox: 'open' });
    const snapshots = lengths.map((length) => ({
      parent_session_id: parent,
      [field]: longText(length),
    }));
    const known = Object.fromEntries(snapshots.map((snapshot) => [newId('c'), snapshot]));
    const { request } = await withUpstream(known);
    for (const id of Object.keys(known)) {
      const answer = await request('POST', `${path(id)}/events`, idle);
      expect([answer.status, answer.headers['delivery-outcome']]).toEqual([204, 'delivered']);
    }
    expect(await inboxOf(parent)).toHaveLength(lengths.length);
  });

  it('has no parent that could be no session, and its report is parked', async () => {
    const parents = [7, '', '..', ...lengths.map(longText)];
    const snapshots = parents.map((parent) => ({
      parent_session_id: parent,
      sub_agent_name: 'reviewer',
    }));
    const known = Object.fromEntries(snapshots.map((snapshot) => [newId('c'), snapshot]));
    const { request } = await withUpstream(known);
    for (const id of Object.keys(known)) {
      const answer = await request('POST', `${path(id)}/events`, idle);
      expect([answer.status, answer.body.reason]).toEqual([503, 'missing_work_entry']);
      expect(answer.headers['retry-after']).toBeDefined();
      expect((await get(id)).body.parent_session_id).toBeNull();
    }
    const { body } = await service.request('GET', '/v1/parked?limit=1000');
    const parked = body.data.map((waiting: { session_id: string }) => waiting.session_id);
    expect(parked).toEqual(expect.arrayContaining(Object.keys(known)));
  });

  it('cannot become its own ancestor by what upstream says', async () => {
    const [top, child] = [newId('top'), newId('c')];
    await put(child, { parent_session_id: top });
    const { request } = await withUpstream({ [top]: { parent_session_id: child, title: 't' } });
    expect((await request('GET', path(top))).body).toMatchObject({
      parent_session_id: null,
      title: 't',
    });
  });

  it('gives an idle without text its newest message', async () => {
    const { parent, child } = await family();
    const { request } = await withUpstream({
      [`${child}/items?type=message&order=desc&limit=20`]: {
        data: [
          { id: 'm2', type: 'message', role: 'user', content: [] },
          { id: 'm1', type: 'message', role: 'assistant', content: [{ type: 'text', text: 'hi' }] },
        ],
      },
    });
    const withoutText = { type: 'external_session_status', data: { status: 'idle' } };
    await request('POST', `${path(child)}/events`, withoutText);
    expect(await inboxOf(parent)).toEqual(['hi']);
  });
});
