import { randomBytes } from 'node:crypto';
import { expect, test } from 'vitest';
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
