import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { pino } from 'pino';
import { prune } from '../../src/operations/prune.ts';
import { openDatabase, type Database } from '../../src/store/database.ts';
import { deleteOldKeys } from '../../src/store/idempotency-keys.ts';
import { deleteOldAckedItems } from '../../src/store/items.ts';
import { deleteOldTombstones } from '../../src/store/work.ts';
import { useDatabase } from '../support/database.ts';
import { startService } from '../support/service.ts';

const database = useDatabase();
let db: Database;
beforeAll(() => {
  db = openDatabase({ url: database.url, log: pino({ level: 'silent' }) });
});
afterAll(async () => await db.close());

const DAY_MS = 86_400_000;
const NOW = Date.UTC(2026, 10, 30);
const daysAgo = (days: number) => new Date(NOW - days * DAY_MS);

async function itemsLeft(): Promise<string[]> {
  const rows = await database.sql`select source from items order by source`;
  return rows.map((row) => String(row['source']));
}

async function workLeft(): Promise<string[]> {
  const rows = await database.sql`select work_id from work order by work_id`;
  return rows.map((row) => String(row['work_id']));
}

async function addItem(source: string, ackedAt: Date | null): Promise<void> {
  await database.sql`insert into items
    (tenant_id, session_id, seq, source, type, agent, title, status, output, delivered_at, acked_at)
    values ('default', 'p', nextval('item_seq'), ${source}, 'sub_agent', 'a', '', 'completed', 'x',
      ${daysAgo(100)}, ${ackedAt})`;
}

async function addWork(workId: string, child: string, endedAt: Date | null): Promise<void> {
  const status = endedAt === null ? 'running' : 'completed';
  await database.sql`insert into work (tenant_id, work_id, parent_session_id, child_session_id,
      agent, title, status, created_at, ended_at)
    values ('default', ${workId}, 'p', ${child}, 'a', '', ${status}, ${daysAgo(100)}, ${endedAt})`;
}

function pruneTombstones(after: { tenantId: string; workId: string } | null) {
  const endedBefore = NOW - 30 * DAY_MS;
  return db.run((tx) => deleteOldTombstones(tx, { after, endedBefore, limit: 3 }));
}

async function addSession(id: string, currentWorkId: string | null, deleted = false) {
  await database.sql`insert into sessions (tenant_id, id, created_at, current_work_id, deleted_at)
    values ('default', ${id}, ${daysAgo(100)}, ${currentWorkId}, ${deleted ? daysAgo(1) : null})`;
}

describe('acked items', () => {
  test('go when their time has come, at most so many at once; unread ones stay', async () => {
    await addItem('a-old', daysAgo(8));
    await addItem('b-old', daysAgo(9));
    await addItem('c-new', daysAgo(6));
    await addItem('d-unread', null);
    const ackedBefore = NOW - 7 * DAY_MS;
    expect(await db.run((tx) => deleteOldAckedItems(tx, { ackedBefore, limit: 1 }))).toBe(1);
    expect(await itemsLeft()).toEqual(['a-old', 'c-new', 'd-unread']);
    expect(await db.run((tx) => deleteOldAckedItems(tx, { ackedBefore, limit: 9 }))).toBe(1);
    expect(await itemsLeft()).toEqual(['c-new', 'd-unread']);
  });
});

describe('tombstones', () => {
  test('go when their time has come, but for the newest of a session that lives', async () => {
    await addSession('lives', 'w2');
    await addWork('w1', 'lives', daysAgo(50));
    await addWork('w2', 'lives', daysAgo(40));
    // Its newest was withdrawn: the one before is what repeats are recognised by.
    await addSession('withdrawn', null);
    await addWork('w3', 'withdrawn', daysAgo(40));
    await addSession('works', 'w5');
    await addWork('w4', 'works', daysAgo(40));
    await addWork('w5', 'works', null);
    await addSession('deleted', null, true);
    await addWork('w6', 'deleted', daysAgo(40));
    await addSession('recent', 'w8');
    await addWork('w7', 'recent', daysAgo(20));
    await addWork('w8', 'recent', daysAgo(10));

    const first = await pruneTombstones(null);
    expect(first).toEqual({ tenantId: 'default', workId: 'w3' });
    expect(await workLeft()).toEqual(['w2', 'w3', 'w4', 'w5', 'w6', 'w7', 'w8']);
    const second = await pruneTombstones(first);
    expect(second).toEqual({ tenantId: 'default', workId: 'w6' });
    expect(await pruneTombstones(second)).toBeNull();
    expect(await workLeft()).toEqual(['w2', 'w3', 'w5', 'w7', 'w8']);
  });
});

describe('late results', () => {
  test('go with their entry', async () => {
    await addWork('x1', 'gone', daysAgo(40));
    await addWork('x2', 'gone', daysAgo(20));
    for (const workId of ['x1', 'x2']) {
      await database.sql`insert into late_results
        (tenant_id, work_id, digest, seq, status, output, reported_at)
        values ('default', ${workId}, ${Buffer.from('d')}, 1, 'completed', 'x', ${daysAgo(1)})`;
    }
    await pruneTombstones({ tenantId: 'default', workId: 'x' });
    expect(await database.sql`select work_id from late_results`).toEqual([{ work_id: 'x2' }]);
  });
});

describe('idempotency keys', () => {
  test('go after their day', async () => {
    for (const days of [0.5, 1.5, 2]) {
      await database.sql`insert into idempotency_keys
        (tenant_id, request_key, fingerprint, created_at)
        values ('default', ${Buffer.from(String(days))}, 'f', ${daysAgo(days)})`;
    }
    const old = { createdBefore: NOW - DAY_MS, limit: 10 };
    expect(await db.run((tx) => deleteOldKeys(tx, old))).toBe(2);
    expect(await db.run((tx) => deleteOldKeys(tx, old))).toBe(0);
  });
});

describe('each setting', () => {
  const own = useDatabase();
  const KEEP_ALL = {
    ackedItemRetentionMs: 1000 * DAY_MS,
    deadLetterRetentionMs: 1000 * DAY_MS,
    tombstoneRetentionMs: 1000 * DAY_MS,
  };

  test.each([
    ['ACKED_RETENTION_DAYS', 'ackedItemRetentionMs', ['acked item']],
    ['DEAD_LETTER_RETENTION_DAYS', 'deadLetterRetentionMs', ['dead letter', 'marker']],
    ['TOMBSTONE_RETENTION_DAYS', 'tombstoneRetentionMs', ['tombstone']],
  ] as const)('%s keeps what its text says, and nothing else', async (_, setting, named) => {
    await own.sql`truncate items, parked_reports, sessions, work cascade`;
    await own.sql`insert into items (tenant_id, session_id, seq, source, type, agent, title, status,
        output, delivered_at, acked_at)
      values ('default', 'p', 1, 's', 'sub_agent', 'a', '', 'completed', 'x', now(),
        now() - interval '3 days')`;
    await own.sql`insert into parked_reports (tenant_id, id, child_session_id, turn, state, reason,
        status, after_running, tries, first_at, last_at, dead_at)
      values ('default', 'k', 'c', 1, 'dead', 'parent_gone', 'idle', false, 1, now(), now(),
        now() - interval '3 days')`;
    await own.sql`insert into sessions (tenant_id, id, created_at, deleted_at)
      values ('default', 'gone', now(), now() - interval '3 days')`;
    await own.sql`insert into work (tenant_id, work_id, parent_session_id, child_session_id, agent,
        title, status, created_at, ended_at)
      values ('default', 'w', 'p', 'gone', 'a', '', 'completed', now(),
        now() - interval '3 days')`;
    const all = ['acked item', 'dead letter', 'marker', 'tombstone'];
    const policy = { ...KEEP_ALL, [setting]: 2 * DAY_MS };
    const service = await startService(own, { policy });
    await prune(service.resources, null);
    await service.stop();
    const [left] = await own.sql`select
      (select count(*)::int from items) as "acked item",
      (select count(*)::int from parked_reports) as "dead letter",
      (select count(*)::int from sessions) as "marker",
      (select count(*)::int from work) as "tombstone"`;
    expect(all.filter((what) => left?.[what] === 0)).toEqual([...named]);
  });
});
