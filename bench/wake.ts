import { fork } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import postgres from 'postgres';
import { startEmbeddedPostgres } from '../src/platform/embedded-postgres.ts';
import { startProcess, type ServiceProcess } from '../test/support/process.ts';
import type { Load, LoadResult } from './load-client.ts';

/*
 * How long it takes from the commit on one replica to a reader, and to a stream, on another, at rest
 * and while the first takes in as much as it can; and what telling the others costs the ingest. Three
 * processes: two replicas and this one, by whose clock all is measured. BENCH_WAKES and
 * BENCH_REPORTS make runs longer or shorter.
 */

const WAKES = Number(process.env['BENCH_WAKES'] ?? 300);
const REPORTS = Number(process.env['BENCH_REPORTS'] ?? 10_000);
const PARENTS = 200;
const CONNECTIONS = 64;
const OUTPUT = 'The result of this sub-agent is a sentence like any other. '.repeat(4);

const dataDir = await mkdtemp(join(tmpdir(), 'subagent-inbox-bench-'));
const embedded = process.env['DATABASE_URL']
  ? null
  : await startEmbeddedPostgres({ dataDir, durable: true });
const databaseUrl = process.env['DATABASE_URL'] ?? embedded?.url ?? '';
const start = (notifications: boolean) =>
  startProcess({ env: { DATABASE_URL: databaseUrl, NOTIFICATIONS: String(notifications) } });
const admin = postgres(databaseUrl, { max: 1, onnotice: () => {} });
let runs = 0;

try {
  console.log(`${cpus()[0]?.model}, ${cpus().length} cores, Node ${process.version}\n`);
  const [writer, reader] = [await start(true), await start(true)];
  await ingest(writer, 2_000);
  print('at rest', await commitToReader(writer, reader, WAKES));
  const load = ingest(writer, REPORTS);
  print('under load', await commitToReader(writer, reader, WAKES));
  const { perSecond } = await load;
  console.log(`${' '.repeat(12)}while ${perSecond.toFixed(0)} reports/s were taken in\n`);
  await Promise.all([writer.kill('SIGINT'), reader.kill('SIGINT')]);

  const rates = { on: [] as number[], off: [] as number[] };
  for (const setting of ['on', 'off', 'off', 'on', 'on', 'off'] as const) {
    const replicas = [await start(setting === 'on'), await start(setting === 'on')] as const;
    await ingest(replicas[0], 1_000);
    rates[setting].push((await ingest(replicas[0], REPORTS)).perSecond);
    await Promise.all(replicas.map((replica) => replica.kill('SIGINT')));
  }
  const [on, off] = [median(rates.on), median(rates.off)];
  console.log(`ingest, two replicas that tell each other  ${on.toFixed(0)}/s`);
  console.log(`ingest, two replicas that do not           ${off.toFixed(0)}/s`);
  console.log(`ratio ${(on / off).toFixed(2)}`);
} finally {
  await admin.end();
  await embedded?.stop();
  await rm(dataDir, { recursive: true, force: true });
}

/** From the answer to a report at one replica to that of a reader who waits at the other, in ms. */
async function commitToReader(
  writer: ServiceProcess,
  reader: ServiceProcess,
  count: number,
): Promise<number[]> {
  const run = await prepare(count, 1);
  const parent = `${run}p0`;
  const times: number[] = [];
  for (let at = 0; at < count; at += 1) {
    const reading = reader
      .request('POST', `/v1/sessions/${parent}/inbox/read`, { wait_seconds: 30, drain: true })
      .then((answer) => ({ items: answer.body.items.length as number, at: performance.now() }));
    // The reader has looked and waits by the time the report is sent.
    await new Promise((resolve) => setTimeout(resolve, 10));
    await writer.request('POST', `/v1/sessions/${run}c${at}/events`, report(at));
    const committedAt = performance.now();
    const read = await reading;
    if (read.items !== 1) throw new Error(`read ${read.items} items`);
    times.push(Math.max(0, read.at - committedAt));
  }
  return times;
}

async function ingest(replica: ServiceProcess, count: number): Promise<LoadResult> {
  const run = await prepare(count, PARENTS);
  const requests = Array.from({ length: count }, (_, at) => ({
    path: `/v1/sessions/${run}c${at}/events`,
    body: JSON.stringify(report(at)),
  }));
  const result = await runLoad({ url: replica.url, connections: CONNECTIONS, requests });
  if (result.statuses['204'] !== count) throw new Error(JSON.stringify(result.statuses));
  return result;
}

/** Makes children of some parents, whose inboxes are open; answers how their ids begin. */
async function prepare(children: number, parents: number): Promise<string> {
  runs += 1;
  const run = `w${runs}`;
  await admin`
    insert into sessions (tenant_id, id, created_at, described_at, inbox_opened_at)
    select 'default', ${run} || 'p' || g, now(), now(), now()
    from generate_series(0, ${parents - 1}::int) g`;
  await admin`
    insert into sessions (tenant_id, id, created_at, described_at, parent_session_id, agent_name)
    select 'default', ${run} || 'c' || g, now(), now(), ${run} || 'p' || (g % ${parents}::int),
      'coder'
    from generate_series(0, ${children - 1}::int) g`;
  return run;
}

function report(number: number) {
  const data = { status: 'idle', output: `${number} ${OUTPUT}` };
  return { type: 'external_session_status', data };
}

function runLoad(load: Load): Promise<LoadResult> {
  const client = fork(fileURLToPath(new URL('load-client.ts', import.meta.url)));
  return new Promise((resolve, reject) => {
    client.once('message', (result) => resolve(result as LoadResult));
    client.once('error', reject);
    client.once('exit', (code) => code !== 0 && reject(new Error(`the client ended with ${code}`)));
    client.send(load);
  });
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
}

function print(what: string, times: readonly number[]): void {
  const sorted = times.toSorted((a, b) => a - b);
  const at = (share: number) => (sorted[Math.floor(sorted.length * share)] ?? 0).toFixed(1);
  console.log(
    `${what.padEnd(11)} commit → reader on another replica  p50 ${at(0.5)} ms  p99 ${at(0.99)} ms`,
  );
}
