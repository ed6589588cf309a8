import { randomBytes } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { countReads } from '../support/counters.ts';
import { useDatabase } from '../support/database.ts';
import { freshId, path, reportIdle } from '../support/delivery.ts';
import { startService } from '../support/service.ts';

/* What answers do not show is not loaded for them, however large it is. */

const database = useDatabase();

/** Does not become small by compression. */
const large = () => randomBytes(100_000).toString('base64');

test.each([
  ['the list of work', 'GET', (parent: string) => `${path(parent)}/work`],
  ['the session', 'GET', (_: string, child: string) => path(child)],
  ['a change of the session', 'PUT', (_: string, child: string) => path(child)],
  ['the children', 'GET', (parent: string) => `${path(parent)}/child_sessions`],
] as const)('%s does not read results', async (_, method, pathOf) => {
  const parent = freshId('parent');
  const service = await startService(database);
  await service.request('PUT', path(parent), {});
  const call = { tasks: [{ goal: 'look' }] };
  const delegated = await service.request('POST', `${path(parent)}/delegations`, call);
  const { child_session_id: child, work_id: workId } = delegated.body.tasks[0];
  await reportIdle(service, child, { output: large() });
  await database.sql`update work set status = 'timeout' where work_id = ${workId}`;
  for (let n = 0; n < 3; n += 1) await reportIdle(service, child, { output: large() });
  const entry = await service.request('GET', `/v1/work/${workId}`);
  expect(entry.body.result.summary.length).toBeGreaterThan(100_000);
  expect(entry.body.late_results).toHaveLength(3);
  await service.stop();

  const before = await countReads(database);
  const body = method === 'PUT' ? { title: freshId('title') } : undefined;
  const another = await startService(database);
  const answer = await another.request(method, pathOf(parent, child), body);
  expect(answer.status).toBe(200);
  await another.stop();
  const after = await countReads(database);
  for (const table of ['work', 'late_results']) {
    const name = `large values of ${table}`;
    expect(after.get(name)).toBeGreaterThan(0);
    expect(after.get(name)).toBe(before.get(name));
  }
});

describe('what items repeat of their call', () => {
  const MIB = 1024 * 1024;
  /** A piece of a large value is of less than 2,000 bytes. */
  const PIECES_OF_ONE = (6 * MIB) / 2_000;

  test('is not read by reports, and by a reader only with what he is sent', async () => {
    const parent = freshId('parent');
    const service = await startService(database);
    const delegated = await service.request('POST', `${path(parent)}/delegations`, {
      tasks: Array.from({ length: 5 }, () => ({ goal: 'look' })),
      context: randomBytes(4.5 * MIB).toString('base64'),
      independent_completions: true,
    });
    const reads = async () => (await countReads(database)).get('large values of delegations') ?? 0;
    const before = await reads();
    for (const { child_session_id: child } of delegated.body.tasks) {
      await reportIdle(service, child, { output: 'x' });
    }
    expect((await reads()) - before).toBe(0);

    const page = await service.request('GET', `${path(parent)}/inbox`);
    expect([page.body.data.length, page.body.has_more]).toEqual([2, true]);
    const read = await service.request('POST', `${path(parent)}/inbox/read`);
    expect([read.body.items.length, read.body.remaining]).toEqual([2, 3]);
    const pieces = (await reads()) - before;
    expect(pieces).toBeGreaterThan(4 * PIECES_OF_ONE);
    expect(pieces).toBeLessThan(5 * PIECES_OF_ONE);
    await service.stop();
  });
});
