import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { describeSettings } from '../../src/config.ts';

const root = join(import.meta.dirname, '../..');
const pages = execFileSync('git', ['ls-files', '*.md'], { cwd: root, encoding: 'utf8' })
  .split('\n')
  .filter((path) => path !== '');

function read(path: string): string {
  return readFileSync(join(root, path), 'utf8');
}

test('the table of settings is the one that the service reads', () => {
  const rows = describeSettings().map(({ name, default: fallback, description }) => {
    const written = fallback === '' ? '' : `\`${fallback}\``;
    return `| \`${name}\` | ${written} | ${description.replaceAll('|', String.raw`\|`)} |`;
  });
  const table = ['| setting | default | |', '| --- | --- | --- |', ...rows].join('\n');
  expect(read('docs/OPERATING.md')).toContain(`\n${table}\n<!-- end of settings -->`);
});

test.each(pages)('%s links to files that are there', (page) => {
  const links = [...read(page).matchAll(/\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)/g)];
  const missing = links
    .map(([, link = '']) => link)
    .filter((link) => !existsSync(join(root, page, '..', link)));
  expect(missing).toEqual([]);
});

test.each(pages)('%s names files and folders that are there', (page) => {
  const named = [
    ...read(page).matchAll(/(?<![\w/.-])((?:src|test|bench|scripts|migrations|docs)\/[\w./-]+)/g),
  ];
  const missing = named
    .map(([, path = '']) => path.replace(/[.,]+$/, ''))
    .filter((path) => !existsSync(join(root, path)));
  expect(missing).toEqual([]);
});

test('every script that the docs name is there', () => {
  const { scripts } = JSON.parse(read('package.json')) as { scripts: Record<string, string> };
  const named = pages.flatMap((page) =>
    [...read(page).matchAll(/npm run ([\w:-]+)/g)].map(([, name = '']) => name),
  );
  expect(named.filter((name) => !(name in scripts))).toEqual([]);
});
