import { expect, test } from 'vitest';
import { sweepUntold } from '../../src/operations/wake-parents.ts';
import { countReads } from '../support/counters.ts';
import { useDatabase } from '../support/database.ts';
import { freshId } from '../support/delivery.ts';
import { startService } from '../support/service.ts';

/*
 * The sweep for parents that were not told looks at each of them, for ever: what lies in their
 * inboxes must not matter. Each row is a way in which they may be full without anything to be told.
 */

const database = useDatabase();
const STORED = 3_000;
const PASSES = 60;

/** Columns of the items by which a parent has nothing to be told of now. */
const kinds = {
  notes: { disposition: 'note', wakes: false },
  'items for a client that reads its history': { wakes: false },
  'items that are leased': { leased_until: new Date(Date.now() + 3_600_000) },
  'items that have just come': { delivered_at: new Date(Date.now() + 3_600_000) },
  'acked items': { acked_at: new Date() },
};

test.each(Object.entries(kinds))('the sweep does not read an inbox of %s', async (_, columns) => {
  const parent = freshId('parent');
  await database.sql`
    insert into sessions (tenant_id, id, created_at) values ('default', ${parent}, now())`;
  const rows = Array.from({ length: STORED }, (__, n) => ({
    tenant_id: 'default',
    session_id: parent,
    seq: n,
    source: `${parent} ${n}`,
    type: 'sub_agent',
    agent: 'a',
    title: '',
    status: 'completed',
    output: 'x',
    delivered_at: new Date(0),
    ...columns,
  }));
  await database.sql`insert into items ${database.sql(rows)}`;
  const before = await countReads(database);
  const service = await startService(database);
  for (let n = 1; n <= PASSES; n += 1) await sweepUntold(service.resources, null);
  await service.stop();
  const after = await countReads(database);
  const reads = [...after].map(([table, count]) => [table, count - (before.get(table) ?? 0)]);
  // To read it all in each pass would be PASSES times as many.
  expect(reads.filter(([, count]) => Number(count) > STORED * (PASSES / 4))).toEqual([]);
});
