import { describe, expect, test } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { startProcess } from '../support/process.ts';
import { openRaw } from '../support/raw-http.ts';
import { startService } from '../support/service.ts';

const database = useDatabase();
const READY = 'GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n';
const BODY = '{"type":"external_ping","data":{}}';
const HEAD = `POST /v1/sessions/conv_1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${BODY.length}\r\n\r\n`;
const REPORT = HEAD + BODY;

describe('while the service stops', () => {
  test('it says at once that it is not ready, and still serves open and new connections', async () => {
    const service = await startService(database);
    const open = await openRaw(service.url);
    open.send(READY);
    await open.received('"ready"');

    const stopping = service.stop({ drainMs: 1_000 });
    const fresh = await openRaw(service.url);
    fresh.send(READY);
    expect(await fresh.ended).toMatch(/ 503 .*"reason":"draining"/s);
    open.send(REPORT);
    // The answer ends the connection, so that the next request goes to another replica.
    expect(await open.ended).toMatch(/ 202 .*connection: close.*"queued":false/is);
    await stopping;
  });

  test('readers that wait are answered with what is there', async () => {
    const service = await startService(database);
    const reading = service.request('POST', '/v1/sessions/conv_reader/inbox/read', {
      wait_seconds: 60,
    });
    await expect.poll(() => service.resources.waiters.count()).toBe(1);
    const stopping = service.stop({ drainMs: 500 });
    expect(await reading).toMatchObject({ status: 200, body: { items: [] } });
    await stopping;
  });

  test('a request that has begun is still answered', async () => {
    const service = await startService(database);
    const connection = await openRaw(service.url);
    connection.send(HEAD);
    // Answered on another connection, the server has seen the head as well.
    await service.request('GET', '/livez');
    const stopping = service.stop({ drainMs: 0, withinMs: 10_000 });
    connection.send(BODY);
    expect(await connection.ended).toMatch(/ 202 /);
    await stopping;
  });

  test('connections on which nothing is under way do not hold it up', async () => {
    const service = await startService(database);
    const used = await openRaw(service.url);
    used.send(READY);
    await used.received('"ready"');
    const unused = await openRaw(service.url);
    const stoppedAt = performance.now();
    await service.stop({ drainMs: 0, withinMs: 30_000 });
    await Promise.all([used.ended, unused.ended]);
    expect(performance.now() - stoppedAt).toBeLessThan(10_000);
  });

  test('what does not end in time is cut off', async () => {
    const service = await startService(database);
    const connection = await openRaw(service.url);
    connection.send(HEAD);
    await service.request('GET', '/livez');
    await service.stop({ drainMs: 0, withinMs: 200 });
    expect(await connection.ended).toBe('');
  });
});

describe('the process', () => {
  test.each(['SIGTERM', 'SIGINT'] as const)(
    'ends with 0 within its grace on %s',
    async (signal) => {
      const env = { DATABASE_URL: database.url, SHUTDOWN_GRACE_MS: '2000' };
      const service = await startProcess({ env });
      const half = await openRaw(service.url);
      half.send(HEAD);
      const signalledAt = performance.now();
      const ended = await service.kill(signal);
      expect(ended).toMatchObject({ code: 0, signal: null, stderr: '' });
      expect(performance.now() - signalledAt).toBeLessThan(2_500);
    },
  );
});
