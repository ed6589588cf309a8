import { describe, expect, test } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { openRaw } from '../support/raw-http.ts';
import { useService } from '../support/service.ts';

const database = useDatabase();
const service = useService(database, { http: { headersTimeoutMs: 500, requestTimeoutMs: 1_000 } });
const HEAD = 'POST /v1/sessions/conv_1/events HTTP/1.1\r\nHost: localhost\r\n';

describe('a client that is slow or stops', () => {
  test.each([
    ['in the middle of the head', HEAD],
    ['in the middle of the body', `${HEAD}Content-Length: 100\r\n\r\n{"type":`],
    ['in the middle of a chunk', `${HEAD}Transfer-Encoding: chunked\r\n\r\n64\r\n{"type":`],
  ])('%s is cut off with 408', async (_, bytes) => {
    const connection = await openRaw(service.url);
    connection.send(bytes);
    expectProblem(await connection.ended, 408);
    expect((await service.request('GET', '/livez')).status).toBe(200);
  });

  test('and leaves in the middle of the body harms nobody', async () => {
    const connection = await openRaw(service.url);
    connection.send(`${HEAD}Content-Length: 100\r\n\r\n{"type":`);
    connection.destroy();
    await connection.ended;
    expect((await service.request('GET', '/readyz')).status).toBe(200);
  });
});

/** The only answer on a connection that ends with it. */
function expectProblem(all: string, status: number): void {
  expect(all.startsWith(`HTTP/1.1 ${status} `)).toBe(true);
  const [head = '', body = ''] = all.split('\r\n\r\n');
  expect(head.toLowerCase()).toMatch(/^x-request-id: \S/m);
  expect(head.toLowerCase()).toContain('content-type: application/problem+json');
  expect(head.toLowerCase()).toContain(`content-length: ${Buffer.byteLength(body)}`);
  expect(JSON.parse(body)).toMatchObject({ status, error: 'invalid_input' });
}

describe('what cannot be read as a request', () => {
  test.each([
    ['a request line', 'GET\r\n\r\n', 400],
    ['a header', 'GET /livez HTTP/1.1\r\nHost: localhost\r\nbroken\r\n\r\n', 400],
    ['the size of a chunk', `${HEAD}Transfer-Encoding: chunked\r\n\r\nxyz\r\n`, 400],
    ['a head of 20 KB', `${HEAD}X: ${'x'.repeat(20_000)}\r\n\r\n`, 431],
  ])('is a problem with a request id: %s', async (_, bytes, status) => {
    const connection = await openRaw(service.url);
    connection.send(bytes);
    expectProblem(await connection.ended, status);
  });

  test('after a request that is served follows its answer', async () => {
    const connection = await openRaw(service.url);
    connection.send(get('/livez'));
    await connection.received('alive');
    connection.send('GET\r\n\r\n');
    expect(await connection.ended).toMatch(/^HTTP\/1\.1 200 [^]*alive[^]*HTTP\/1\.1 400 /);
  });

  test('does not include an expectation that is not known', async () => {
    const connection = await openRaw(service.url);
    connection.send('GET /livez HTTP/1.1\r\nHost: localhost\r\nExpect: foo\r\n\r\n');
    expect(await connection.received('alive')).toMatch(/^HTTP\/1\.1 200 /);
    connection.destroy();
  });
});

describe('a connection', () => {
  test('serves what is sent ahead, in order', async () => {
    const connection = await openRaw(service.url);
    connection.send(get('/livez') + get('/readyz') + get('/problems/not_found'));
    const all = await connection.received('There is no such thing');
    expect(all.indexOf('alive')).toBeLessThan(all.indexOf('"ready"'));
    connection.destroy();
  });
});

function get(path: string): string {
  return `GET ${path} HTTP/1.1\r\nHost: localhost\r\n\r\n`;
}
