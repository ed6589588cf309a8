import { afterAll, beforeAll } from 'vitest';
import { readConfig } from '../../src/config.ts';
import type { Clock } from '../../src/platform/clock.ts';
import { createLog } from '../../src/platform/log.ts';
import type { Policy, Resources } from '../../src/resources.ts';
import { startService as start, type ServiceOptions } from '../../src/service.ts';
import { contractOf } from './contract.ts';
import type { MigratedDatabase } from './database.ts';
import { createHttpClient, type HttpClient } from './http-client.ts';

export interface ServiceOverrides {
  /** Settings as in the environment; PORT is 0 and LOG_LEVEL silent if not given. */
  env?: Record<string, string>;
  policy?: Partial<Policy>;
  clock?: Clock;
  http?: ServiceOptions['http'];
  resolveName?: ServiceOptions['resolveName'];
  /** Gets what is logged, line by line; LOG_LEVEL is then `debug` if not given. */
  onLogLine?: (line: string) => void;
}

export interface TestService {
  url: string;
  resources: Resources;
  /** Sends a request and checks the answer against the OpenAPI document that is served. */
  request: HttpClient['request'];
  /** As after SIGTERM; without waiting for load balancers if `drainMs` is not given. */
  stop(times?: { drainMs?: number; withinMs?: number }): Promise<void>;
}

/** Starts the service in this process, on a free port and the given database. */
export async function startService(
  database: Pick<MigratedDatabase, 'url'>,
  overrides: ServiceOverrides = {},
): Promise<TestService> {
  const { env, policy, clock, http, resolveName, onLogLine } = overrides;
  const level = onLogLine === undefined ? 'silent' : 'debug';
  const config = readConfig({ PORT: '0', LOG_LEVEL: level, ...env });
  const service = await start({
    config: { ...config, policy: { ...config.policy, ...policy } },
    databaseUrl: database.url,
    log: createLog(config.logLevel, { write: (line) => onLogLine?.(line) }),
    ...(clock === undefined ? {} : { clock }),
    ...(http === undefined ? {} : { http }),
    ...(resolveName === undefined ? {} : { resolveName }),
  });
  const client = createHttpClient(service.url);
  const document = await client.request('GET', '/openapi.json');
  const contract = contractOf(document.body as object);

  return {
    url: service.url,
    resources: service.resources,
    request: async (method, path, ...rest) => {
      const answer = await client.request(method, path, ...rest);
      contract.check(method, path, answer);
      return answer;
    },
    stop: async ({ drainMs = 0, withinMs = 5_000 } = {}) => {
      await service.stop({ drainMs, withinMs });
      client.close();
    },
  };
}

/** At the top of a test file: one service for all its tests. */
export function useService(
  database: Pick<MigratedDatabase, 'url'>,
  overrides: ServiceOverrides = {},
): TestService {
  const service = {} as TestService;
  beforeAll(async () => {
    Object.assign(service, await startService(database, overrides));
  });
  afterAll(async () => await service.stop());
  return service;
}
