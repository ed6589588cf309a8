import { mkdtemp, rm } from 'node:fs/promises';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { sql } from 'drizzle-orm';
import { pino } from 'pino';
import postgres from 'postgres';
import { readConfig } from '../src/config.ts';
import { sweepLiveness } from '../src/operations/sweep-liveness.ts';
import { startEmbeddedPostgres } from '../src/platform/embedded-postgres.ts';
import { startService } from '../src/service.ts';
import { dueWork } from '../src/store/due-work.ts';

/*
 * What a sweep costs: it must depend on what is due, not on what is alive. The same passes run with
 * 1,000 and with 100,000 live children, in one run on one machine, and the plan is shown. Fails
 * where a pass reads more than it should.
 */

const ALIVE = [1_000, 100_000];
const DUE = [0, 100, 1_000];
const PASSES = Number(process.env['BENCH_PASSES'] ?? 15);
/** With so many times as much alive a pass may take so much longer: caches are colder. */
const RATIO_MAX = 3;

const dataDir = await mkdtemp(join(tmpdir(), 'subagent-inbox-bench-'));
const embedded = process.env['DATABASE_URL']
  ? null
  : await startEmbeddedPostgres({ dataDir, durable: true });
const databaseUrl = process.env['DATABASE_URL'] ?? embedded?.url ?? '';
// A clock that stands still between the passes: nothing falls due but what is made to.
let now = Date.now();
const service = await startService({
  config: readConfig({ PORT: '0', LOG_LEVEL: 'warn' }),
  databaseUrl,
  log: pino({ level: 'warn' }),
  clock: { now: () => now },
});
const { resources } = service;
const admin = postgres(databaseUrl, { max: 1, onnotice: () => {} });
const run = `s${Date.now()}`;

try {
  console.log(`${cpus()[0]?.model}, ${cpus().length} cores, Node ${process.version}`);
  console.log(`PostgreSQL ${(await admin`show server_version`)[0]?.['server_version']}`);
  const medians = new Map<string, number>();
  let made = 0;
  for (const alive of ALIVE) {
    await makeChildren(made, alive);
    made = alive;
    console.log(`\n${alive} children alive`);
    for (const due of DUE) {
      for (const kind of ['wait', 'end'] as const) {
        if (due === 0 && kind === 'end') continue;
        const ms = await measure(due, kind);
        medians.set(`${alive} ${due} ${kind}`, ms);
        console.log(`  ${String(due).padStart(5)} due, ${says(kind)}: ${ms.toFixed(1)} ms a pass`);
      }
    }
    await showPlan();
  }
  console.log('\n100,000 alive against 1,000:');
  let worst = 0;
  for (const due of DUE) {
    for (const kind of ['wait', 'end'] as const) {
      const few = medians.get(`${ALIVE[0]} ${due} ${kind}`);
      const many = medians.get(`${ALIVE[1]} ${due} ${kind}`);
      if (few === undefined || many === undefined) continue;
      console.log(`  ${String(due).padStart(5)} due, ${says(kind)}: ${(many / few).toFixed(2)}`);
      worst = Math.max(worst, many / few);
    }
  }
  if (worst > RATIO_MAX) throw new Error(`a pass costs what is alive: ${worst.toFixed(2)}`);
} finally {
  await admin.end();
  await service.stop({ drainMs: 0, withinMs: 10_000 });
  await embedded?.stop();
  await rm(dataDir, { recursive: true, force: true });
}

function says(kind: 'wait' | 'end'): string {
  return kind === 'wait' ? 'nothing to be done with them' : 'all of which end';
}

/** Live children of 100 parents with all clocks, none of which is near its end, and heartbeats. */
async function makeChildren(from: number, to: number): Promise<void> {
  const at = new Date(now);
  await admin`
    insert into sessions (tenant_id, id, created_at, described_at, inbox_opened_at)
    select 'default', ${run} || 'p' || g, ${at}, ${at}, ${at} from generate_series(0, 99) g
    on conflict do nothing`;
  await admin`
    insert into sessions (tenant_id, id, created_at, described_at, parent_session_id, agent_name,
      current_work_id)
    select 'default', ${run} || 'c' || g, ${at}, ${at}, ${run} || 'p' || (g % 100), 'coder',
      ${run} || 'w' || g from generate_series(${from}::int, ${to - 1}::int) g`;
  await admin`
    insert into work (tenant_id, work_id, parent_session_id, child_session_id, agent, title, status,
      created_at, deadline_at, due_at, child_timeout_ms, stall)
    select 'default', ${run} || 'w' || g, ${run} || 'p' || (g % 100), ${run} || 'c' || g, 'coder',
      '', 'running', ${at}, ${new Date(now + 86_400_000)},
      ${new Date(now + 450_000)}::timestamptz + g * interval '1 millisecond', 43200000,
      '{"idleMs":450000,"inToolMs":1200000,"graceMs":120000}'
    from generate_series(${from}::int, ${to - 1}::int) g`;
  await admin`
    insert into heartbeats (tenant_id, child_session_id, work_id, api_calls, progressed, progress_at)
    select 'default', ${run} || 'c' || g, ${run} || 'w' || g, 1, false, ${at}
    from generate_series(${from}::int, ${to - 1}::int) g`;
  // As autovacuum would have it a minute later.
  await admin`vacuum analyze`;
}

/** The median time of a pass with so many entries due. */
async function measure(due: number, kind: 'wait' | 'end'): Promise<number> {
  const times: number[] = [];
  // Ending takes them away, so there are fewer of those passes.
  const passes = kind === 'end' ? 3 : PASSES;
  for (let pass = 0; pass < passes; pass += 1) {
    await makeDue(due, kind);
    const startedAt = performance.now();
    while (await sweepLiveness(resources));
    times.push(performance.now() - startedAt);
    if (kind === 'end') await putBack();
  }
  const left = await admin`
    select 1 from work where ended_at is null and due_at <= ${new Date(now)} limit 1`;
  if (left.length > 0) throw new Error('a pass has left something due');
  return times.toSorted((a, b) => a - b)[Math.floor(times.length / 2)] ?? 0;
}

async function makeDue(count: number, kind: 'wait' | 'end'): Promise<void> {
  const over = kind === 'end' ? new Date(now) : null;
  await admin`
    update work set due_at = ${new Date(now)}, deadline_at = coalesce(${over}, deadline_at),
      created_at = case when ${over}::timestamptz is null then created_at
        else created_at - interval '1 day' end
    where work_id in (select work_id from work
      where ended_at is null and work_id like ${`${run}w%`} limit ${count})`;
}

/** Makes what has ended live again, so that as many are alive in the next pass. */
async function putBack(): Promise<void> {
  const ended = await admin`
    select count(*)::int as ended from work where ended_at is not null and status <> 'timeout'`;
  if (ended[0]?.['ended'] !== 0) throw new Error('something ended otherwise than by its deadline');
  await admin`
    update work set ended_at = null, status = 'running', revision = 0, last_item_seq = null,
      result_digest = null, interrupt_reason = null, created_at = created_at + interval '1 day',
      deadline_at = ${new Date(now + 86_400_000)}, due_at = ${new Date(now + 450_000)}
    where ended_at is not null`;
  await admin`delete from items`;
}

/** How the due entries are found, when there are 100 of them; throws if a table is read whole. */
async function showPlan(): Promise<void> {
  await makeDue(100, 'wait');
  const page = { now, limit: 1_000 };
  const rows = await resources.database.run((db) =>
    db.execute<{ 'QUERY PLAN': string }>(
      sql`explain (analyze, buffers, costs off, timing off, summary off) ${dueWork(page)}`,
    ),
  );
  const plan = rows.map((row) => row['QUERY PLAN']).join('\n    ');
  console.log(`  the plan, with 100 due:\n    ${plan}`);
  if (plan.includes('Seq Scan') || !plan.includes('work_due')) {
    throw new Error('the due entries are not found by their index');
  }
  while (await sweepLiveness(resources));
  now += 1;
}
