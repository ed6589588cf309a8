import { setTimeout as pause } from 'node:timers/promises';
import { beforeAll, describe, expect, test } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { freshId, path } from '../support/delivery.ts';
import {
  fieldsOf,
  mayBe,
  operationsOf,
  pathWith,
  sampleOf,
  withValue,
  type Field,
  type Operation,
} from '../support/document.ts';
import { createHttpClient, type Answer } from '../support/http-client.ts';
import { longText } from '../support/long-text.ts';
import { openRaw } from '../support/raw-http.ts';
import { useService } from '../support/service.ts';
import { inboxOf, inShort, isChild, newPair, opens, status, take } from '../support/steps.ts';

/*
 * What no client should send. Whatever it is, it is answered without a 500 and without a word of
 * what is inside; requests are made from the OpenAPI document, so that every route is among them.
 */

const database = useDatabase();
const service = useService(database, { env: { WEBHOOK_ALLOW_PRIVATE: 'true' } });
const MIB = 1024 * 1024;

let operations: Operation[];
beforeAll(async () => {
  const document = await service.request('GET', '/openapi.json');
  // A stream has no end that could be waited for here.
  operations = operationsOf(document.body).filter((operation) => !operation.streams);
});

const INTERNALS =
  /\b(?:select|insert into|update|delete from) .*\b(?:from|values|set|where)\b|node_modules|\.ts:\d|postgres|drizzle|SQLSTATE|constraint/i;

/** No defect, and nothing of the inside; the answer is checked against the document as well. */
function expectSane(what: string, answer: Answer): void {
  const shown = JSON.stringify(answer.body).slice(0, 1_000);
  expect([what, answer.status < 500, answer.status, shown]).toEqual([
    what,
    true,
    answer.status,
    shown,
  ]);
  expect([what, INTERNALS.test(shown), shown]).toEqual([what, false, shown]);
}

/** What may be waited for is not. */
const WITHOUT_WAIT = { prefer: 'wait=0' };

/** Sends the operation with this body to things of its own. */
function send(operation: Operation, body: unknown, values: Record<string, string> = {}) {
  const target = pathWith(operation, { id: freshId(), ...values });
  return service.request(operation.method, target, body, WITHOUT_WAIT);
}

/** Sends all, some at a time, and looks at each answer. */
async function sendAll<T>(all: readonly T[], one: (what: T) => Promise<void>): Promise<void> {
  const AT_ONCE = 16;
  for (let n = 0; n < all.length; n += AT_ONCE) {
    await Promise.all(all.slice(n, n + AT_ONCE).map(one));
  }
}

/** A body of the operation in which every member is set. */
function fullBody({ id, body }: Operation): unknown {
  if (id === 'postEvent') return reportWith({});
  const sample = sampleOf(body ?? {}, 'all');
  if (id === 'putWebhook') return { ...(sample as object), url: 'http://127.0.0.1:9/' };
  // A session that goes on as itself, or is its own parent, would hide what else is wrong.
  return id === 'putSession' ? { ...(sample as object), continued_as: null } : sample;
}

function reportWith(data: object) {
  return { type: 'external_session_status', data: { status: 'idle', output: 'x', ...data } };
}

/** The members of events' data, which the document leaves open. */
const DATA = [
  'status',
  'output',
  'response_id',
  'work_id',
  'background_task_count',
  'blocked_on',
  'reauth_required',
  'outcome',
  'result',
  'grace_seconds',
  'item_type',
  'item_data',
];
const TYPES = [
  'external_session_status',
  'external_conversation_item',
  'external_other',
  'interrupt',
  'stop_session',
];

const ODD_VALUES: unknown[] = [
  null,
  true,
  0,
  -1,
  1.5,
  1e308,
  Number.MAX_SAFE_INTEGER,
  '',
  ' ',
  'x',
  [],
  ['x'],
  [null],
  {},
  { x: { y: [1] } },
];
const ODD_TEXTS = [
  'a\u0000b',
  '\ud800',
  'a\udc00\ud800b',
  '\u0000',
  '\uffff\ufffe\u0001\u001f\u007f\u0085\u2028\u202e',
  '😀'.repeat(600),
  '__proto__',
  'constructor',
  "'; drop table sessions; --",
  '%00%ff${x}{{x}}\\u0000',
];
const ODD_IDS = [
  'a/b',
  'a%b',
  'a%2Fb',
  'a:b#c?d&e=f',
  '😀',
  '__proto__',
  'constructor',
  'toString',
  'hasOwnProperty',
  'a b',
  'a\\b',
  "'; drop table sessions; --",
  '..a',
  'x'.repeat(255),
  '😀'.repeat(255),
  'é\u0301',
];
/** As long as ids may be, as names may be, and longer than any index has room for. */
const LONG_TEXTS = [255, 512, 3_000].map(longText);
/** The fields of bodies that take any text; of what a call cannot understand, `finite` is anything. */
const TEXTS = ['delegate.context', 'delegate.finite', 'delegate.tasks.0.goal'];
const TITLES = [
  'delegate.tasks.0.title',
  'dispatchWork.title',
  'postSession.title',
  'postSession.workspace',
  'putSession.title',
  'putSession.workspace',
];

describe('a body of wrong types', () => {
  test('is 400 where the document rules it out, and never 500', async () => {
    const cases = operations.flatMap((operation) =>
      operation.body === null
        ? []
        : fieldsOf(operation.body).flatMap((field) =>
            ODD_VALUES.map((value) => ({ operation, field, value })),
          ),
    );
    expect(cases.length).toBeGreaterThan(500);
    await sendAll(cases, async ({ operation, field, value }) => {
      const what = describeCase(operation, field, value);
      const answer = await send(
        operation,
        JSON.stringify(withValue(fullBody(operation), field.at, value)),
      );
      expectSane(what, answer);
      if (!mayBe(field.schema, value)) expect([what, answer.status]).toEqual([what, 400]);
    });
  });

  test.each(TYPES)('or of great length is no defect in the data of %s', async (type) => {
    const cases = DATA.flatMap((name) =>
      [...ODD_VALUES, ...LONG_TEXTS].map((value) => ({ name, value })),
    );
    await sendAll(cases, async ({ name, value }) => {
      const body = { type, data: { ...reportWith({}).data, [name]: value } };
      const answer = await service.request('POST', `${path(freshId())}/events`, body);
      const what = `${type} ${name} ${JSON.stringify(value)?.slice(0, 60)}`;
      if (answer.status === 503) expect(answer.body.reason).toBe('unknown_session');
      else expectSane(what, answer);
    });
  });
});

describe('text that no database stores, or no index', () => {
  test('is taken or refused in every field of every route', async () => {
    const texts = [...ODD_TEXTS, ...LONG_TEXTS];
    const cases = operations.flatMap((operation) =>
      operation.body === null
        ? []
        : fieldsOf(operation.body)
            .filter(({ schema }) => mayBe(schema, 'some_text'))
            .flatMap((field) => texts.map((value) => ({ operation, field, value }))),
    );
    await sendAll(cases, async ({ operation, field, value }) => {
      const body = withValue(fullBody(operation), field.at, value);
      expectSane(describeCase(operation, field, value), await send(operation, body));
    });
  });

  test.each<[string, number, string[]]>([
    ['name', 513, [...TEXTS, ...TITLES].toSorted()],
    ['title', 4_097, TEXTS],
  ])('is refused where it is too long for a %s', async (_, length, takers) => {
    const cases = operations.flatMap((operation) =>
      operation.body === null
        ? []
        : fieldsOf(operation.body)
            .filter(({ schema }) => mayBe(schema, 'some_text'))
            .map(({ at }) => ({ operation, at, where: [operation.id, ...at].join('.') })),
    );
    const taken: string[] = [];
    await sendAll(cases, async ({ operation, at, where }) => {
      const body = withValue(fullBody(operation), at, longText(length));
      const answer = await send(operation, body);
      // Others may have been quicker to give the sample's child its work.
      const isRefused = answer.status === 400 && answer.body.errors[0].path === at.join('.');
      if (!isRefused) taken.push(where);
    });
    expect(taken.toSorted()).toEqual(takers);
  });

  test.each(ODD_TEXTS.map((text) => [JSON.stringify(text.slice(0, 40)), text]))(
    'is delivered, as far as it can be stored: %s',
    async (_, text) => {
      const stored = text.toWellFormed().replaceAll('\u0000', '\ufffd');
      // What is too long for a name is a title all the same.
      const name = Array.from(text).slice(0, 512).join('');
      const storedName = Array.from(stored).slice(0, 512).join('');
      const pair = newPair(service);
      const item = { role: 'assistant', content: [{ type: 'text', text }] };
      await take(pair, [
        isChild({ agent_name: name, sub_agent_name: name, title: text, workspace: text }),
        opens,
      ]);
      const answer = await status(pair, {
        status: 'idle',
        output: `> ${text}`,
        blocked_on: text,
        result: { [text]: text, summary: text },
      });
      expect(inShort(answer)).toBe('204 delivered');
      await service.request('POST', `${path(pair.child)}/events`, {
        type: 'external_conversation_item',
        data: { item_type: 'message', item_data: item },
      });
      expect(await inboxOf(pair)).toMatchObject([
        { output: `> ${stored}`, agent: storedName, title: storedName },
      ]);
      const children = await service.request('GET', path(pair.child));
      expect(children.body).toMatchObject({
        title: stored,
        workspace: stored,
        agent_name: storedName,
      });
    },
  );

  test('as an id of a turn is no defect', async () => {
    const names = ['response_id', 'work_id'];
    const texts = [...ODD_TEXTS, ...LONG_TEXTS];
    const cases = names.flatMap((name) => texts.map((text) => ({ name, text })));
    await sendAll(cases, async ({ name, text }) => {
      const pair = newPair(service);
      await take(pair, [isChild(), opens]);
      const data = { status: 'idle', output: 'x', [name]: text };
      const answer = await status(pair, data);
      const isTooLong = Array.from(text).length > 512;
      expect([name, text, inShort(answer)]).toEqual([
        name,
        text,
        isTooLong ? '400' : '204 delivered',
      ]);
      if (!isTooLong) expect(inShort(await status(pair, data))).toBe('204 already_delivered');
    });
  });
});

describe('ids that mean something elsewhere', () => {
  test('are ids in every path', async () => {
    const ids = [...ODD_IDS, ...LONG_TEXTS.slice(0, 2)];
    const cases = operations
      .filter(({ parameters }) => parameters.some((it) => it.in === 'path'))
      .flatMap((operation) => ids.map((id) => ({ operation, id })));
    await sendAll(cases, async ({ operation, id }) => {
      const values = Object.fromEntries(operation.parameters.map(({ name }) => [name, id]));
      const body = operation.body === null ? undefined : fullBody(operation);
      const target = pathWith(operation, values);
      const answer = await service.request(operation.method, target, body, WITHOUT_WAIT);
      if (answer.status === 503) expect(answer.body.reason).toBe('unknown_session');
      else expectSane(`${operation.id} ${id}`, answer);
    });
  });

  test.each(ODD_IDS)('are those of sessions that work: %s', async (id) => {
    const own = id.slice(0, 120);
    const pair = { service, parent: `p ${own}`, child: `c ${own}` };
    const work = { child_session_id: pair.child };
    const dispatched = await service.request('POST', `${path(pair.parent)}/work`, work);
    expect(dispatched.status).toBe(201);
    const answer = await status(pair, { status: 'idle', output: 'x', response_id: id });
    expect(inShort(answer)).toBe('204 delivered');
    expect(await inboxOf(pair)).toMatchObject([{ conversation_id: pair.child, response_id: id }]);
    expect((await service.request('DELETE', path(pair.parent))).status).toBe(204);
  });

  test('are no defect in queries and headers', async () => {
    const cases = operations.flatMap((operation) =>
      operation.parameters
        .filter((parameter) => parameter.in !== 'path')
        .flatMap((parameter) =>
          [
            '',
            '0',
            '-1',
            'x',
            '1e9',
            '99999999999999999999',
            'wait=x',
            '"k',
            "a'b",
            '__proto__',
          ].map((value) => ({ operation, parameter, value })),
        ),
    );
    await sendAll(cases, async ({ operation, parameter, value }) => {
      const inQuery = parameter.in === 'query';
      const query = inQuery ? `?${parameter.name}=${encodeURIComponent(value)}` : '';
      const body = operation.body === null ? undefined : sampleOf(operation.body, 'required');
      const target = pathWith(operation, { id: freshId() }) + query;
      const headers = { ...WITHOUT_WAIT, ...(inQuery ? {} : { [parameter.name]: value }) };
      const answer = await service.request(operation.method, target, body, headers);
      expectSane(`${operation.id} ${parameter.name}=${value}`, answer);
    });
  });
});

/** A report whose body has so many bytes. */
function bodyOf(bytes: number): string {
  const empty = '{"type":"external_session_status","data":{"status":"idle","output":""}}';
  return empty.replace('"output":""', `"output":"${'x'.repeat(bytes - empty.length)}"`);
}

describe('a body of great size', () => {
  test.each([
    ['', {}],
    [', in chunks', { 'transfer-encoding': 'chunked' }],
  ])('of 8 MiB is kept whole, of one byte more refused%s', async (_, headers) => {
    const pair = newPair(service);
    await take(pair, [isChild(), opens]);
    const events = `${path(pair.child)}/events`;
    const refused = await service.request('POST', events, bodyOf(8 * MIB + 1), headers);
    expect(refused).toMatchObject({ status: 413, body: { error: 'payload_too_large' } });
    expect(await inboxOf(pair)).toEqual([]);
    const body = bodyOf(8 * MIB);
    expect(inShort(await service.request('POST', events, body, headers))).toBe('204 delivered');
    const [item] = await inboxOf(pair);
    expect(item?.['output'] === JSON.parse(body).data.output).toBe(true);
  });

  test.each([
    ['arrays', '[', ']'],
    ['objects', '{"x":', '}'],
  ])('nested 100,000 levels deep in %s is no defect, wherever it is', async (_, open, close) => {
    const value = `${open.repeat(100_000)}${open === '[' ? '' : 'null'}${close.repeat(100_000)}`;
    const cases = operations.flatMap((operation) =>
      operation.body === null
        ? []
        : fieldsOf(operation.body).map((field) => ({ operation, field })),
    );
    const put = (body: unknown, field: Field['at']): string =>
      JSON.stringify(withValue(body, field, '<deep>')).replace('"<deep>"', value);
    await sendAll(cases, async ({ operation, field }) => {
      const answer = await send(operation, put(fullBody(operation), field.at));
      expectSane(`${operation.id} ${field.at.join('.')}`, answer);
    });
    await sendAll(DATA, async (name) => {
      const body = put(reportWith({ [name]: null }), ['data', name]);
      const answer = await service.request('POST', `${path(freshId())}/events`, body);
      if (answer.status === 503) expect(answer.body.reason).toBe('unknown_session');
      else expectSane(`data.${name}`, answer);
    });
  });
});

/** The head of a report with a body of so many bytes. */
function headOf(child: string, bytes: number): string {
  return `POST ${path(child)}/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${bytes}\r\n\r\n`;
}

describe('a client that is slow, stops, or never begins', () => {
  test('byte by byte is served', async () => {
    const pair = newPair(service);
    await take(pair, [isChild(), opens]);
    const body = JSON.stringify(reportWith({}));
    const connection = await openRaw(service.url);
    for (const byte of headOf(pair.child, body.length) + body) {
      connection.send(byte);
      await pause(1);
    }
    expect(await connection.received('\r\n\r\n')).toMatch(/^HTTP\/1\.1 204 .*delivered/s);
    connection.destroy();
    expect(await inboxOf(pair)).toHaveLength(1);
  });

  test('that stops halfway through a report has reported nothing', async () => {
    const pair = newPair(service);
    await take(pair, [isChild(), opens]);
    const body = JSON.stringify(reportWith({}));
    for (const [head, sent] of [
      [headOf(pair.child, body.length + 10), body],
      [headOf(pair.child, body.length), body.slice(0, -1)],
    ]) {
      const connection = await openRaw(service.url);
      connection.send(`${head}${sent}`);
      await service.request('GET', '/livez');
      connection.destroy();
      await connection.ended;
    }
    expect(await inboxOf(pair)).toEqual([]);
    expect(inShort(await status(pair, { status: 'idle', output: 'x' }))).toBe('204 delivered');
  });

  test('a thousand half-open connections hold nobody else up', async () => {
    const half = await Promise.all(Array.from({ length: 1_000 }, () => openRaw(service.url)));
    for (const [n, connection] of half.entries()) {
      if (n % 3 === 1) connection.send('POST /v1/sess');
      if (n % 3 === 2) connection.send(`${headOf(freshId(), 1_000)}{"type":`);
    }
    const client = createHttpClient(service.url);
    const pair = { ...newPair(service), service: client };
    await take(pair, [isChild(), opens]);
    const startedAt = performance.now();
    expect(inShort(await status(pair, { status: 'idle', output: 'x' }))).toBe('204 delivered');
    expect(performance.now() - startedAt).toBeLessThan(2_000);
    client.close();
    for (const connection of half) connection.destroy();
    await Promise.all(half.map((connection) => connection.ended));
    expect((await service.request('GET', '/readyz')).status).toBe(200);
  });
});

function describeCase({ id }: Operation, { at }: Field, value: unknown): string {
  return `${id} ${at.join('.')} = ${JSON.stringify(value)?.slice(0, 60)}`;
}
