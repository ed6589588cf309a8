import { spawnSync } from 'node:child_process';
import { copyFile, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

/*
 * The linter guards which folder may import what. A pattern that matches nothing guards nothing and
 * says nothing, so each rule is shown a violation.
 */

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const IMPORTS = 'eslint(no-restricted-imports)';
const GLOBALS = 'eslint(no-restricted-globals)';

const FORBIDDEN: Record<string, [code: string, rule: string][]> = {
  domain: [
    ["import { x } from '../store/x.ts';\nx();", IMPORTS],
    ["import { x } from '../operations/x.ts';\nx();", IMPORTS],
    ["import { x } from '../platform/x.ts';\nx();", IMPORTS],
    ["import { x } from '../http/x.ts';\nx();", IMPORTS],
    ["import { x } from '../resources.ts';\nx();", IMPORTS],
    ["import { randomUUID } from 'node:crypto';\nrandomUUID();", IMPORTS],
    ["import { z } from 'zod';\nz();", IMPORTS],
    ["import { sql } from 'drizzle-orm';\nsql();", IMPORTS],
    ["import { Hono } from 'hono';\nHono();", IMPORTS],
    ["import { pino } from 'pino';\npino();", IMPORTS],
    ['export const now = Date.now();', GLOBALS],
    ['export const pid = process.pid;', GLOBALS],
    ['export const id = crypto.randomUUID();', GLOBALS],
    ['setTimeout(() => {}, 1);', GLOBALS],
  ],
  store: [
    ["import { x } from '../http/x.ts';\nx();", IMPORTS],
    ["import { x } from '../operations/x.ts';\nx();", IMPORTS],
    ["import { x } from '../workers/x.ts';\nx();", IMPORTS],
    ["import { Hono } from 'hono';\nHono();", IMPORTS],
    ["import { z } from '@hono/zod-openapi';\nz();", IMPORTS],
    ["import { z } from 'zod';\nz();", IMPORTS],
  ],
  operations: [
    ["import { x } from '../http/x.ts';\nx();", IMPORTS],
    ["import { x } from '../workers/x.ts';\nx();", IMPORTS],
    ["import { Hono } from 'hono';\nHono();", IMPORTS],
    ["import { sql } from 'drizzle-orm';\nsql();", IMPORTS],
    ["import { pgTable } from 'drizzle-orm/pg-core';\npgTable();", IMPORTS],
    ["import postgres from 'postgres';\npostgres();", IMPORTS],
    ['export const now = new Date();', GLOBALS],
    ['export const pid = process.pid;', GLOBALS],
  ],
  http: [
    ["import { x } from '../store/x.ts';\nx();", IMPORTS],
    ["import { x } from '../workers/x.ts';\nx();", IMPORTS],
    ["import { sql } from 'drizzle-orm';\nsql();", IMPORTS],
    ["import postgres from 'postgres';\npostgres();", IMPORTS],
  ],
  workers: [
    ["import { x } from '../store/x.ts';\nx();", IMPORTS],
    ["import { x } from '../http/x.ts';\nx();", IMPORTS],
    ["import { sql } from 'drizzle-orm';\nsql();", IMPORTS],
    ["import { Hono } from 'hono';\nHono();", IMPORTS],
  ],
  platform: [
    ["import { x } from '../domain/x.ts';\nx();", IMPORTS],
    ["import { x } from '../store/x.ts';\nx();", IMPORTS],
    ["import { x } from '../operations/x.ts';\nx();", IMPORTS],
    ["import { x } from '../http/x.ts';\nx();", IMPORTS],
    ["import { x } from '../workers/x.ts';\nx();", IMPORTS],
    ["import { Hono } from 'hono';\nHono();", IMPORTS],
    ["import postgres from 'postgres';\npostgres();", IMPORTS],
    ["export const port = process.env['PORT'];", 'node(no-process-env)'],
  ],
};

/** What each folder is there to import. */
const ALLOWED: Record<string, string> = {
  domain: "import { x } from './x.ts';\nx();",
  store: "import { sql } from 'drizzle-orm';\nimport { x } from '../domain/x.ts';\nx(sql);",
  operations: "import { x } from '../domain/x.ts';\nimport { y } from '../store/y.ts';\nx(y);",
  http: "import { x } from '../operations/x.ts';\nimport { Hono } from 'hono';\nx(Hono);",
  workers: "import { x } from '../operations/x.ts';\nx();",
  platform:
    "import { readFile } from 'node:fs/promises';\nimport { x } from './x.ts';\nx(readFile);",
};

let folder: string;
/** Which rules the linter reported for which file. */
const reported = new Map<string, string[]>();

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'boundaries-'));
  await copyFile(join(ROOT, '.oxlintrc.json'), join(folder, '.oxlintrc.json'));
  for (const [layer, cases] of Object.entries(FORBIDDEN)) {
    for (const [at, [code]] of cases.entries()) await write(fileOf(layer, at), code);
    await write(fileOf(layer, 'allowed'), ALLOWED[layer] ?? '');
  }
  const oxlint = join(ROOT, 'node_modules/.bin/oxlint');
  const run = spawnSync(oxlint, ['--format', 'json', 'src'], { cwd: folder, encoding: 'utf8' });
  const { diagnostics } = JSON.parse(run.stdout) as {
    diagnostics: { code: string; filename: string }[];
  };
  for (const { code, filename } of diagnostics) {
    reported.set(filename, [...(reported.get(filename) ?? []), code]);
  }
});

afterAll(async () => await rm(folder, { recursive: true }));

async function write(file: string, code: string): Promise<void> {
  const path = join(folder, file);
  await mkdir(dirname(path), { recursive: true });
  await writeFile(path, `${code}\n`);
}

function fileOf(layer: string, at: number | string): string {
  return `src/${layer}/case-${at}.ts`;
}

describe.each(Object.entries(FORBIDDEN))('%s', (layer, cases) => {
  test.each(cases.map(([code, rule], at) => ({ code: code.split('\n')[0], rule, at })))(
    'may not have: $code',
    ({ rule, at }) => {
      expect(reported.get(fileOf(layer, at))).toContain(rule);
    },
  );

  test('may have what it is for', () => {
    expect(reported.get(fileOf(layer, 'allowed')) ?? []).toEqual([]);
  });
});
