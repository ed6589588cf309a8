import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { useService } from '../support/service.ts';

const service = useService(useDatabase());
const readme = readFileSync(join(import.meta.dirname, '../../README.md'), 'utf8');

test("the README's first request does what it says", async () => {
  const script = /<!-- first-request -->\s*```sh\n([\s\S]*?)```/.exec(readme)?.[1] ?? '';
  const printed = /prints\n\n```text\n([\s\S]*?)\n```/.exec(readme)?.[1];
  const commands = script.replaceAll('\\\n', ' ').split('\n\n').map(parseCurl);
  expect(commands).toHaveLength(4);

  const answers = [];
  for (const { method, path, headers, body } of commands) {
    answers.push(await service.request(method, path, body, headers));
  }
  expect(answers.map(({ status }) => status)).toEqual([201, 201, 204, 200]);
  expect(answers[2]?.headers['delivery-outcome']).toBe('delivered');
  expect(answers[3]?.body).toBe(printed);
  for (const id of ['conv_parent', 'conv_child']) {
    expect((await service.request('GET', `/v1/sessions/${id}`)).status).toBe(200);
  }
});

/** The request that a curl command of the README sends. */
function parseCurl(command: string) {
  const words = [...command.matchAll(/'([^']*)'|(\S+)/g)].map(
    ([, quoted, bare]) => quoted ?? bare ?? '',
  );
  const headers: Record<string, string> = {};
  let method = 'GET';
  let path = '';
  let body: string | undefined;
  for (let at = 1; at < words.length; at += 1) {
    const word = words[at] ?? '';
    const next = words[at + 1] ?? '';
    if (word === '-X') method = next;
    if (word === '-d') body = next;
    if (word === '-H') {
      const [name = '', value = ''] = next.split(': ');
      headers[name] = value;
    }
    if (word.startsWith('http')) path = new URL(word).pathname;
  }
  return { method, path, headers, body };
}
