import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { once } from 'node:events';
import { setTimeout as pause } from 'node:timers/promises';
import { createServer, type AddressInfo } from 'node:net';
import postgres from 'postgres';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { processIdentity } from '../../src/platform/embedded-postgres-processes.ts';
import { createTestDatabase } from '../support/postgres.ts';
import { launchProcess, startProcess } from '../support/process.ts';
import { openRaw } from '../support/raw-http.ts';

const HALF =
  'POST /v1/sessions/conv_1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n';
/** A process takes its time to start on a busy machine. */
const PATIENTLY = { interval: 5, timeout: 30_000 };
const CUT_OFF = 'what is under way is cut off';

let dataDir: string;

beforeEach(async () => {
  dataDir = await mkdtemp(join(tmpdir(), 'subagent-inbox-signals-'));
});

afterEach(async () => await rm(dataDir, { recursive: true, force: true }));

describe('with a PostgreSQL of its own, the process', () => {
  test.each([
    ['SIGTERM', 'SIGTERM'],
    ['SIGINT', 'SIGINT'],
    ['SIGTERM', 'SIGINT'],
  ] as const)('stops it on %s and then %s, whatever is under way', async (first, second) => {
    const service = await startProcess({ env: { DATA_DIR: dataDir, SHUTDOWN_GRACE_MS: '600000' } });
    const half = await openRaw(service.url);
    half.send(HALF);
    await service.request('GET', '/livez');
    const server = await serverOf(dataDir);
    service.signal(first);
    await service.said('stopping');
    // Not at once: that would be the first one, passed on by npm.
    await pause(500);
    const ended = await service.kill(second);
    expect(ended).toMatchObject({ code: 1, signal: null, stderr: '' });
    expect(await processIdentity(server.pid)).toBeUndefined();
    await service.said(CUT_OFF);
  });

  test('takes a Ctrl-C that npm passes on once more for one', async () => {
    const service = await startProcess({ env: { DATA_DIR: dataDir } });
    service.signal('SIGINT');
    expect(await service.kill('SIGINT')).toMatchObject({ code: 0, signal: null, stderr: '' });
  });

  test('stops it when the grace is over', async () => {
    const service = await startProcess({ env: { DATA_DIR: dataDir, SHUTDOWN_GRACE_MS: '500' } });
    const server = await serverOf(dataDir);
    const holder = postgres(server.url, { max: 1, onnotice: () => {}, onclose: () => {} });
    const held = await holder.reserve();
    await held.unsafe('begin; lock table sessions in access exclusive mode');
    const waiting = service.request('PUT', '/v1/sessions/conv_1', {}).catch(() => {});
    const kept = () => held.unsafe(`select from pg_locks where not granted`);
    await expect.poll(kept, PATIENTLY).not.toHaveLength(0);
    const ended = await service.kill('SIGTERM');
    expect(ended).toMatchObject({ code: 0, signal: null, stderr: '' });
    expect(await processIdentity(server.pid)).toBeUndefined();
    await service.said(CUT_OFF);
    await waiting;
    await holder.end({ timeout: 0 });
  });
});

describe('while it starts, the process ends on a signal', () => {
  test.each(['SIGTERM', 'SIGINT'] as const)(
    'though the database accepts and never answers: %s',
    async (signal) => {
      const silent = createServer().listen(0, '127.0.0.1');
      await once(silent, 'listening');
      const { port } = silent.address() as AddressInfo;
      const env = { DATABASE_URL: `postgres://user@127.0.0.1:${port}/database` };
      const service = launchProcess({ env });
      await once(silent, 'connection');
      expect(await service.kill(signal)).toMatchObject({ code: 0, signal: null, stderr: '' });
      silent.close();
    },
  );

  test('though the database is not there', async () => {
    const env = { DATABASE_URL: 'postgres://user@127.0.0.1:1/database' };
    const service = launchProcess({ env });
    await service.said('waiting for the database to start');
    expect(await service.kill('SIGTERM')).toMatchObject({ code: 0, signal: null, stderr: '' });
  });

  test('though another one migrates the database', async () => {
    const database = await createTestDatabase();
    const { admin } = database;
    const migrating = await admin.reserve();
    await migrating`select pg_advisory_lock(8319664057122909812)`;
    const service = launchProcess({ env: { DATABASE_URL: database.url } });
    const waiting = () => admin`select from pg_locks join pg_stat_activity using (pid)
      where datname = current_database() and not granted`;
    await expect.poll(waiting, PATIENTLY).toHaveLength(1);
    expect(await service.kill('SIGTERM')).toMatchObject({ code: 0, signal: null, stderr: '' });
    migrating.release();
    await database.drop();
  });

  test('and stops a PostgreSQL of its own that has been started', async () => {
    const service = launchProcess({ env: { DATA_DIR: dataDir } });
    const pid = () => serverOf(dataDir).then((it) => it.pid);
    await expect.poll(pid, PATIENTLY).toBeGreaterThan(0);
    const server = await serverOf(dataDir);
    expect(await service.kill('SIGTERM')).toMatchObject({ code: 0, signal: null, stderr: '' });
    expect(await processIdentity(server.pid)).toBeUndefined();
    const next = await startProcess({ env: { DATA_DIR: dataDir } });
    await next.kill('SIGINT');
  });
});

/** The server that runs on the folder. */
async function serverOf(folder: string): Promise<{ pid: number; url: string }> {
  const lines = (await readFile(join(folder, 'postgres/data/postmaster.pid'), 'utf8')).split('\n');
  const password = (await readFile(join(folder, 'postgres/password'), 'utf8')).trim();
  const url = `postgres://subagent_inbox:${password}@127.0.0.1:${lines[3]}/subagent_inbox`;
  return { pid: Number(lines[0]), url };
}
