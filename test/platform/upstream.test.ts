import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { pino } from 'pino';
import { afterEach, describe, expect, it, test } from 'vitest';
import {
  createUpstream,
  FAILURES_MAX,
  MESSAGES_BYTES_MAX,
  OPEN_MS,
  QUESTIONS_MAX,
  SESSION_BYTES_MAX,
  type Upstream,
} from '../../src/platform/upstream.ts';

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

const servers: Server[] = [];
afterEach(() => {
  for (const server of servers.splice(0)) {
    server.close();
    server.closeAllConnections();
  }
});

/** A service that answers as told, and a client of it; `asked` are the paths in order. */
async function startUpstream(
  handler: Handler,
  options: { timeoutMs?: number; token?: string } = {},
) {
  const asked: string[] = [];
  const current = { handler };
  const server = createServer((request, response) => {
    asked.push(request.url ?? '');
    current.handler(request, response);
  });
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  let nowMs = 0;
  const upstream = createUpstream({
    url: `http://127.0.0.1:${port}/base/`,
    token: options.token ?? null,
    timeoutMs: options.timeoutMs ?? 2_000,
    log: pino({ level: 'silent' }),
    now: () => nowMs,
  });
  return {
    upstream,
    asked,
    answerWith: (next: Handler) => (current.handler = next),
    passTime: (ms: number) => (nowMs += ms),
  };
}

const json =
  (body: unknown, status = 200): Handler =>
  (_, response) => {
    response.writeHead(status, { 'content-type': 'application/json' });
    response.end(JSON.stringify(body));
  };
const text =
  (body: string, status = 200): Handler =>
  (_, response) => {
    response.writeHead(status).end(body);
  };
const reset: Handler = (request) => request.socket.destroy();
const silence: Handler = () => {};

describe('a session', () => {
  it('is asked for by its id, percent-encoded, below the base and with the token', async () => {
    let authorization: string | undefined;
    const { upstream, asked } = await startUpstream(
      (request, response) => {
        authorization = request.headers.authorization;
        json({ id: 'x' })(request, response);
      },
      { token: 'secret' },
    );
    const answer = await upstream.readSession('a/b %#😀?:__proto__');
    expect(answer).toEqual({ kind: 'found', value: { id: 'x' } });
    expect(asked).toEqual([`/base/v1/sessions/${encodeURIComponent('a/b %#😀?:__proto__')}`]);
    expect(authorization).toBe('Bearer secret');
  });

  it('is asked for without a token where there is none', async () => {
    let headers = {};
    const { upstream } = await startUpstream((request, response) => {
      ({ headers } = request);
      json({})(request, response);
    });
    await upstream.readSession('c');
    expect(headers).not.toHaveProperty('authorization');
  });

  test.each([[404], [410]])('is absent where upstream answers %i', async (status) => {
    const { upstream } = await startUpstream(json({ detail: 'no' }, status));
    expect(await upstream.readSession('c')).toEqual({ kind: 'absent' });
  });

  test.each<[string, Handler]>([
    ['breaks the connection', reset],
    ['answers 500', json({}, 500)],
    ['answers 401', json({}, 401)],
    ['answers 204', (_, response) => void response.writeHead(204).end()],
    ['redirects', (_, response) => void response.writeHead(302, { location: '/elsewhere' }).end()],
    ['answers with no JSON', text('<html>')],
    ['answers with an array', json([])],
    ['answers with null', json(null)],
    ['answers with nothing', text('')],
    [
      'stops in the middle',
      (request, response) => {
        response.writeHead(200, { 'content-length': '100' });
        response.write('{"id":');
        setTimeout(() => request.socket.destroy(), 10);
      },
    ],
    ['answers with more than a snapshot has', text(`{"a":"${'x'.repeat(SESSION_BYTES_MAX)}"}`)],
  ])('is unavailable where upstream %s', async (_, handler) => {
    const { upstream } = await startUpstream(handler);
    expect(await upstream.readSession('c')).toEqual({ kind: 'unavailable' });
  });

  it('is unavailable where nobody listens', async () => {
    const upstream = createUpstream({
      url: 'http://127.0.0.1:1',
      token: null,
      timeoutMs: 2_000,
      log: pino({ level: 'silent' }),
    });
    expect(await upstream.readSession('c')).toEqual({ kind: 'unavailable' });
  });

  test.each<[string, Handler]>([
    ['never answers', silence],
    [
      'never ends its answer',
      (_, response) => {
        response.writeHead(200);
        response.write('{');
      },
    ],
  ])('is unavailable within the time limit where upstream %s', async (_, handler) => {
    const { upstream } = await startUpstream(handler, { timeoutMs: 100 });
    const startedAt = performance.now();
    expect(await upstream.readSession('c')).toEqual({ kind: 'unavailable' });
    expect(performance.now() - startedAt).toBeLessThan(1_000);
  });
});

describe('questions', () => {
  it('about one session that come together are asked once, and all get the answer', async () => {
    const { upstream, asked } = await startUpstream((request, response) => {
      setTimeout(() => json({ id: 'c' })(request, response), 20);
    });
    const answers = await Promise.all(Array.from({ length: 50 }, () => upstream.readSession('c')));
    expect(asked).toHaveLength(1);
    expect(answers).toEqual(answers.map(() => ({ kind: 'found', value: { id: 'c' } })));
    await upstream.readSession('c');
    expect(asked).toHaveLength(2);
  });

  it('about a session and about its messages are different ones', async () => {
    const { upstream, asked } = await startUpstream(json({ data: [] }));
    await Promise.all([upstream.readSession('c'), upstream.readMessages('c')]);
    expect(asked.toSorted()).toEqual([
      '/base/v1/sessions/c',
      '/base/v1/sessions/c/items?type=message&order=desc&limit=20',
    ]);
  });

  it('beyond so many at once wait for their turn, and all are answered', async () => {
    let underWay = 0;
    let most = 0;
    const { upstream } = await startUpstream((request, response) => {
      underWay += 1;
      most = Math.max(most, underWay);
      setTimeout(() => {
        underWay -= 1;
        json({})(request, response);
      }, 5);
    });
    const ids = Array.from({ length: 3 * QUESTIONS_MAX }, (_, n) => `c${n}`);
    const answers = await Promise.all(ids.map((id) => upstream.readSession(id)));
    expect(answers.filter(({ kind }) => kind === 'found')).toHaveLength(ids.length);
    expect(most).toBeLessThanOrEqual(QUESTIONS_MAX);
  });

  it('that wait longer than the time limit are given up, and leave no place taken', async () => {
    const { upstream, asked, answerWith } = await startUpstream(silence, { timeoutMs: 150 });
    const ids = Array.from({ length: QUESTIONS_MAX + 5 }, (_, n) => `c${n}`);
    const answers = await Promise.all(ids.map((id) => upstream.readSession(id)));
    expect(new Set(answers.map(({ kind }) => kind))).toEqual(new Set(['unavailable']));
    expect(asked.length).toBeLessThanOrEqual(QUESTIONS_MAX);
    answerWith(json({}));
  });
});

async function fail(upstream: Upstream, times: number): Promise<void> {
  for (let n = 0; n < times; n += 1) await upstream.readSession(`failing ${n}`);
}

describe('the circuit breaker', () => {
  it('opens after some failures in a row: upstream is left alone', async () => {
    const { upstream, asked, answerWith } = await startUpstream(json({}, 503));
    await fail(upstream, FAILURES_MAX);
    answerWith(json({ id: 'c' }));
    expect(await upstream.readSession('c')).toEqual({ kind: 'unavailable' });
    expect(asked).toHaveLength(FAILURES_MAX);
  });

  it('stays closed while failures are not in a row', async () => {
    const { upstream, answerWith } = await startUpstream(reset);
    for (let n = 0; n < 3; n += 1) {
      answerWith(reset);
      await fail(upstream, FAILURES_MAX - 1);
      answerWith(json({}));
      expect((await upstream.readSession('c')).kind).toBe('found');
    }
  });

  test.each([[400], [401], [403], [404], [422]])(
    'counts %i as an answer: it says nothing of the other sessions',
    async (status) => {
      const { upstream, answerWith } = await startUpstream(json({}, status));
      await fail(upstream, 3 * FAILURES_MAX);
      answerWith(json({}));
      expect((await upstream.readSession('c')).kind).toBe('found');
    },
  );

  it('lets one question probe after a while, and closes when that is answered', async () => {
    const { upstream, asked, answerWith, passTime } = await startUpstream(json({}, 500));
    await fail(upstream, FAILURES_MAX);
    passTime(OPEN_MS);
    answerWith((request, response) => {
      setTimeout(() => json({})(request, response), 30);
    });
    const answers = await Promise.all(['a', 'b', 'c'].map((id) => upstream.readSession(id)));
    expect(answers.map(({ kind }) => kind)).toEqual(['found', 'unavailable', 'unavailable']);
    expect(asked).toHaveLength(FAILURES_MAX + 1);
    expect((await upstream.readSession('b')).kind).toBe('found');
  });

  it('opens anew when the probe fails, and probes again later', async () => {
    const { upstream, asked, answerWith, passTime } = await startUpstream(json({}, 500));
    await fail(upstream, FAILURES_MAX);
    passTime(OPEN_MS);
    await fail(upstream, 3);
    expect(asked).toHaveLength(FAILURES_MAX + 1);
    answerWith(json({}));
    passTime(OPEN_MS - 1);
    expect((await upstream.readSession('c')).kind).toBe('unavailable');
    passTime(1);
    expect((await upstream.readSession('c')).kind).toBe('found');
  });
});

const asked = async (body: unknown) => {
  const { upstream } = await startUpstream(json(body));
  return await upstream.readMessages('c');
};

describe("a session's last messages", () => {
  it('come as they are', async () => {
    const data = [{ id: 'msg_1', role: 'assistant' }, null, 'x'];
    expect(await asked({ object: 'list', data })).toEqual({ kind: 'found', value: data });
  });

  it('are absent where upstream does not know the session', async () => {
    const { upstream } = await startUpstream(json({}, 404));
    expect(await upstream.readMessages('c')).toEqual({ kind: 'absent' });
  });

  test.each([[{}], [{ data: {} }], [[]], [null]])('are unavailable from %j', async (body) => {
    expect(await asked(body)).toEqual({ kind: 'unavailable' });
  });

  it('may be as large as a report', async () => {
    const data = [{ content: 'x'.repeat(8 * 1024 * 1024) }];
    expect(await asked({ data })).toEqual({ kind: 'found', value: data });
  });

  it('are unavailable where the list is too large', async () => {
    const { upstream } = await startUpstream(text(' '.repeat(MESSAGES_BYTES_MAX + 1)));
    expect(await upstream.readMessages('c')).toEqual({ kind: 'unavailable' });
  });
});
