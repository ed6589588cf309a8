import { expect, test } from 'vitest';
import { sweepParked } from '../../src/operations/sweep-parked.ts';
import { countReads } from '../support/counters.ts';
import { useDatabase } from '../support/database.ts';
import { freshId, path, reportIdle } from '../support/delivery.ts';
import { useService } from '../support/service.ts';

const ROOM = 1_000;
const WAITING = 60;

const database = useDatabase();
const service = useService(database, { policy: { maxPendingItems: ROOM } });

test('a full inbox is counted once a pass, however many reports wait for it', async () => {
  const parent = freshId('parent');
  await service.request('PUT', `${path(parent)}/inbox`);
  await database.sql`
    insert into items (tenant_id, session_id, seq, source, type, agent, title, status, output,
      delivered_at)
    select 'default', ${parent}, nextval('item_seq'), ${parent} || g, 'sub_agent', 'a', '',
      'completed', 'x', now()
    from generate_series(1, ${ROOM}) g`;
  for (let n = 1; n <= WAITING; n += 1) {
    await service.request('PUT', path(`${parent}c${n}`), { parent_session_id: parent });
    const { body } = await reportIdle(service, `${parent}c${n}`);
    expect(body).toMatchObject({ reason: 'inbox_full' });
  }
  const before = (await countReads(database)).get('items') ?? 0;
  expect(await sweepParked(service.resources, '')).toBe('');
  const read = ((await countReads(database)).get('items') ?? 0) - before;
  expect(read).toBeGreaterThanOrEqual(ROOM - 1);
  // The worker's own pass may have come between.
  expect(read).toBeLessThan(5 * ROOM);
});
