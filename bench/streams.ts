import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import postgres from 'postgres';
import { startEmbeddedPostgres } from '../src/platform/embedded-postgres.ts';
import { startProcess } from '../test/support/process.ts';
import { openEventStream, type EventStream } from '../test/support/sse.ts';

/*
 * What open streams cost one replica: its memory before and with them, whether each is served when
 * each of their sessions gets a result, and whether all are ended in time, whole, when it stops.
 * BENCH_STREAMS says how many.
 */

const STREAMS = Number(process.env['BENCH_STREAMS'] ?? 2_000);
const OPENED_AT_ONCE = 100;
const GRACE_MS = 10_000;

const dataDir = await mkdtemp(join(tmpdir(), 'subagent-inbox-bench-'));
const embedded = process.env['DATABASE_URL']
  ? null
  : await startEmbeddedPostgres({ dataDir, durable: true });
const databaseUrl = process.env['DATABASE_URL'] ?? embedded?.url ?? '';
const admin = postgres(databaseUrl, { max: 1, onnotice: () => {} });

try {
  const env = { DATABASE_URL: databaseUrl, SHUTDOWN_GRACE_MS: String(GRACE_MS) };
  const service = await startProcess({ env });
  console.log(`${cpus()[0]?.model}, ${cpus().length} cores, Node ${process.version}\n`);
  await admin`
    insert into sessions (tenant_id, id, created_at, described_at, inbox_opened_at)
    select 'default', 'p' || g, now(), now(), now() from generate_series(1, ${STREAMS}::int) g`;
  await admin`
    insert into sessions (tenant_id, id, created_at, described_at, parent_session_id, agent_name)
    select 'default', 'c' || g, now(), now(), 'p' || g, 'coder'
    from generate_series(1, ${STREAMS}::int) g`;

  const before = await residentMb(service.pid);
  const streams: EventStream[] = [];
  const openedIn = await timed(async () => {
    for (let at = 0; at < STREAMS; at += OPENED_AT_ONCE) {
      const some = Array.from({ length: OPENED_AT_ONCE }, async (_, n) => {
        const stream = await openEventStream(service.url, `/v1/sessions/p${at + n + 1}/stream`);
        await stream.next('session.snapshot');
        return stream;
      });
      streams.push(...(await Promise.all(some)));
    }
  });
  const open = await residentMb(service.pid);
  console.log(`${streams.length} streams opened in ${openedIn.toFixed(0)} ms`);

  const idleFrom = await cpuSeconds(service.pid);
  await new Promise((resolve) => setTimeout(resolve, 10_000));
  const idleShare = ((await cpuSeconds(service.pid)) - idleFrom) / 10;

  const servedIn = await timed(async () => {
    const woken = streams.map((stream) => stream.next('inbox.wake'));
    for (let at = 0; at < STREAMS; at += OPENED_AT_ONCE) {
      await Promise.all(
        Array.from({ length: OPENED_AT_ONCE }, (_, n) =>
          service.request('POST', `/v1/sessions/c${at + n + 1}/events`, {
            type: 'external_session_status',
            data: { status: 'idle', output: 'done' },
          }),
        ),
      );
    }
    await Promise.all(woken);
  });
  console.log(`a result for each, reported and told, in ${servedIn.toFixed(0)} ms`);
  const served = await residentMb(service.pid);
  const kb = ((Math.max(open, served) - before) * 1024) / STREAMS;
  console.log(
    `resident ${before.toFixed(0)} MB before, ${open.toFixed(0)} MB open, ${served.toFixed(0)} MB ` +
      `after serving: ${kb.toFixed(0)} KB a stream; ${(idleShare * 100).toFixed(1)} % of a core at rest`,
  );

  const endedIn = await timed(async () => {
    const ended = Promise.allSettled(streams.map((stream) => stream.ended));
    const exit = service.kill('SIGTERM');
    const whole = (await ended).filter(
      (end) => end.status === 'fulfilled' && /\nretry: \d+\n\n$/.test(end.value),
    );
    console.log(`${whole.length} of ${STREAMS} ended whole, with the time to come back`);
    const { code } = await exit;
    if (code !== 0 || whole.length < STREAMS) throw new Error(`ended with ${code}`);
  });
  console.log(`the process ended ${endedIn.toFixed(0)} ms after SIGTERM, of ${GRACE_MS}`);
} finally {
  await admin.end();
  await embedded?.stop();
  await rm(dataDir, { recursive: true, force: true });
}

async function timed(act: () => Promise<void>): Promise<number> {
  const startedAt = performance.now();
  await act();
  return performance.now() - startedAt;
}

async function residentMb(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  return Number(/VmRSS:\s+(\d+) kB/.exec(status)?.[1]) / 1024;
}

/** Time of the processor that the process has used; a tick is a hundredth of a second on Linux. */
async function cpuSeconds(pid: number): Promise<number> {
  const fields = (await readFile(`/proc/${pid}/stat`, 'utf8')).split(') ')[1]?.split(' ') ?? [];
  return (Number(fields[11]) + Number(fields[12])) / 100;
}
