import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import postgres from 'postgres';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { processIdentity } from '../../src/platform/embedded-postgres-processes.ts';
import { startProcess } from '../support/process.ts';
import { openRaw } from '../support/raw-http.ts';

const HALF =
  'POST /v1/sessions/conv_1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n';
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
    const ended = await service.kill(second);
    expect(ended).toMatchObject({ code: 1, signal: null, stderr: '' });
    expect(await processIdentity(server.pid)).toBeUndefined();
    await service.said(CUT_OFF);
  });

  test('stops it when the grace is over', async () => {
    const service = await startProcess({ env: { DATA_DIR: dataDir, SHUTDOWN_GRACE_MS: '500' } });
    const server = await serverOf(dataDir);
    const holder = postgres(server.url, { max: 1, onnotice: () => {}, onclose: () => {} });
    const held = await holder.reserve();
    await held.unsafe('begin; lock table sessions in access exclusive mode');
    const waiting = service.request('PUT', '/v1/sessions/conv_1', {}).catch(() => {});
    await expect
      .poll(() => held.unsafe(`select from pg_locks where not granted`))
      .not.toHaveLength(0);
    const ended = await service.kill('SIGTERM');
    expect(ended).toMatchObject({ code: 0, signal: null, stderr: '' });
    expect(await processIdentity(server.pid)).toBeUndefined();
    await service.said(CUT_OFF);
    await waiting;
    await holder.end({ timeout: 0 });
  });
});

/** The server that runs on the folder. */
async function serverOf(folder: string): Promise<{ pid: number; url: string }> {
  const lines = (await readFile(join(folder, 'postgres/data/postmaster.pid'), 'utf8')).split('\n');
  const password = (await readFile(join(folder, 'postgres/password'), 'utf8')).trim();
  const url = `postgres://subagent_inbox:${password}@127.0.0.1:${lines[3]}/subagent_inbox`;
  return { pid: Number(lines[0]), url };
}
