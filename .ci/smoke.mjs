// Starts the built service as a newcomer does, without any setting but a folder and a free port, has
// it deliver one result, and ends it with SIGTERM. Exits with 0 when all of it went as promised.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

const dataDir = await mkdtemp(join(tmpdir(), 'subagent-inbox-smoke-'));
const service = spawn(process.execPath, ['--enable-source-maps', 'dist/main.js'], {
  env: { PATH: process.env.PATH, DATA_DIR: dataDir, PORT: '0' },
  stdio: ['ignore', 'pipe', 'inherit'],
});
const ended = once(service, 'exit');

async function findUrl() {
  for await (const line of createInterface(service.stdout)) {
    console.log(line);
    const { msg, url } = JSON.parse(line);
    if (msg === 'listening') return url;
  }
  throw new Error('the service ended before it listened');
}

async function send(method, url, body) {
  const headers = { 'content-type': 'application/json' };
  const answer = await fetch(url, { method, headers, body: JSON.stringify(body) });
  console.log(method, url, answer.status, answer.headers.get('delivery-outcome') ?? '');
  return answer;
}

try {
  const url = await findUrl();
  service.stdout.resume();
  assert.equal((await fetch(`${url}/readyz`)).status, 200);

  const sessions = `${url}/v1/sessions`;
  await send('PUT', `${sessions}/parent`, { inbox: 'open' });
  await send('PUT', `${sessions}/child`, { parent_session_id: 'parent', sub_agent_name: 'scout' });
  const report = {
    type: 'external_session_status',
    data: { status: 'idle', output: 'all is well' },
  };
  const delivered = await send('POST', `${sessions}/child/events`, report);
  assert.equal(delivered.status, 204);
  assert.equal(delivered.headers.get('delivery-outcome'), 'delivered');
  const again = await send('POST', `${sessions}/child/events`, report);
  assert.equal(again.headers.get('delivery-outcome'), 'already_delivered');
  const read = await (await send('POST', `${sessions}/parent/inbox/read`, {})).json();
  assert.deepEqual(
    read.items.map(({ text }) => text),
    ['[System: sub-agent task child completed — scout:scout returned: all is well]'],
  );

  service.kill('SIGTERM');
  const [code, signal] = await ended;
  assert.deepEqual({ code, signal }, { code: 0, signal: null });
} finally {
  service.kill('SIGKILL');
  await rm(dataDir, { recursive: true, force: true });
}
