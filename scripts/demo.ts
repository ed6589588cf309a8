import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { request } from 'node:http';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

/*
 * A small fleet plays against a throwaway instance: forwarders post the bodies that they send today,
 * lose answers, repeat themselves, report to a parent whose inbox opens late, and the service is
 * killed in the middle. In the end every result has been read once, or this exits with 1.
 */

/** A turn of one child: what its forwarder posts, and what its parent must read, once. */
interface Turn {
  harness: string;
  posts: Record<string, unknown>[];
  /** Arrives as conversation item before the posts. */
  text?: string;
  expected: { status: string; output: string };
}

const FAILED = 'Error: native sub-agent turn failed';
const completed = (output: string) => ({ status: 'completed', output });
const failed = (output: string) => ({ status: 'failed', output });

const TURNS: Turn[] = [
  {
    harness: 'claude: Stop, with its text as an item',
    text: 'Reviewed 14 files.',
    posts: [{ status: 'idle', background_task_count: 2, response_id: 'msg_1' }],
    expected: completed('Reviewed 14 files.'),
  },
  {
    harness: 'claude: StopFailure',
    posts: [{ status: 'failed', response_id: 'msg_2' }],
    expected: failed(FAILED),
  },
  {
    harness: 'claude: gives up on a hook',
    posts: [{ status: 'failed', output: 'hook status idle rejected' }],
    expected: failed('hook status idle rejected'),
  },
  {
    harness: 'claude: grandchild, bare',
    posts: [{ status: 'running' }, { status: 'idle' }],
    expected: completed(''),
  },
  {
    harness: 'claude: older build, waiting',
    posts: [{ status: 'waiting', background_task_count: 3 }],
    expected: completed(''),
  },
  {
    harness: 'codex: a turn',
    text: 'Tests are green.',
    posts: [
      { status: 'running', response_id: 'codex_turn_7' },
      { status: 'idle', response_id: 'codex_turn_7' },
    ],
    expected: completed('Tests are green.'),
  },
  {
    harness: 'codex: signed out',
    posts: [
      { status: 'running', response_id: 'codex_turn_8' },
      {
        status: 'failed',
        response_id: 'codex_turn_8',
        output: 'sign in again',
        reauth_required: true,
      },
    ],
    expected: failed('sign in again'),
  },
  { harness: 'antigravity: bare failure', posts: [{ status: 'failed' }], expected: failed(FAILED) },
  {
    harness: 'opencode: failed with text',
    posts: [{ status: 'failed', output: 'model overloaded', response_id: 'msg_oc' }],
    expected: failed('model overloaded'),
  },
  { harness: 'cursor: idle only', posts: [{ status: 'idle' }], expected: completed('') },
  {
    harness: 'kimi: text with the idle',
    posts: [{ status: 'idle', output: 'Done: 3 commits.' }],
    expected: completed('Done: 3 commits.'),
  },
  {
    harness: 'hermes: running, again and again',
    text: 'Summary written.',
    posts: [
      ...Array.from({ length: 5 }, () => ({ status: 'running', response_id: 'hermes_turn_1' })),
      { status: 'idle', response_id: 'hermes_turn_1' },
    ],
    expected: completed('Summary written.'),
  },
  {
    harness: 'goose: idle backstop',
    posts: [
      { status: 'running', response_id: 'goose:turn:1' },
      { status: 'idle', response_id: 'goose:turn:1' },
    ],
    expected: completed(''),
  },
];

const FLEETS = 8;
/** The parent whose inbox opens only when all of its children have reported. */
const LATE = 'conv_parent_0';
const dataDir = await mkdtemp(join(tmpdir(), 'subagent-inbox-demo-'));
const port = await freePort();
const url = `http://127.0.0.1:${port}`;
/** How often an event was answered in which way. */
const answers = new Map<string, number>();
let service = await startService();

try {
  const fleets = Array.from({ length: FLEETS }, (_, at) => `conv_parent_${at}`);
  for (const parent of fleets) {
    await settled('PUT', `/v1/sessions/${parent}`, { agent_name: 'orchestrator' });
    if (parent !== LATE) await settled('PUT', `/v1/sessions/${parent}/inbox`);
  }
  const playing = fleets.flatMap((parent) => TURNS.map((turn, at) => play(parent, turn, at)));
  await pause(300);
  console.log('… the service is killed (SIGKILL) and started again');
  await end(service, 'SIGKILL');
  service = await startService();
  await Promise.all(playing);
  await settled('PUT', `/v1/sessions/${LATE}/inbox`);
  // Every forwarder repeats its last report once more: its answer might have been lost.
  await Promise.all(fleets.flatMap((parent) => TURNS.map((turn, at) => repeat(parent, turn, at))));
  process.exitCode = report(await readAll(fleets), fleets);
} finally {
  await end(service, 'SIGTERM');
  await rm(dataDir, { recursive: true, force: true });
}

function childOf(parent: string, at: number): string {
  return `${parent}/child:${at}`;
}

/** One child's turn, as its forwarder reports it: until it is accepted, whatever happens. */
async function play(parent: string, turn: Turn, at: number): Promise<void> {
  const child = encodeURIComponent(childOf(parent, at));
  await settled('PUT', `/v1/sessions/${child}`, {
    parent_session_id: parent,
    sub_agent_name: `agent-${at}`,
  });
  if (turn.text !== undefined) {
    const item_data = { role: 'assistant', content: [{ type: 'output_text', text: turn.text }] };
    await settled('POST', `/v1/sessions/${child}/events`, {
      type: 'external_conversation_item',
      data: { item_type: 'message', item_data },
    });
  }
  for (const [n, data] of turn.posts.entries()) {
    const isLast = n === turn.posts.length - 1;
    // Each third forwarder loses the first answer to its last post, and posts again.
    if (isLast && at % 3 === 0) await loseAnswer(`/v1/sessions/${child}/events`, event(data));
    await untilTaken(`/v1/sessions/${child}/events`, event(data), parent === LATE);
  }
}

async function repeat(parent: string, turn: Turn, at: number): Promise<void> {
  const child = encodeURIComponent(childOf(parent, at));
  await untilTaken(`/v1/sessions/${child}/events`, event(turn.posts.at(-1) ?? {}), false);
}

function event(data: Record<string, unknown>) {
  const extras = { model_override: null, tools: null, created_by: null };
  return { type: 'external_session_status', data, ...extras };
}

/** Posts until the answer is a 2xx; a report to the late parent gives up after its first 503. */
async function untilTaken(path: string, body: unknown, mayStay: boolean): Promise<void> {
  for (;;) {
    const answer = await send('POST', path, body).catch(() => null);
    if (answer !== null && answer.status < 300) return;
    if (mayStay && answer?.outcome === 'not_confirmed') return;
    await pause(50);
  }
}

/** For what is no report: tried until the service is there. */
async function settled(method: string, path: string, body?: unknown): Promise<void> {
  for (;;) {
    const answer = await send(method, path, body).catch(() => null);
    if (answer !== null && answer.status < 300) return;
    await pause(50);
  }
}

interface Sent {
  status: number;
  outcome: string;
  body: string;
}

async function send(method: string, path: string, body?: unknown): Promise<Sent> {
  if (!path.endsWith('/events')) return await exchange(method, path, body);
  try {
    const answer = await exchange(method, path, body);
    tally(`${answer.status} ${answer.outcome}`.trim());
    return answer;
  } catch (error) {
    tally('no answer');
    throw error;
  }
}

function tally(answer: string): void {
  answers.set(answer, (answers.get(answer) ?? 0) + 1);
}

async function exchange(method: string, path: string, body?: unknown): Promise<Sent> {
  const outgoing = request(`${url}${path}`, { method });
  outgoing.end(body === undefined ? undefined : JSON.stringify(body));
  const [incoming] = await once(outgoing, 'response');
  const chunks: Buffer[] = [];
  for await (const chunk of incoming) chunks.push(chunk as Buffer);
  return {
    status: incoming.statusCode,
    outcome: String(incoming.headers['delivery-outcome'] ?? ''),
    body: Buffer.concat(chunks).toString(),
  };
}

/** Sends the report and goes away before the answer. */
async function loseAnswer(path: string, body: unknown): Promise<void> {
  tally('answer lost');
  const outgoing = request(`${url}${path}`, { method: 'POST' });
  outgoing.on('error', () => {});
  outgoing.end(JSON.stringify(body));
  await pause(5);
  outgoing.destroy();
}

interface ReadItem {
  conversation_id: string;
  status: string;
  output: string;
}

async function readAll(parents: string[]): Promise<Map<string, ReadItem[]>> {
  const byChild = new Map<string, ReadItem[]>();
  for (const parent of parents) {
    for (;;) {
      const path = `/v1/sessions/${parent}/inbox/read`;
      const { items } = JSON.parse((await send('POST', path, { drain: true })).body) as {
        items: ReadItem[];
      };
      if (items.length === 0) break;
      for (const item of items) {
        byChild.set(item.conversation_id, [...(byChild.get(item.conversation_id) ?? []), item]);
      }
    }
  }
  return byChild;
}

/** Prints what was sent and read; 1 if a result is missing, came twice, or is another. */
function report(byChild: Map<string, ReadItem[]>, parents: string[]): number {
  let lost = 0;
  let twice = 0;
  let wrong = 0;
  console.log(`\n${'forwarder'.padEnd(42)} ${'read as'.padEnd(10)} once`);
  for (const [at, turn] of TURNS.entries()) {
    let right = 0;
    for (const parent of parents) {
      const items = byChild.get(childOf(parent, at)) ?? [];
      if (items.length === 0) lost += 1;
      if (items.length > 1) twice += 1;
      const [item] = items;
      const isRight = item?.status === turn.expected.status && item.output === turn.expected.output;
      if (items.length === 1 && !isRight) wrong += 1;
      if (items.length === 1 && isRight) right += 1;
    }
    console.log(
      `${turn.harness.padEnd(42)} ${turn.expected.status.padEnd(10)} in ${right} of ${FLEETS} fleets`,
    );
  }
  const results = TURNS.length * parents.length;
  const sent = [...answers.values()].reduce((sum, one) => sum + one, 0);
  console.log(`\nevents sent    ${sent}`);
  for (const [answer, count] of [...answers].toSorted(([a], [b]) => (a < b ? -1 : 1))) {
    console.log(`  ${answer.padEnd(24)} ${count}`);
  }
  console.log(`results        ${results}`);
  console.log(`items read     ${[...byChild.values()].flat().length}`);
  console.log(`lost           ${lost}`);
  console.log(`twice          ${twice}`);
  if (wrong > 0) console.log(`wrong          ${wrong}`);
  return lost + twice + wrong === 0 ? 0 : 1;
}

async function startService(): Promise<ChildProcess> {
  const main = fileURLToPath(new URL('../src/main.ts', import.meta.url));
  const child = spawn(process.execPath, ['--import', 'tsx', main], {
    env: {
      ...process.env,
      DATABASE_URL: '',
      DATA_DIR: dataDir,
      PORT: String(port),
      LOG_LEVEL: 'error',
    },
    stdio: ['ignore', 'inherit', 'inherit'],
  });
  for (;;) {
    if (child.exitCode !== null) throw new Error(`the service ended with ${child.exitCode}`);
    const answer = await send('GET', '/readyz').catch(() => null);
    if (answer?.status === 200) return child;
    await pause(50);
  }
}

async function end(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, 'exit');
  child.kill(signal);
  await ended;
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  server.close();
  return typeof address === 'object' && address !== null ? address.port : 0;
}
