import { describe, expect, test } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { useService } from '../support/service.ts';

const database = useDatabase();

describe('a service on loopback', () => {
  const service = useService(database);
  const ask = (headers: Record<string, string>) =>
    service.request('GET', '/livez', undefined, headers);

  test.each(['localhost', 'LOCALHOST:8787', '127.0.0.1', '127.1.2.3:80', '[::1]', '[::1]:8787'])(
    'serves the Host %s',
    async (host) => {
      expect((await ask({ host })).status).toBe(200);
    },
  );

  test.each([
    'example.com',
    'localhost.example.com',
    '127.0.0.1.nip.io',
    'localhost:80:80',
    'evil-localhost',
    '10.0.0.1',
    '[::2]',
    '0.0.0.0',
  ])('refuses the Host %s', async (host) => {
    const answer = await ask({ host });
    expect([400, 403]).toContain(answer.status);
  });

  test.each(['http://localhost', 'http://127.0.0.1:3000', 'https://[::1]:1'])(
    'serves the Origin %s',
    async (origin) => {
      expect((await ask({ origin })).status).toBe(200);
    },
  );

  test.each([
    'https://example.com',
    'null',
    'http://localhost.example.com',
    'file://',
    'localhost',
  ])('refuses the Origin %s', async (origin) => {
    const answer = await ask({ origin });
    expect(answer.status).toBe(403);
    expect(answer.body).toMatchObject({ error: 'forbidden' });
  });
});

describe('a service that was opened', () => {
  const service = useService(database, {
    env: { HOST: '0.0.0.0', ALLOW_UNAUTHENTICATED: 'true' },
  });

  test('serves any Host and Origin', async () => {
    const headers = { host: 'inbox.example.com', origin: 'https://example.com' };
    expect((await service.request('GET', '/livez', undefined, headers)).status).toBe(200);
  });
});
