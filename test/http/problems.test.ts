import { describe, expect, test } from 'vitest';
import { StorageUnavailable } from '../../src/store/unavailable.ts';
import { useDatabase } from '../support/database.ts';
import { openRaw } from '../support/raw-http.ts';
import { startService, useService } from '../support/service.ts';

const MIB = 1024 * 1024;
const EVENTS = '/v1/sessions/conv_1/events';
/** Taken in, and nothing done with: what these tests send where the body is right. */
const IGNORED = '{"type":"external_ping","data":{}}';

const database = useDatabase();
const service = useService(database);

describe('what no route takes', () => {
  test('is 404 where there is nothing', async () => {
    const answer = await service.request('GET', '/v1/nothing?token=secret');
    expect(answer.status).toBe(404);
    expect(answer.headers['content-type']).toBe('application/problem+json');
    expect(answer.body).toEqual({
      type: '/problems/not_found',
      title: 'There is no such thing',
      status: 404,
      detail: 'No such resource.',
      instance: '/v1/nothing',
      error: 'not_found',
    });
  });

  test('is 405 with Allow where another method would do', async () => {
    const answer = await service.request('PATCH', '/v1/sessions/conv_1');
    expect(answer.status).toBe(405);
    expect(answer.headers.allow).toBe('GET, PUT, DELETE');
    expect(answer.body).toMatchObject({ error: 'method_not_allowed' });
  });

  test('every type leads to a page that says what it means', async () => {
    const refused = await service.request('GET', '/v1/nothing');
    const page = await service.request('GET', refused.body.type as string);
    expect(page.body).toEqual({
      type: '/problems/not_found',
      error: 'not_found',
      title: 'There is no such thing',
      status: 404,
    });
    expect((await service.request('GET', '/problems/toString')).status).toBe(404);
  });
});

describe('a body', () => {
  test.each([
    ['without a content type', {}],
    ['as JSON', { 'content-type': 'application/json' }],
    ['as JSON with a charset', { 'content-type': 'Application/JSON; charset=utf-8' }],
    ['as something that is JSON', { 'content-type': 'application/vnd.runner.v2+json' }],
  ])('%s is read', async (_, headers) => {
    const answer = await service.request('POST', EVENTS, IGNORED, headers);
    expect(answer.status).toBe(202);
  });

  test.each(['text/plain', 'application/x-www-form-urlencoded', 'application/jsonp', 'json'])(
    'as %s is 415',
    async (type) => {
      const answer = await service.request('POST', EVENTS, IGNORED, { 'content-type': type });
      expect(answer.status).toBe(415);
      expect(answer.body).toMatchObject({ error: 'unsupported_media_type' });
    },
  );

  test.each(['', '{', 'nope', '{"type":"external_ping",}', "{'type':1}", '\u0000', '[1,2'])(
    'that is not JSON is 400: %j',
    async (body) => {
      const answer = await service.request('POST', EVENTS, body);
      expect(answer.status).toBe(400);
      expect(answer.body).toMatchObject({
        error: 'invalid_input',
        detail: 'The body is not JSON.',
      });
    },
  );

  test.each(['null', '3', '"text"', '[]', 'true'])('that is no object is 400: %s', async (body) => {
    expect((await service.request('POST', EVENTS, body)).status).toBe(400);
  });

  test('with wrong fields is 400, and each is named', async () => {
    const body = { title: 3, max_concurrent: 'many', workspace: ['x'] };
    const answer = await service.request('PUT', '/v1/sessions/conv_1', body);
    expect(answer.status).toBe(400);
    const named = (answer.body.errors as { path: string }[]).map(({ path }) => path);
    expect(named.toSorted()).toEqual(['max_concurrent', 'title', 'workspace']);
  });

  test('with fields nobody knows is read', async () => {
    const body = { type: 'external_ping', data: {}, extra: null, __proto__: { x: 1 } };
    expect((await service.request('POST', EVENTS, body)).status).toBe(202);
  });

  test('of the greatest length is read, and of one byte more refused', async () => {
    expect((await service.request('POST', EVENTS, bodyOf(8 * MIB))).status).toBe(202);
    const refused = await service.request('POST', EVENTS, bodyOf(8 * MIB + 1));
    expect(refused.status).toBe(413);
    expect(refused.body).toMatchObject({ error: 'payload_too_large' });
  });

  test('that does not say its length is refused when it gets too long', async () => {
    const small = await startService(database, { env: { MAX_BODY_BYTES: '1024' } });
    const chunked = { 'transfer-encoding': 'chunked' };
    const fits = await small.request('POST', EVENTS, IGNORED, chunked);
    expect(fits.status).toBe(202);
    const refused = await small.request('POST', EVENTS, ' '.repeat(1000) + IGNORED, chunked);
    expect(refused.status).toBe(413);
    await small.stop();
  });

  test('nested however deeply is answered', async () => {
    const kept = `{"channel":{"route":${nested(1_000_000)}}}`;
    expect((await service.request('PUT', '/v1/sessions/conv_1', kept)).status).toBe(400);
    const ignored = `{"type":"external_ping","data":{"x":${nested(1_000_000)}}}`;
    expect((await service.request('POST', EVENTS, ignored)).status).toBe(202);
  });
});

function bodyOf(bytes: number): string {
  const empty = JSON.stringify({ type: 'external_ping', data: { text: '' } });
  return empty.replace('""', `"${'x'.repeat(bytes - empty.length)}"`);
}

function nested(depth: number): string {
  return `${'['.repeat(depth)}${']'.repeat(depth)}`;
}

describe('what is not HTTP as it should be', () => {
  test.each([
    ['a Host that is none', 'GET /livez HTTP/1.1\r\nHost: a b\r\n\r\n'],
    ['a target that is none', 'GET http://[::1/ HTTP/1.1\r\nHost: localhost\r\n\r\n'],
    ['no Host', 'GET /livez HTTP/1.1\r\n\r\n'],
  ])('%s is 400 with a request id', async (_, bytes) => {
    const connection = await openRaw(service.url);
    connection.send(bytes);
    const answer = await connection.received('"error":"invalid_input"');
    expect(answer).toContain('HTTP/1.1 400 Bad Request');
    expect(answer).toMatch(/^x-request-id: \S+/im);
    connection.destroy();
  });

  test('no request at all is 400', async () => {
    const connection = await openRaw(service.url);
    connection.send('HELLO\r\n\r\n');
    expect(await connection.received('\r\n\r\n')).toContain('HTTP/1.1 400 Bad Request');
    connection.destroy();
  });
});

describe('a defect', () => {
  test('is 500 without a word of it; the log has it under the request id', async () => {
    const lines: string[] = [];
    const broken = await startService(database, { onLogLine: (line) => lines.push(line) });
    broken.resources.metrics.render = () => {
      throw Object.assign(new Error('select secret from sessions'), { detail: 'Failing row' });
    };
    const answer = await broken.request('GET', '/metrics', undefined, { 'x-request-id': 'req-7' });
    expect(answer.status).toBe(500);
    expect(answer.headers['x-request-id']).toBe('req-7');
    expect(answer.body).toEqual({
      type: '/problems/internal',
      title: 'Something went wrong here',
      status: 500,
      detail: 'The request failed here; its id is req-7.',
      instance: '/metrics',
      error: 'internal',
    });
    const logged = lines.filter((line) => line.includes('select secret')).join('');
    expect(logged).toContain('"requestId":"req-7"');
    expect(logged).not.toContain('Failing row');
    await broken.stop();
  });

  test('of the database is 503, and says when to come again', async () => {
    const broken = await startService(database);
    broken.resources.metrics.render = () => Promise.reject(new StorageUnavailable('deadline'));
    const answer = await broken.request('GET', '/metrics');
    expect(answer.status).toBe(503);
    expect(answer.headers['retry-after']).toBe('1');
    expect(answer.body).toMatchObject({ error: 'unavailable', retry_after_seconds: 1 });
    await broken.stop();
  });
});

describe('the request id', () => {
  test('is the client’s if it is sane', async () => {
    const headers = { 'x-request-id': 'A~!'.repeat(40) };
    const answer = await service.request('GET', '/livez', undefined, headers);
    expect(answer.headers['x-request-id']).toBe(headers['x-request-id']);
  });

  test.each(['x'.repeat(129), 'with space', 'tab\there', 'é', ''])(
    'is our own for %j',
    async (id) => {
      const headers = { 'x-request-id': id };
      const answer = await service.request('GET', '/livez', undefined, headers);
      expect(answer.headers['x-request-id']).toMatch(/^[0-9a-f-]{36}$/);
    },
  );

  test('is in every answer', async () => {
    for (const path of ['/livez', '/docs', '/docs/start.js', '/metrics', '/nothing', EVENTS]) {
      const answer = await service.request('GET', path);
      expect(answer.headers['x-request-id'], path).toMatch(/^[0-9a-f-]{36}$/);
    }
  });

  test('is logged with the pattern of the route, and nothing that was sent', async () => {
    const lines: string[] = [];
    const logging = await startService(database, { onLogLine: (line) => lines.push(line) });
    await logging.request('POST', '/v1/sessions/conv_9/events?secret=1', IGNORED);
    await logging.request('GET', '/v1/parked?after=hidden');
    expect(lines.join('')).not.toMatch(/secret|hidden|external_ping/);
    const requests = lines.map((line) => JSON.parse(line)).filter(({ msg }) => msg === 'request');
    expect(requests.at(-2)).toMatchObject({
      method: 'POST',
      route: '/v1/sessions/:id/events',
      status: 202,
      requestId: expect.stringMatching(/^[0-9a-f-]{36}$/),
    });
    await logging.stop();
  });
});
