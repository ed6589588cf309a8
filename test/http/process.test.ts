import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { runProcess, startProcess } from '../support/process.ts';

const database = useDatabase();

describe('without DATABASE_URL', () => {
  test('the service keeps everything in its folder, says what that means, and is alone there', async () => {
    const env = { DATA_DIR: await mkdtemp(join(tmpdir(), 'subagent-inbox-process-')) };
    const first = await startProcess({ env });
    expect((await first.request('PUT', '/v1/sessions/conv_1', { title: 'kept' })).status).toBe(201);

    const second = await runProcess({ env });
    expect(second.code).toBe(1);
    expect(second.stderr).toMatch(/^subagent-inbox cannot run: [^\n]+\n$/);

    const ended = await first.kill('SIGINT');
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    const limits = ended.stdout.split('\n').filter((line) => line.includes('no DATABASE_URL'));
    expect(limits).toHaveLength(1);

    const again = await startProcess({ env });
    expect((await again.request('GET', '/v1/sessions/conv_1')).body).toMatchObject({
      title: 'kept',
    });
    await again.kill('SIGINT');
    await rm(env.DATA_DIR, { recursive: true });
  });
});

describe('a start that fails', () => {
  test('because the port is taken says so in one line', async () => {
    const taken = createServer();
    await new Promise<void>((resolve) => taken.listen(0, '127.0.0.1', resolve));
    const { port } = taken.address() as AddressInfo;
    const ended = await runProcess({ env: { DATABASE_URL: database.url, PORT: String(port) } });
    taken.close();
    expect(ended).toMatchObject({
      code: 1,
      stderr: 'subagent-inbox cannot run: PORT: something else listens there\n',
    });
  });

  test('because a newer release has migrated the database says what to do', async () => {
    await database.sql`insert into drizzle.__drizzle_migrations (hash, created_at)
      values ('of a newer release', 9999999999999)`;
    const ended = await runProcess({ env: { DATABASE_URL: database.url } });
    await database.sql`delete from drizzle.__drizzle_migrations where hash = 'of a newer release'`;
    expect(ended.code).toBe(1);
    expect(ended.stderr).toMatch(/^subagent-inbox cannot run: [^\n]*newer[^\n]*\n$/);
  });
});
