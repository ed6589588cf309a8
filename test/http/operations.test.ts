import { Validator } from '@seriousme/openapi-schema-validator';
import { describe, expect, test } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { startFaultProxy } from '../support/fault-proxy.ts';
import { startService, useService } from '../support/service.ts';

const database = useDatabase();
const service = useService(database);

describe('/livez', () => {
  test('answers whatever the database does', async () => {
    const proxy = await startFaultProxy(database.url);
    const lonely = await startService(proxy);
    await proxy.set('silence');
    expect((await lonely.request('GET', '/livez')).body).toEqual({ status: 'alive' });
    await proxy.set('pass');
    await lonely.stop();
    await proxy.close();
  });
});

describe('/readyz', () => {
  test('is 200 when requests can be served', async () => {
    expect((await service.request('GET', '/readyz')).body).toEqual({ status: 'ready' });
  });

  test.each(['refuse', 'fin', 'silence', 'reset'] as const)(
    'is 503 within 5 s while the database does: %s, and 200 again after',
    async (fault) => {
      const proxy = await startFaultProxy(database.url);
      const cut = await startService(proxy);
      await proxy.set(fault);
      const askedAt = performance.now();
      const answer = await cut.request('GET', '/readyz');
      expect(answer.status).toBe(503);
      expect(answer.body).toMatchObject({ error: 'unavailable', reason: 'database' });
      expect(performance.now() - askedAt).toBeLessThan(5_000);

      await proxy.set('pass');
      await expect
        .poll(async () => (await cut.request('GET', '/readyz')).status, { timeout: 10_000 })
        .toBe(200);
      await cut.stop();
      await proxy.close();
    },
  );

  test('is 503 when a newer release has migrated the database', async () => {
    await database.sql`insert into drizzle.__drizzle_migrations (hash, created_at)
      values ('of a newer release', 9999999999999)`;
    const answer = await service.request('GET', '/readyz');
    await database.sql`delete from drizzle.__drizzle_migrations where hash = 'of a newer release'`;
    expect(answer.status).toBe(503);
    expect(answer.body).toMatchObject({ reason: 'migrations' });
  });
});

describe('/metrics', () => {
  test('counts requests by the pattern of their route', async () => {
    await service.request('GET', '/v1/sessions/conv_secret');
    const { body } = await service.request('GET', '/metrics');
    expect(body).toContain(
      'subagent_inbox_http_request_duration_seconds_count{method="GET",route="/v1/sessions/:id",status="404"} 1',
    );
    expect(body).toContain('subagent_inbox_waiting_readers 0');
    expect(body).not.toContain('conv_secret');
  });
});

describe('/openapi.json', () => {
  test('is valid OpenAPI 3.1', async () => {
    const { body } = await service.request('GET', '/openapi.json');
    expect(body.openapi).toBe('3.1.0');
    expect(await new Validator().validate(body as Record<string, unknown>)).toEqual({
      valid: true,
    });
  });

  test('names, describes and sorts every operation', async () => {
    const { body } = await service.request('GET', '/openapi.json');
    const known = (body.tags as { name: string }[]).map(({ name }) => name);
    const paths = Object.values(body.paths as Record<string, Record<string, Operation>>);
    const operations = paths.flatMap((path) => Object.values(path));
    const ids = operations.map(({ operationId }) => operationId);
    expect(ids).toEqual([...new Set(ids)]);
    expect(operations.filter(({ summary }) => !summary)).toEqual([]);
    expect(operations.filter(({ tags }) => !tags?.every((tag) => known.includes(tag)))).toEqual([]);
  });
});

interface Operation {
  operationId?: string;
  summary?: string;
  tags?: string[];
}

describe('/docs', () => {
  test('loads nothing but assets of its own, which its policy allows', async () => {
    const page = await service.request('GET', '/docs');
    expect(page.headers['content-type']).toBe('text/html; charset=utf-8');
    const policy = page.headers['content-security-policy'];
    expect(policy).toContain("default-src 'none'");
    expect(policy).not.toMatch(/unsafe|https?:|\*/);

    const html = page.body as string;
    const assets = [...html.matchAll(/(?:src|href)="([^"]+)"/g)].map(
      ([, address]) => address ?? '',
    );
    expect(assets.filter((address) => !/^(?:docs\/|data:)/.test(address))).toEqual([]);
    // Nothing inline: the policy would stop it.
    expect(html).not.toMatch(/<script(?![^>]*src=)|<style|\sstyle=|\son\w+=/);
    for (const address of assets.filter((each) => each.startsWith('docs/'))) {
      const asset = await service.request('GET', `/${address}`);
      expect(asset.status, address).toBe(200);
      const type = address.endsWith('.css') ? 'text/css' : 'text/javascript';
      expect(asset.headers['content-type']).toContain(type);
      expect(asset.headers['x-content-type-options']).toBe('nosniff');
    }
  });
});
