import { fork } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { once } from 'node:events';
import { serve } from '@hono/node-server';
import { pino } from 'pino';
import postgres from 'postgres';
import { createApp } from '../src/app.ts';
import { readConfig } from '../src/config.ts';
import { startEmbeddedPostgres } from '../src/platform/embedded-postgres.ts';
import { startService } from '../src/service.ts';
import type { Load, LoadResult } from './load-client.ts';
import { naiveRoutes } from './naive.ts';

/*
 * How fast reports are taken in: the real route against a no-op behind the same middleware and
 * against the obvious implementation, in one run on one machine, with default durability. Every run
 * is checked by counting rows. Set BENCH_REPORTS for longer or shorter
 * runs, BENCH_CONNECTIONS (1,16,64,256) for some of them.
 */

const REPORTS = Number(process.env['BENCH_REPORTS'] ?? 20_000);
const PARENTS = 200;
/** Of a fan-out. */
const TASKS = 8;
/** A prime that divides no number of children that is used here. */
const STRIDE = 7_919;
const OUTPUT = 'The result of this sub-agent is a sentence like any other. '.repeat(4);
const CONNECTIONS = (process.env['BENCH_CONNECTIONS'] ?? '1,16,64,256').split(',').map(Number);

const dataDir = await mkdtemp(join(tmpdir(), 'subagent-inbox-bench-'));
const embedded = process.env['DATABASE_URL']
  ? null
  : await startEmbeddedPostgres({ dataDir, durable: true });
const databaseUrl = process.env['DATABASE_URL'] ?? embedded?.url ?? '';
const config = readConfig({ PORT: '0', LOG_LEVEL: 'warn' });
const service = await startService({ config, databaseUrl, log: pino({ level: 'warn' }) });
const noop = await listen(noopApp());
const naive = naiveRoutes(databaseUrl);
const naiveServer = await listen(naive.app);
const admin = postgres(databaseUrl, { max: 1, onnotice: () => {} });
let runs = 0;

try {
  console.log(`${cpus()[0]?.model}, ${cpus().length} cores, Node ${process.version}`);
  console.log(`PostgreSQL ${(await admin`show server_version`)[0]?.['server_version']}\n`);
  await measure(64, 'warm-up', 2_000);
  for (const connections of CONNECTIONS) {
    const count = connections === 1 ? REPORTS / 20 : connections === 16 ? REPORTS / 2 : REPORTS;
    const noopResult = await load(noop.url, connections, noopRequests(count));
    print(connections, 'no-op', noopResult);
    const real = await measure(connections, 'unique', count);
    const repeats = await measure(connections, 'repeats', count);
    print(connections, 'unique', real, noopResult);
    print(connections, 'half repeats', repeats, noopResult);
    if (connections >= 64) {
      for (const kind of ['fan-outs', 'lone tasks'] as const) {
        const delegated = await measure(connections, kind, count);
        print(connections, kind, delegated, noopResult);
        const ratio = (delegated.perSecond / real.perSecond).toFixed(2);
        console.log(`${' '.repeat(20)}${ratio} of the rate of single work`);
      }
    }
    if (connections === 64) {
      const naiveResult = await measure(connections, 'naive', count / 5);
      print(connections, 'naive', naiveResult, noopResult);
      console.log(
        `${' '.repeat(20)}the real route is ${(real.perSecond / naiveResult.perSecond).toFixed(1)} times the naive one`,
      );
    }
  }
} finally {
  await admin.end();
  naiveServer.server.close();
  await naive.close();
  noop.server.close();
  await service.stop({ drainMs: 0, withinMs: 5_000 });
  await embedded?.stop();
  await rm(dataDir, { recursive: true, force: true });
}

/** The app with a route that reads the body and answers 204: what HTTP alone can do. */
function noopApp() {
  const app = createApp(service.resources, {
    maxBodyBytes: config.maxBodyBytes,
    loopbackOnly: true,
    isDraining: () => false,
    unready: () => Promise.resolve(null),
  });
  app.post('/v1/noop/:id', async (c) => {
    await c.req.json();
    return c.body(null, 204);
  });
  return app;
}

async function listen({ fetch }: { fetch: Parameters<typeof serve>[0]['fetch'] }) {
  const server = serve({ fetch, port: 0, hostname: '127.0.0.1' });
  await once(server, 'listening');
  const address = server.address();
  const port = typeof address === 'object' && address !== null ? address.port : 0;
  return { server, url: `http://127.0.0.1:${port}` };
}

/** Runs one load over children of its own and proves by counting that each was delivered once. */
async function measure(
  connections: number,
  kind: 'warm-up' | 'unique' | 'repeats' | 'fan-outs' | 'lone tasks' | 'naive',
  count: number,
): Promise<LoadResult> {
  runs += 1;
  const run = `r${runs}`;
  const children = kind === 'repeats' ? count / 2 : count;
  await admin`
    insert into sessions (tenant_id, id, created_at, described_at, inbox_opened_at)
    select 'default', ${run} || 'p' || g, now(), now(), now()
    from generate_series(0, ${PARENTS - 1}::int) g`;
  await admin`
    insert into sessions (tenant_id, id, created_at, described_at, parent_session_id, agent_name)
    select 'default', ${run} || 'c' || g, now(), now(), ${run} || 'p' || (g % ${PARENTS}::int), 'coder'
    from generate_series(0, ${children - 1}::int) g`;
  const isDelegated = kind === 'fan-outs' || kind === 'lone tasks';
  const calls = isDelegated ? await delegateAll(run, kind === 'fan-outs' ? TASKS : 1) : children;
  const path = kind === 'naive' ? '/v1/naive/' : '/v1/sessions/';
  const requests = Array.from({ length: count }, (_, at) => {
    // A repeat follows its original at a distance, as a retry does; the first ones at once.
    const original = at % 2 === 1 && at > 600 ? at - 601 : at;
    const place = kind === 'repeats' ? original >> 1 : at;
    // Children end in another order than they were made in.
    const number = (place * STRIDE) % children;
    const tail = kind === 'naive' ? '' : '/events';
    return { path: `${path}${run}c${number}${tail}`, body: body(number) };
  });
  const result = await load(
    kind === 'naive' ? naiveServer.url : service.url,
    connections,
    requests,
  );
  const [row] = await admin`
    select count(*)::int as items, count(distinct source)::int as children from items
    where session_id like ${`${run}p%`}`;
  const refused = count - (result.statuses['204'] ?? 0);
  if (row?.['items'] !== calls || row['children'] !== calls || refused > 0) {
    throw new Error(`${kind}: ${JSON.stringify({ ...row, calls, statuses: result.statuses })}`);
  }
  return result;
}

/** Makes the children of the run tasks of calls, so many each, and says how many calls. */
async function delegateAll(run: string, tasks: number): Promise<number> {
  // Children of one parent are PARENTS numbers apart.
  await admin`
    create table bench_tasks as
    select id, parent_session_id as parent, place % ${tasks}::int as task,
      'deleg_' || parent_session_id || '_' || place / ${tasks}::int as call
    from (
      select *, substr(id, ${run.length + 2})::int / ${PARENTS}::int as place from sessions
      where id like ${`${run}c%`}) s`;
  await admin`
    update sessions set current_work_id = 'subagent_' || id where id like ${`${run}c%`}`;
  const calls = await admin`
    insert into delegations (tenant_id, delegation_id, origin_session_id, parent_session_id, mode,
      wakes, task_count, goals, request, notify_failures, created_at)
    select 'default', call, parent, parent, 'background', true, count(*),
      jsonb_agg('a goal'::text), '{}', false, now()
    from bench_tasks group by call, parent returning 1`;
  await admin`
    insert into units (tenant_id, unit_id, delegation_id, ordinal, task_indexes, status)
    select 'default', call, call, 0, jsonb_agg(task), 'running' from bench_tasks group by call`;
  await admin`
    insert into work (tenant_id, work_id, parent_session_id, child_session_id, agent, title, status,
      created_at, deadline_at, due_at, delegation_id, unit_id, task_index, goal)
    select 'default', 'subagent_' || id, parent, id, 'coder', '', 'launching', now(),
      now() + interval '1 day', now() + interval '1 day', call, call, task, 'a goal'
    from bench_tasks`;
  await admin`drop table bench_tasks`;
  return calls.length;
}

function noopRequests(count: number): Load['requests'] {
  return Array.from({ length: count }, (_, at) => ({ path: `/v1/noop/c${at}`, body: body(at) }));
}

function body(number: number): string {
  const data = { status: 'idle', output: `${number} ${OUTPUT}` };
  return JSON.stringify({ type: 'external_session_status', data });
}

function load(url: string, connections: number, requests: Load['requests']): Promise<LoadResult> {
  const client = fork(fileURLToPath(new URL('load-client.ts', import.meta.url)));
  return new Promise((resolve, reject) => {
    client.once('message', (result) => resolve(result as LoadResult));
    client.once('error', reject);
    client.once('exit', (code) => code !== 0 && reject(new Error(`the client ended with ${code}`)));
    client.send({ url, connections, requests } satisfies Load);
  });
}

function print(connections: number, what: string, result: LoadResult, against?: LoadResult): void {
  const ratio = against ? `  ${(result.perSecond / against.perSecond).toFixed(2)} of no-op` : '';
  console.log(
    `${String(connections).padStart(4)} ${what.padEnd(14)} ${result.perSecond.toFixed(0).padStart(6)}/s` +
      `  p50 ${result.p50.toFixed(1)} ms  p99 ${result.p99.toFixed(1)} ms${ratio}`,
  );
}
