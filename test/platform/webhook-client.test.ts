import { once } from 'node:events';
import { createServer, type AddressInfo, type Socket } from 'node:net';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterEach, describe, expect, test } from 'vitest';
import { createWebhookClient } from '../../src/platform/webhook-client.ts';

const client = createWebhookClient({ allowPrivate: true });

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

const closers: (() => void)[] = [];
afterEach(() => {
  for (const close of closers.splice(0)) close();
});

/** A receiver that says this, whatever it is told, and leaves the connection open. */
async function receiverSaying(said: string) {
  const server = createServer((socket) => {
    socket.on('error', () => {});
    socket.once('data', () => socket.write(said));
    closers.push(() => socket.destroy());
  });
  closers.push(() => server.close());
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}/`,
    connected: once(server, 'connection') as Promise<[Socket]>,
  };
}

const post = (url: string, over: { timeoutMs?: number; signal?: AbortSignal } = {}) =>
  client.post({
    url,
    headers: {},
    body: '{}',
    timeoutMs: 500,
    signal: new AbortController().signal,
    ...over,
  });

describe('a call that is not answered', () => {
  test('ends when its time is up, also where memory was cleared up meanwhile', async () => {
    const { url, connected } = await receiverSaying('');
    const answer = post(url);
    const [socket] = await connected;
    await once(socket, 'data');
    collectGarbage();
    expect(await answer).toMatchObject({ kind: 'unanswered' });
  }, 5_000);

  test('ends when it is cut off', async () => {
    const { url, connected } = await receiverSaying('');
    const cutOff = new AbortController();
    const answer = post(url, { timeoutMs: 60_000, signal: cutOff.signal });
    const [socket] = await connected;
    await once(socket, 'data');
    collectGarbage();
    cutOff.abort();
    expect(await answer).toMatchObject({ kind: 'unanswered' });
  }, 5_000);
});

const UPGRADED =
  'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n';

describe('a receiver that', () => {
  test.each([
    ['answers', 'HTTP/1.1 204 No Content\r\n\r\n', { kind: 'answered', status: 204 }],
    [
      'answers after a hint',
      'HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n',
      { kind: 'answered', status: 204 },
    ],
    ['never ends its answer', 'HTTP/1.1 200 OK\r\n\r\nand', { kind: 'answered', status: 200 }],
    ['changes the protocol', UPGRADED, { kind: 'answered', status: 101 }],
    [
      'changes it without saying to what',
      'HTTP/1.1 101 Switching Protocols\r\n\r\n',
      { kind: 'answered', status: 101 },
    ],
    ['only bids to go on', 'HTTP/1.1 100 Continue\r\n\r\n', { kind: 'unanswered' }],
    ['does not end its headers', 'HTTP/1.1 200 OK\r\nX', { kind: 'unanswered' }],
    [
      'says too much in its headers',
      `HTTP/1.1 200 OK\r\nX: ${'x'.repeat(100_000)}\r\n\r\n`,
      { kind: 'unanswered' },
    ],
    ['speaks something else', 'hello\r\n\r\n', { kind: 'unanswered' }],
  ])(
    '%s ends the call',
    async (_, said, ended) => {
      const { url } = await receiverSaying(said);
      expect(await post(url)).toMatchObject(ended);
    },
    5_000,
  );
});
