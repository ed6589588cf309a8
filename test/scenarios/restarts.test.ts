import { execFileSync } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test, vi } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { describeChild, freshId, path } from '../support/delivery.ts';
import { startLoad, type Load } from '../support/load.ts';
import { createTestDatabase } from '../support/postgres.ts';
import { startProcess, type ServiceProcess } from '../support/process.ts';

/* Real processes that are stopped and killed while forwarders report. */

const database = useDatabase();
const FORWARDERS = 24;
const ROUNDS = process.env['LONG'] ? 10 : 1;
vi.setConfig({ testTimeout: ROUNDS * 60_000 });

/** A parent with an open inbox, and its children. */
async function family(service: Pick<ServiceProcess, 'request'>) {
  const parent = freshId('parent');
  await service.request('PUT', `${path(parent)}/inbox`);
  const children = Array.from({ length: FORWARDERS }, () => freshId('child'));
  await Promise.all(children.map((child) => describeChild(service, parent, child)));
  return { parent, children };
}

/** All outputs that were ever delivered to the parent. */
async function outputsOf(
  { request }: Pick<ServiceProcess, 'request'>,
  parent: string,
): Promise<string[]> {
  const outputs: string[] = [];
  let after = '';
  for (;;) {
    const { body } = await request('GET', `${path(parent)}/inbox?state=all&limit=1000${after}`);
    outputs.push(...body.data.map((item: { output: string }) => item.output));
    if (!body.has_more) return outputs;
    after = `&after=${body.last_id}`;
  }
}

function expectExactlyOnce(outputs: string[], { delivered, lost }: Load): void {
  expect(lost).toEqual([]);
  expect(outputs).toHaveLength(new Set(outputs).size);
  expect(new Set(outputs)).toEqual(delivered);
  expect(delivered.size).toBeGreaterThan(FORWARDERS);
}

/** Resolves when the forwarders have got so many more reports delivered. */
async function progress(load: Load, by: number): Promise<void> {
  const goal = load.delivered.size + by;
  const failed = () => load.lost.length > 0;
  await expect
    .poll(() => load.delivered.size >= goal || failed(), { timeout: 30_000, interval: 20 })
    .toBe(true);
}

describe('a rolling restart of two replicas under load', () => {
  test('loses nothing of forwarders that try once and never again', async () => {
    const base = { DATABASE_URL: database.url, LOG_LEVEL: 'info', SHUTDOWN_GRACE_MS: '3000' };
    const replicas = await Promise.all([startProcess({ env: base }), startProcess({ env: base })]);
    const urls = replicas.map(({ url }) => url);
    const { parent, children } = await family(replicas[0]);
    const load = startLoad({ urls, children, tries: 'once' });
    for (let n = 0; n < 2 * ROUNDS; n += 1) {
      await progress(load, 2 * FORWARDERS);
      const ended = await replicas[n % 2]?.kill('SIGTERM');
      expect(ended).toMatchObject({ code: 0, stderr: '' });
      await progress(load, 2 * FORWARDERS);
      const { port } = new URL(urls[n % 2] ?? '');
      replicas[n % 2] = await startProcess({ env: { ...base, PORT: port } });
    }
    await progress(load, 2 * FORWARDERS);
    await load.stop();
    expectExactlyOnce(await outputsOf(replicas[0], parent), load);
    await Promise.all(replicas.map((replica) => replica.kill('SIGINT')));
  });
});

describe('kill -9 under load', () => {
  test('of the service: every report answered 204 is there once', async () => {
    const env = { DATABASE_URL: database.url };
    let service = await startProcess({ env });
    const { port } = new URL(service.url);
    const { parent, children } = await family(service);
    const load = startLoad({ urls: [service.url], children, tries: 'forever' });
    for (let n = 0; n < ROUNDS; n += 1) {
      await progress(load, 3 * FORWARDERS);
      expect(await service.kill('SIGKILL')).toMatchObject({ signal: 'SIGKILL' });
      service = await startProcess({ env: { ...env, PORT: port } });
    }
    await progress(load, 3 * FORWARDERS);
    await load.stop();
    expectExactlyOnce(await outputsOf(service, parent), load);
    await service.kill('SIGINT');
  });

  test('of the service and its embedded PostgreSQL: every report answered 204 is there once', async () => {
    const env = { DATA_DIR: await mkdtemp(join(tmpdir(), 'subagent-inbox-restarts-')) };
    let service = await startProcess({ env });
    const { port } = new URL(service.url);
    const { parent, children } = await family(service);
    const load = startLoad({ urls: [service.url], children, tries: 'forever' });
    for (let n = 0; n < ROUNDS; n += 1) {
      await progress(load, 3 * FORWARDERS);
      const pids = await postgresPids(env.DATA_DIR);
      expect(pids.length).toBeGreaterThan(4);
      const killed = service.kill('SIGKILL');
      for (const pid of pids) killIfThere(pid);
      await killed;
      service = await startProcess({ env: { ...env, PORT: port } });
    }
    await progress(load, 3 * FORWARDERS);
    await load.stop();
    expectExactlyOnce(await outputsOf(service, parent), load);
    await service.kill('SIGINT');
    await rm(env.DATA_DIR, { recursive: true });
  });
});

describe('six processes that start at once on an empty database', () => {
  test('all come up, and take reports for each other', async () => {
    const empty = await createTestDatabase();
    const env = { DATABASE_URL: empty.url };
    const services = await Promise.all(Array.from({ length: 6 }, () => startProcess({ env })));
    const [first] = services;
    if (first === undefined) throw new Error('six were started');
    const { parent, children } = await family(first);
    const urls = services.map(({ url }) => url);
    const load = startLoad({ urls, children, tries: 'once' });
    await progress(load, 2 * FORWARDERS);
    await load.stop();
    expectExactlyOnce(await outputsOf(first, parent), load);
    await Promise.all(services.map((service) => service.kill('SIGINT')));
    await empty.drop();
  });
});

/** The server of the folder, and the processes that it has started. */
async function postgresPids(dataDir: string): Promise<number[]> {
  const file = await readFile(join(dataDir, 'postgres/data/postmaster.pid'), 'utf8');
  const postmaster = Number(file.split('\n', 1)[0]);
  const rows = execFileSync('ps', ['-A', '-o', 'pid=,ppid='], { encoding: 'utf8' })
    .split('\n')
    .map((row) => row.trim().split(/\s+/).map(Number));
  return [
    postmaster,
    ...rows.filter(([, parent]) => parent === postmaster).map(([pid]) => pid ?? 0),
  ];
}

function killIfThere(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // It has ended with its server.
  }
}
