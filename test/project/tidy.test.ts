import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';

/* What the project holds to and no other tool checks. */

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const read = (file: string) => readFileSync(join(ROOT, file), 'utf8');
const files = execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard'], {
  cwd: ROOT,
  encoding: 'utf8',
})
  .split('\n')
  // All but this file, which names what it forbids.
  .filter((file) => file !== 'test/project/tidy.test.ts')
  .filter((file) => /\.(?:ts|js|json|md|sql|sh|ya?ml|npmrc)$|^\.ci\/|rc$/.test(file))
  .flatMap((file) => {
    try {
      return [{ file, text: read(file) }];
    } catch {
      return []; // Deleted, and not yet committed.
    }
  });
const sources = files.filter(({ file }) => /^src\/.*\.ts$/.test(file));
const code = files.filter(({ file }) => /^(?:src|test|bench|scripts)\/.*\.ts$/.test(file));

/** `file:line` of every match. */
function places(where: typeof files, pattern: RegExp): string[] {
  return where.flatMap(({ file, text }) =>
    [...text.matchAll(new RegExp(pattern, 'gm'))].map(
      ({ index }) => `${file}:${text.slice(0, index).split('\n').length}`,
    ),
  );
}

describe('code', () => {
  test('says of every exported function what it promises', () => {
    const undocumented = sources.flatMap(({ file, text }) => {
      const lines = text.split('\n');
      return lines.flatMap((line, at) => {
        const isFunction =
          /^export (?:default )?(?:async )?function /.test(line) ||
          /^export const \w+ = (?:async )?\(/.test(line);
        return isFunction && !lines[at - 1]?.trimEnd().endsWith('*/') ? [`${file}:${at + 1}`] : [];
      });
    });
    expect(undocumented).toEqual([]);
  });

  test('leaves nothing to do without naming the issue for it', () => {
    expect(places(code, /\b(?:TODO|FIXME|XXX)\b(?! \(#\d+\))/)).toEqual([]);
  });

  test('notifies other replicas in one place', () => {
    const notifying = sources.filter(({ text }) => text.includes('pg_notify'));
    expect(notifying.map(({ file }) => file)).toEqual(['src/store/notify.ts']);
  });

  test('runs every test', () => {
    const tests = files.filter(({ file }) => file.startsWith('test/'));
    expect(places(tests, /\b(?:test|it|describe)\.(?:skip|only|todo|fails)\b/)).toEqual([]);
  });
});

describe('migrations', () => {
  const { entries } = JSON.parse(read('migrations/meta/_journal.json')) as {
    entries: { idx: number; tag: string; when: number }[];
  };

  test('each is later than the one before, else drizzle skips it and says nothing', () => {
    const times = entries.map(({ when }) => when);
    expect(times).toEqual([...new Set(times)].toSorted((a, b) => a - b));
    expect(entries.map(({ idx }) => idx)).toEqual(entries.map((_, at) => at));
  });

  test('the first ends with what is written by hand', () => {
    const tag = entries[0]?.tag ?? '';
    const generated = read(`migrations/${tag}.sql`);
    expect(generated.endsWith(read('migrations/by-hand.sql'))).toBe(true);
  });
});

describe('dependencies', () => {
  test('come from whatever registry npm is set to', () => {
    expect(places(files, /"resolved":/)).toEqual([]);
    expect(places(files, /\bregistry\s*=\s*\w+:/)).toEqual([]);
    expect(
      places(files, /\b(?:registry|npm|packages)[\w-]*\.[\w-]+\.(?:org|com|net|io|dev)\b/),
    ).toEqual([]);
    const configured = process.env['npm_config_registry'];
    const host = configured ? new URL(configured).host : null;
    expect(files.filter(({ text }) => host !== null && text.includes(host))).toEqual([]);
  });

  test('are pinned', () => {
    const { dependencies, devDependencies, optionalDependencies } = JSON.parse(
      read('package.json'),
    ) as Record<string, Record<string, string>>;
    const ranges = Object.entries({ ...dependencies, ...devDependencies, ...optionalDependencies })
      .filter(([, version]) => !/^\d+\.\d+\.\d+(?:-[\w.]+)?$/.test(version))
      .map(([name]) => name);
    expect(ranges).toEqual([]);
  });
});
