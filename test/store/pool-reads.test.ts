import { describe, expect, test } from 'vitest';
import { countReads } from '../support/counters.ts';
import { useDatabase, type MigratedDatabase } from '../support/database.ts';
import { freshId, path, reportIdle } from '../support/delivery.ts';
import { startService, type TestService } from '../support/service.ts';

/*
 * What is done to many rows at once costs what they are, not what else is there, though the same was
 * done before when there was little: each row below has read the tables once for each of its rows, by
 * a plan of that time, or would.
 */

const MANY = 400;
const OTHERS = 800;
/** So often and at so many at once that each connection has done it as often as plans are tried. */
const ROUNDS = 7;
const AT_ONCE = 12;

interface Place {
  database: MigratedDatabase;
  service: TestService;
}

interface Family {
  parent: string;
  delegationId: string;
  children: string[];
}

/** A parent that has delegated so many tasks in one call. */
async function delegate({ service }: Place, tasks: number): Promise<Family> {
  const parent = freshId('parent');
  const said = { tasks: Array.from({ length: tasks }, () => ({ goal: 'x' })) };
  const { status, body } = await service.request('POST', `${path(parent)}/delegations`, said);
  expect(status).toBe(202);
  return {
    parent,
    delegationId: body.delegation_id,
    children: body.tasks.map((task: { child_session_id: string }) => task.child_session_id),
  };
}

/** A parent whose inbox holds so many results of children of its own. */
async function deliver({ service, database }: Place, results: number): Promise<Family> {
  const parent = freshId('parent');
  await service.request('PUT', path(parent), { inbox: 'open' });
  const children = Array.from({ length: results }, () => freshId('child'));
  await database.sql`
    insert into sessions (tenant_id, id, created_at, described_at, parent_session_id, agent_name)
    select 'default', id, now(), now(), ${parent}, 'coder' from unnest(${children}::text[]) id`;
  await Promise.all(children.map((child) => reportIdle(service, child)));
  return { parent, delegationId: '', children };
}

type Act = (at: Place, count: number) => Promise<() => Promise<unknown>>;

/** Each prepares something of that size, and answers what is then done to it. */
const acts: Record<string, Act> = {
  'dispatching a call': async (at, count) => await Promise.resolve(() => delegate(at, count)),
  'dispatching to the same children again': async (at, count) => {
    const { children } = await deliver(at, count);
    const tasks = children.map((id) => ({ goal: 'x', child_session_id: id }));
    const parent = (await at.service.request('GET', path(children[0] ?? ''))).body
      .parent_session_id;
    return () => at.service.request('POST', `${path(parent)}/delegations`, { tasks });
  },
  'interrupting a call': async (at, count) => {
    const { delegationId } = await delegate(at, count);
    return () =>
      at.service.request('POST', `/v1/delegations/${delegationId}/interrupt`, { grace_seconds: 0 });
  },
  'stopping all of a session': async (at, count) => {
    const { parent } = await delegate(at, count);
    return () =>
      at.service.request('POST', `${path(parent)}/delegations/interrupt`, { grace_seconds: 5 });
  },
  'deleting a parent': async (at, count) => {
    const { parent } = await delegate(at, count);
    return () => at.service.request('DELETE', path(parent));
  },
  'reading and acking an inbox': async (at, count) => {
    const { parent } = await deliver(at, count);
    return async () => {
      const { body } = await at.service.request('POST', `${path(parent)}/inbox/read`, {
        max: count,
      });
      const ids = body.items.map((item: { id: string }) => item.id);
      return await at.service.request('POST', `${path(parent)}/inbox/ack`, { item_ids: ids });
    };
  },
  'continuing as another': async (at, count) => {
    const { parent } = await deliver(at, count);
    return () => at.service.request('PUT', path(parent), { continued_as: freshId('next') });
  },
  'listing children': async (at, count) => {
    const { parent } = await deliver(at, count);
    return () => at.service.request('GET', `${path(parent)}/child_sessions?limit=${count}`);
  },
};

const readied = Object.keys(acts).flatMap((what) => [
  { what, when: 'done to little before', rounds: ROUNDS, vacuum: false },
  { what, when: 'after little was vacuumed', rounds: 1, vacuum: true },
]);

describe.each(readied)('$what, $when', ({ what, rounds, vacuum }) => {
  const database = useDatabase();

  test('does not read what else is there', async () => {
    const service = await startService(database);
    const prepare = acts[what] as Act;
    const at: Place = { database, service };
    const before = await countReads(database);
    // If plans were kept, these would be.
    for (let round = 0; round < rounds; round += 1) {
      const some = await Promise.all(Array.from({ length: AT_ONCE }, () => prepare(at, 1)));
      await Promise.all(some.map((act) => act()));
    }
    if (vacuum) await database.sql`vacuum`;
    await delegate(at, OTHERS);
    await deliver(at, OTHERS);
    await (
      await prepare(at, MANY)
    )();
    const after = await countReads(database);
    await service.stop();
    const reads = [...after].map(([table, count]) => [table, count - (before.get(table) ?? 0)]);
    // To make it all each row is looked up some times; to read it for each of many is MANY times.
    expect(reads.filter(([, count]) => Number(count) > (OTHERS * MANY) / 3)).toEqual([]);
  });
});
