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
    expect(await connection.ended).toMatch(/^HTTP\/1\.1 408 /);
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
