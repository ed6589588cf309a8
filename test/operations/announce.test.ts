import { setMaxListeners } from 'node:events';
import { describe, expect, test } from 'vitest';
import { announceDelivered } from '../../src/operations/announce.ts';
import { useDatabase } from '../support/database.ts';
import { freshId } from '../support/delivery.ts';
import { startService, useService } from '../support/service.ts';

const database = useDatabase();
const here = useService(database);
const there = useService(database);
const stays = new AbortController().signal;
setMaxListeners(0, stays);

const inboxes = (count: number) =>
  Array.from({ length: count }, () => ({ tenantId: 'default', sessionId: freshId() }));

/** How the waits of all who wait for these inboxes at `there` end, while `act` runs. */
async function waitsThere(keys: readonly { sessionId: string }[], act: () => void) {
  const waiters = keys.map(({ sessionId }) =>
    there.resources.waiters.register('default', sessionId),
  );
  const ends = Promise.all(waiters.map((waiter) => waiter.wait(1_500, stays)));
  act();
  const result = await ends;
  for (const waiter of waiters) waiter.close();
  return new Set(result);
}

describe('what is announced here', () => {
  test('wakes those who wait there, and nobody else', async () => {
    const [some, others] = [inboxes(3), inboxes(3)];
    const [woken, notWoken] = await Promise.all([
      waitsThere(some, () => announceDelivered(here.resources, some)),
      waitsThere(others, () => {}),
    ]);
    expect(woken).toEqual(new Set(['woken']));
    expect(notWoken).toEqual(new Set(['time_up']));
  });

  test('wakes everyone there if it is more than a message can name', async () => {
    const [some, others] = [inboxes(1), inboxes(3)];
    const many = [...some, ...inboxes(1000)];
    const woken = await waitsThere(others, () => announceDelivered(here.resources, many));
    expect(woken).toEqual(new Set(['woken']));
  });

  test('is said in few messages, however much it is', async () => {
    const heard: string[] = [];
    const ears = await there.resources.database.listen(
      'subagent_inbox_news',
      (payload) => heard.push(payload),
      () => {},
    );
    const many = inboxes(100);
    await waitsThere(many, () => {
      for (const inbox of many) announceDelivered(here.resources, [inbox]);
    });
    expect(heard.length).toBeLessThan(5);
    await ears.stop();
  });

  test('is no matter when the database does not answer', () => {
    const broken = {
      ...here.resources,
      waiters: { ...here.resources.waiters },
      database: { ...here.resources.database, run: () => Promise.reject(new Error('down')) },
    };
    expect(() => announceDelivered(broken, inboxes(1))).not.toThrow();
  });
});

test('a replica listens where it is told to, past what its statements go through', async () => {
  const direct = new URL(database.url);
  direct.searchParams.set('application_name', 'past_the_pooler');
  const service = await startService(database, { env: { LISTEN_DATABASE_URL: direct.href } });
  const listeners = await database.sql`
    select query from pg_stat_activity where application_name = 'past_the_pooler'`;
  expect(listeners).toHaveLength(1);
  expect(listeners[0]?.['query']).toMatch(/^listen |^select 1/);
  await service.stop();
});
