import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  codePoints,
  firstCodePoints,
  foldWhiteSpace,
  isBlank,
  quoteName,
  quoteText,
  storable,
  trimEnd,
} from '../../src/domain/text.ts';

/** Text that PostgreSQL can store, with much of what is hard about it. */
const text = fc.string({
  unit: fc.oneof(
    fc.constantFrom('\n', '\r', ' ', '\t', '\u2028', '[System:', '😀', 'é', '\u0301', '\\'),
    fc.string({ unit: 'binary', minLength: 1, maxLength: 1 }),
  ),
});

describe('white space', () => {
  test.each(['', ' ', '\t\n\v\f\r', '\u001c\u001d\u001e\u001f', '\u0085\u00a0\u2028\u3000'])(
    'alone is blank: %j',
    (blank) => {
      expect(isBlank(blank)).toBe(true);
      expect(trimEnd(`x${blank}`)).toBe('x');
    },
  );

  test.each(['x', ' x ', '\ufeff', '\u200b', '\0'])('is not what %j is made of', (other) => {
    expect(isBlank(other)).toBe(false);
    expect(trimEnd(other)).toBe(other.replace(/ $/, ''));
  });

  test('is folded into single blanks, and is at no end', () => {
    expect(foldWhiteSpace('  a \n\t b\u3000c\u0085')).toBe('a b c');
    expect(foldWhiteSpace(' \n ')).toBe('');
  });

  test('is all that is lost at the end', () => {
    fc.assert(
      fc.property(text, (any) => {
        const kept = trimEnd(any);
        expect(any.startsWith(kept)).toBe(true);
        expect(isBlank(any.slice(kept.length))).toBe(true);
        expect(isBlank(kept.slice(-1))).toBe(kept === '');
      }),
    );
  });
});

describe('code points', () => {
  test('are what is counted and cut, never halves of them', () => {
    fc.assert(
      fc.property(text, fc.nat(40), (any, count) => {
        const points = Array.from(any);
        expect(codePoints(any)).toBe(points.length);
        expect(firstCodePoints(any, count)).toBe(points.slice(0, count).join(''));
      }),
    );
  });
});

describe('storable text', () => {
  test.each([
    ['a\0b', 'a\ufffdb'],
    ['\ud800', '\ufffd'],
    ['\udc00x\ud83d', '\ufffdx\ufffd'],
    ['😀', '😀'],
    ['', ''],
  ])('%j becomes %j', (any, stored) => {
    expect(storable(any)).toBe(stored);
  });

  test('is kept as it is, and is as long', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (any) => {
        const stored = storable(any);
        expect(stored.isWellFormed()).toBe(true);
        expect(stored).not.toContain('\0');
        expect(storable(stored)).toBe(stored);
        expect(stored).toHaveLength(any.length);
      }),
    );
  });
});

describe('a text set into another', () => {
  test.each([
    ['[System: x]', '\\[System: x]'],
    ['a\n[System: x]\r\n[System: y]', 'a\n\\[System: x]\r\n\\[System: y]'],
    ['a\u2028[System:\u0085[System:', 'a\u2028\\[System:\u0085\\[System:'],
    ['a [System: x]', 'a [System: x]'],
    [' [System: x]', ' [System: x]'],
    ['[system: x]', '[system: x]'],
    ['\\[System: x]', '\\[System: x]'],
    ['$1[System:', '$1[System:'],
  ])('%j is written %j', (any, quoted) => {
    expect(quoteText(any)).toBe(quoted);
  });

  test('has no line that opens as ours do, and loses nothing', () => {
    fc.assert(
      fc.property(text, (any) => {
        const quoted = quoteText(any);
        for (const line of quoted.split(/[\n\r\v\f\u0085\u2028\u2029]/)) {
          expect(line.startsWith('[System:')).toBe(false);
        }
        expect(quoted.replaceAll('\\[System:', '[System:')).toBe(
          any.replaceAll('\\[System:', '[System:'),
        );
      }),
    );
  });
});

describe('a name', () => {
  test.each([
    ['a\nb\r\nc', 'a b c'],
    ['\n[System: x]', ' [System: x]'],
    ['[System: x]', '\\[System: x]'],
    ['a\u0085\u2029b', 'a b'],
    ['plain', 'plain'],
  ])('%j is set in as %j', (name, quoted) => {
    expect(quoteName(name)).toBe(quoted);
  });
});
