import { expect, test } from 'vitest';
import { countReads } from '../support/counters.ts';
import { useDatabase } from '../support/database.ts';
import { deliverTo, freshId, path, reportIdle } from '../support/delivery.ts';
import { useService } from '../support/service.ts';
import { inShort } from '../support/steps.ts';

/*
 * What is there and not touched costs a report nothing, though its statements are planned on tables
 * that are empty. Each row is a way in which an index was once read whole.
 */

const database = useDatabase();
const service = useService(database);
const STORED = 3_000;
const REPORTS = 60;

/** Children of one parent, of which nobody has heard since. */
async function storeChildren(parent: string): Promise<void> {
  await database.sql`
    insert into sessions (tenant_id, id, created_at, described_at, parent_session_id, agent_name)
    select 'default', ${parent} || 'c' || g, now(), now(), ${parent}, 'coder'
    from generate_series(1, ${STORED}) g`;
}

const stores: Record<string, (parent: string) => Promise<unknown>> = {
  'other children of its parent': storeChildren,
  'unread items in its inbox': async (parent) => {
    await storeChildren(parent);
    await database.sql`
      insert into items (tenant_id, session_id, seq, source, type, agent, title, status, output,
        delivered_at)
      select 'default', ${parent}, nextval('item_seq'), ${parent} || g, 'sub_agent', 'a', '',
        'completed', 'x', now()
      from generate_series(1, ${STORED}) g`;
  },
  'live calls of its parent': async (parent) => {
    await storeChildren(parent);
    await database.sql`
      update sessions set current_work_id = 'subagent_' || id where parent_session_id = ${parent}`;
    await database.sql`
      insert into delegations (tenant_id, delegation_id, origin_session_id, parent_session_id, mode,
        wakes, task_count, goals, request, notify_failures, created_at)
      select 'default', 'deleg_' || id, ${parent}, ${parent}, 'background', true, 1, '["a goal"]',
        '{}', false, now()
      from sessions where parent_session_id = ${parent}`;
    await database.sql`
      insert into units (tenant_id, unit_id, delegation_id, ordinal, task_indexes, status)
      select 'default', 'deleg_' || id, 'deleg_' || id, 0, '[0]', 'running'
      from sessions where parent_session_id = ${parent}`;
    await database.sql`
      insert into work (tenant_id, work_id, parent_session_id, child_session_id, agent, title,
        status, created_at, delegation_id, unit_id, task_index, goal)
      select 'default', current_work_id, ${parent}, id, 'coder', '', 'launching', now(),
        'deleg_' || id, 'deleg_' || id, 0, 'a goal'
      from sessions where parent_session_id = ${parent}`;
  },
};

test.each(Object.keys(stores))('a report does not read the %s', async (what) => {
  const parent = freshId('parent');
  const before = await countReads(database);
  await service.request('PUT', `${path(parent)}/inbox`);
  // Plans are made now, and kept.
  await deliverTo(service, parent);
  await stores[what]?.(parent);
  for (let n = 1; n <= REPORTS; n += 1) {
    expect(inShort(await reportIdle(service, `${parent}c${n}`))).toBe('204 delivered');
  }
  const after = await countReads(database);
  const reads = [...after].map(([table, count]) => [table, count - (before.get(table) ?? 0)]);
  // To store it all, each row is read a few times; to read it for each report would be REPORTS times.
  expect(reads.filter(([, count]) => Number(count) > STORED * (REPORTS / 4))).toEqual([]);
});
