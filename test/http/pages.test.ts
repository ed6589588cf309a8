import { describe, expect, test } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { describeChild, freshId, path, reportIdle } from '../support/delivery.ts';
import { useService } from '../support/service.ts';

/* Lists of entries that hold long texts. */

const MIB = 1024 * 1024;
const database = useDatabase();
const service = useService(database, { env: { MAX_BODY_BYTES: String(24 * MIB) } });

type Add = (parent: string, text: string) => Promise<void>;

const addChild: Add = async (parent, text) => {
  const child = freshId('child');
  await describeChild(service, parent, child);
  await reportIdle(service, child, { status: 'failed', output: text });
};

const addCall: Add = async (parent, text) => {
  const body = { tasks: [{ goal: text }] };
  const answer = await service.request('POST', `${path(parent)}/delegations`, body);
  expect(answer.status).toBe(202);
};

const addItem: Add = async (parent, text) => {
  const child = freshId('child');
  await describeChild(service, parent, child);
  await reportIdle(service, child, { output: text });
};

const idOf = (entry: Record<string, string>) =>
  entry['id'] ?? entry['work_id'] ?? entry['delegation_id'];

const sizeOf = (entry: object) => Math.floor(JSON.stringify(entry).length / MIB);

/** How large the entries of the list are, in MiB, page by page. */
async function pagesOf(list: string): Promise<number[][]> {
  const pages = [];
  for (let after = ''; ;) {
    const { status, body } = await service.request('GET', `${list}?limit=100${after}`);
    expect(status).toBe(200);
    expect([body.first_id, body.last_id]).toEqual([idOf(body.data[0]), idOf(body.data.at(-1))]);
    pages.push(body.data.map(sizeOf));
    if (!body.has_more) return pages;
    after = `&after=${body.last_id}`;
  }
}

describe('a page holds no more than 16 MiB, but at least one entry, and the next one goes on', () => {
  test.each<[string, Add, number[][]]>([
    ['child_sessions', addChild, [[1, 6, 6], [6], [20], [6, 6, 1]]],
    ['work', addCall, [[1, 6, 6], [6], [20], [6, 6, 1]]],
    ['delegations', addCall, [[1, 6, 6], [6], [20], [6, 6, 1]]],
    ['inbox', addItem, [[1, 6, 6], [20], [6, 6], [6, 1]]],
  ])('of %s', async (list, add, pages) => {
    const parent = freshId('parent');
    await service.request('PUT', path(parent), { inbox: 'open' });
    for (const mib of [1, 6, 6, 20, 6, 6, 6, 1]) await add(parent, 'x'.repeat(mib * MIB));
    expect(await pagesOf(`${path(parent)}/${list}`)).toEqual(pages);
  });

  test('with what the children of active calls are doing', async () => {
    const parent = freshId('parent');
    const described = await service.request('PUT', path(parent), { max_concurrent: 20 });
    expect(described.status).toBe(201);
    const calls = `${path(parent)}/delegations`;
    const tasks = Array.from({ length: 1_000 }, () => ({ goal: 'x' }));
    for (let n = 0; n < 18; n += 1) {
      expect((await service.request('POST', calls, { tasks })).status).toBe(202);
    }
    const first = await service.request('GET', calls);
    expect([first.body.data.length, first.body.has_more]).toEqual([16, true]);
    const last = await service.request('GET', `${calls}?after=${first.body.last_id}`);
    expect([last.body.data.length, last.body.has_more]).toEqual([2, false]);
  });
});

test('a page after what is of no list is 400', async () => {
  const parent = freshId('parent');
  await service.request('PUT', path(parent), { inbox: 'open' });
  const ofParent = ['child_sessions', 'work', 'delegations', 'inbox'];
  for (const list of [...ofParent.map((name) => `${path(parent)}/${name}`), '/v1/parked']) {
    const answer = await service.request('GET', `${list}?after=zzz`);
    expect(answer).toMatchObject({ status: 400, body: { errors: [{ path: 'after' }] } });
  }
});
