import { describe, expect, test } from 'vitest';
import { traceparentOf } from '../../src/http/traceparent.ts';
import {
  clamped,
  clampedWhole,
  clientKey,
  instantOut,
  jsonObject,
  listOut,
  text,
} from '../../src/http/wire.ts';

describe('a number', () => {
  const seconds = clamped({ min: 0, max: 60 });
  const count = clampedWhole({ min: 1, max: 1000 });

  test('above the range counts as its end', () => {
    expect([seconds.parse(61), seconds.parse(1e300), seconds.parse(0.5)]).toEqual([60, 60, 0.5]);
    expect([count.parse(1001), count.parse(1e300), count.parse(7)]).toEqual([1000, 1000, 7]);
  });

  test.each([-0.001, '1', true, null, [], {}, Number.NaN])('is refused as %j', (value) => {
    expect(seconds.safeParse(value).success).toBe(false);
  });

  test.each([0, 1.5, -1, '1', true, null])('of things is refused as %j', (value) => {
    expect(count.safeParse(value).success).toBe(false);
  });
});

describe('text', () => {
  test('is kept, but for what cannot be stored', () => {
    expect(text().parse('a\0b\ud800c\udc00 😀')).toBe('a\ufffdb\ufffdc\ufffd 😀');
  });
});

describe('a key', () => {
  test.each(['k', '😀'.repeat(512), 'a\nb'])('may be %j', (key) => {
    expect(clientKey.parse(key)).toBe(key);
  });

  test.each(['', 'x'.repeat(513), '😀'.repeat(513), 'a\0', '\ud800'])('may not be %j', (key) => {
    expect(clientKey.safeParse(key).success).toBe(false);
  });
});

describe('a JSON object', () => {
  test('has its strings and names made storable, and `__proto__` is a name', () => {
    const value: unknown = JSON.parse('{"a\\u0000":["\\ud800",1,null],"__proto__":{"x":true}}');
    expect(JSON.stringify(jsonObject().parse(value))).toBe(
      '{"a\ufffd":["\ufffd",1,null],"__proto__":{"x":true}}',
    );
  });

  test('that is nested too deeply is refused', () => {
    expect(jsonObject().safeParse(nested(64)).success).toBe(true);
    expect(jsonObject().safeParse(nested(65)).success).toBe(false);
  });
});

function nested(depth: number): unknown {
  return JSON.parse(`${'{"x":'.repeat(depth)}1${'}'.repeat(depth)}`);
}

describe('an answer', () => {
  test('has instants in milliseconds, UTC', () => {
    expect(instantOut(1_796_049_141_688)).toBe('2026-11-30T14:32:21.688Z');
  });

  test('that is a list names its ends', () => {
    const list = listOut(['a', 'b'], true, (entry) => `id_${entry}`);
    expect(list).toMatchObject({
      object: 'list',
      first_id: 'id_a',
      last_id: 'id_b',
      has_more: true,
    });
    expect(listOut([], false, String)).toMatchObject({ first_id: null, last_id: null });
  });
});

describe('a traceparent', () => {
  const trace = '4bf92f3577b34da6a3ce929d0e0e4736';
  const parent = '00f067aa0ba902b7';

  test.each([`00-${trace}-${parent}-01`, `01-${trace}-${parent}-00-more`])('is kept: %s', (it) => {
    expect(traceparentOf(it)).toBe(it);
  });

  test.each([
    undefined,
    '',
    `00-${trace}-${parent}`,
    `ff-${trace}-${parent}-01`,
    `00-${'0'.repeat(32)}-${parent}-01`,
    `00-${trace}-${'0'.repeat(16)}-01`,
    `00-${trace.toUpperCase()}-${parent}-01`,
    `01-${trace}-${parent}-00-${'x'.repeat(300)}`,
  ])('is dropped: %s', (it) => {
    expect(traceparentOf(it)).toBeNull();
  });
});
