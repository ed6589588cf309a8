import { describe, expect, test } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { useService } from '../support/service.ts';

const database = useDatabase();
const service = useService(database);
const pathOf = (id: string) => `/v1/sessions/${encodeURIComponent(id)}`;

describe('an id in a path', () => {
  test.each([
    'plain',
    'Case',
    'a/b',
    '/',
    'a:b@c#d',
    '100%',
    '%2F',
    '%252F',
    'a?b=c&d',
    'a b+c',
    'ünïcödé',
    '👩‍👩‍👧',
    '__proto__',
    'constructor',
    '...',
    '*',
    ':id',
    'a\\b',
    '"quoted"',
    "it's; drop table sessions",
    'x'.repeat(255),
    '😀'.repeat(255),
  ])('is what it stands for: %s', async (id) => {
    const made = await service.request('PUT', pathOf(id), { title: id });
    expect(made.status).toBe(201);
    const read = await service.request('GET', pathOf(id));
    expect(read.body).toMatchObject({ id, title: id });
  });

  test('may leave unencoded what a path may hold', async () => {
    await service.request('PUT', '/v1/sessions/conv:1@host', {});
    const read = await service.request('GET', '/v1/sessions/conv%3A1%40host');
    expect(read.body).toMatchObject({ id: 'conv:1@host' });
  });

  test.each([
    ['a control character', '%01'],
    ['NUL', 'a%00b'],
    ['a line break', 'a%0Ab'],
    ['DEL', '%7F'],
    ['256 characters', 'x'.repeat(256)],
    ['256 emoji', encodeURIComponent('😀'.repeat(256))],
    ['half an encoding', 'a%2'],
    ['no encoding', '%zz'],
    ['a lone surrogate', '%ED%A0%80'],
    ['bytes that are not UTF-8', '%FF'],
  ])('is refused with %s', async (_, id) => {
    const answer = await service.request('PUT', `/v1/sessions/${id}`, {});
    expect(answer.status).toBe(400);
    expect(answer.body).toMatchObject({ error: 'invalid_input' });
  });

  test.each(['.', '..', '%2e', '%2E%2e', '.%2e'])('cannot be %s', async (id) => {
    for (const rest of ['', '?x', '/inbox', '/../inbox']) {
      const answer = await service.request('PUT', `/v1/sessions/${id}${rest}`, {});
      expect(answer.status).toBe(400);
      expect(answer.body).toMatchObject({ error: 'invalid_input' });
    }
    expect((await service.request('GET', '/v1/sessions/inbox')).status).toBe(404);
  });

  test('is not looked for in the query', async () => {
    const answer = await service.request('GET', '/v1/parked?after=parked_a/../b');
    expect(answer.status).toBe(200);
  });

  test('cannot be empty', async () => {
    expect((await service.request('PUT', '/v1/sessions/', {})).status).toBe(404);
  });
});

describe('the query of a list', () => {
  test.each(['0', '-1', '1.5', 'x', '', '1e3', ' 1'])('refuses limit=%j', async (limit) => {
    const answer = await service.request('GET', `/v1/parked?limit=${encodeURIComponent(limit)}`);
    expect(answer.status).toBe(400);
    expect(answer.body.errors).toEqual([
      { path: 'limit', message: 'must be a whole number of 1 to 1000' },
    ]);
  });

  test.each(['1', '1000', '1001', '99999999999999999999999', '007'])(
    'takes limit=%s',
    async (limit) => {
      expect((await service.request('GET', `/v1/parked?limit=${limit}`)).status).toBe(200);
    },
  );
});
