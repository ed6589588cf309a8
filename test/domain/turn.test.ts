import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { judgeResult, mayAddSomething, type Result, type Turn } from '../../src/domain/turn.ts';
import { isBlank } from '../../src/domain/text.ts';
import { ENDED_STATUSES, LIVE_STATUSES, type EndedStatus } from '../../src/domain/work.ts';
import { aWork, deliveredWork, digest } from './situations.ts';

function aTurn(set: Partial<Turn> = {}): Turn {
  const quiet = { lastDigest: null, ranSince: false, repeatsParked: false, response: null };
  return { work: aWork(), ...quiet, ...set };
}

/** A result with this text; `digest: null` where it could not be looked up. */
function aResult(output: string, set: Partial<Result> = {}): Result {
  const status = set.status ?? 'completed';
  const known = { output, digest: digest(status, output), responseId: null, named: false };
  return { ...known, status, ...set };
}

const ANNOUNCED = { delivered: false };
const DELIVERED = { delivered: true };

type Case = [what: string, turn: Turn, result: Result];

describe('the first result of a turn', () => {
  const dispatchedAnew = {
    work: aWork({ status: 'launching' }),
    lastDigest: digest('completed', 'one'),
  };

  test.each<Case>([
    ['that has no entry yet', aTurn({ work: null }), aResult('one')],
    ...LIVE_STATUSES.map((status): Case => [
      `that is ${status}`,
      aTurn({ work: aWork({ status }) }),
      aResult('one'),
    ]),
    ['that is a failure', aTurn(), aResult('boom', { status: 'failed' })],
    ['without text', aTurn(), aResult('')],
    ['that differs from the former turn’s', aTurn(dispatchedAnew), aResult('two')],
    [
      'that equals the former turn’s in text, not in status',
      aTurn(dispatchedAnew),
      aResult('one', { status: 'failed' }),
    ],
    [
      'that equals the former turn’s and names its turn',
      aTurn(dispatchedAnew),
      aResult('one', { named: true }),
    ],
    [
      'that equals the former turn’s after a sign of life',
      aTurn({ ...dispatchedAnew, work: aWork({ status: 'running' }) }),
      aResult('one'),
    ],
    [
      'whose text could not be looked up',
      aTurn({ ...dispatchedAnew, lastDigest: digest('completed', '') }),
      aResult('', { digest: null }),
    ],
  ])('is one %s', (_what, turn, result) => {
    expect(judgeResult(turn, result)).toEqual({ kind: 'first' });
  });

  test('is provisional where it may be the former turn’s last one, late', () => {
    expect(judgeResult(aTurn(dispatchedAnew), aResult('one'))).toEqual({
      kind: 'provisional',
    });
  });
});

describe('a result after the first', () => {
  const done = deliveredWork('one', { resultResponseId: 'r1' });
  const unnamed = deliveredWork('one');
  const failed = deliveredWork('boom', { status: 'failed' });
  const blank = deliveredWork('', { awaitsText: true });
  const provisional = deliveredWork('one', { provisional: true });
  const ran = { ranSince: true };

  test.each<Case>([
    ['an equal one', aTurn({ work: done }), aResult('one')],
    ['another text', aTurn({ work: done }), aResult('two')],
    ['a failure', aTurn({ work: done }), aResult('boom', { status: 'failed' })],
    ['a completion after a failure', aTurn({ work: failed }), aResult('two')],
    [
      'one of another id, nothing having run',
      aTurn({ work: done }),
      aResult('two', { responseId: 'r2', named: true }),
    ],
    ['one whose text could not be looked up', aTurn({ work: done }), aResult('', { digest: null })],

    ['an equal one after the child ran', aTurn({ work: unnamed, ...ran }), aResult('one')],
    [
      'an equal one of the first id ever heard of',
      aTurn({ work: unnamed, ...ran }),
      aResult('one', { responseId: 'r2' }),
    ],
    [
      'a failure after a completion and a run',
      aTurn({ work: unnamed, ...ran }),
      aResult('boom', { status: 'failed' }),
    ],
    [
      'a failure of the same id after a completion and a run',
      aTurn({ work: done, ...ran, response: DELIVERED }),
      aResult('boom', { status: 'failed', responseId: 'r1' }),
    ],
    [
      'an equal failure after a failure and a run',
      aTurn({ work: failed, ...ran }),
      aResult('boom', { status: 'failed' }),
    ],
    [
      'one of an id that was delivered as an earlier revision',
      aTurn({ work: done, ...ran, response: DELIVERED }),
      aResult('zero', { responseId: 'r0', named: true }),
    ],
    [
      'one of the delivered id for which no text is found any more',
      aTurn({ work: done, ...ran, response: DELIVERED }),
      aResult('', { responseId: 'r1', named: true }),
    ],

    ['an equal one after a provisional one', aTurn({ work: provisional }), aResult('one')],
    ['one without text after a provisional one', aTurn({ work: provisional }), aResult('')],

    ['white space, where text is awaited', aTurn({ work: blank }), aResult(' \u0085')],
    [
      'a failure, where text is awaited',
      aTurn({ work: blank }),
      aResult('x', { status: 'failed' }),
    ],
    [
      'text of an earlier revision’s id, where text is awaited',
      aTurn({ work: blank, response: DELIVERED }),
      aResult('zero', { responseId: 'r0' }),
    ],
    [
      'an equal one while another is parked',
      aTurn({ work: done, repeatsParked: true }),
      aResult('one'),
    ],
    [
      'one of an earlier revision’s id while another is parked',
      aTurn({ work: done, repeatsParked: true, response: DELIVERED }),
      aResult('zero', { responseId: 'r0' }),
    ],
  ])('is a repeat: %s', (_what, turn, result) => {
    expect(judgeResult(turn, result)).toEqual({ kind: 'repeat' });
  });

  test.each<Case>([
    ['another text after the child ran', aTurn({ work: unnamed, ...ran }), aResult('two')],
    ['no text after the child ran', aTurn({ work: unnamed, ...ran }), aResult('')],
    [
      'another text of the same id after the child ran',
      aTurn({ work: done, ...ran, response: DELIVERED }),
      aResult('two', { responseId: 'r1' }),
    ],
    [
      'an equal text of an id that was announced since',
      aTurn({ work: done, ...ran, response: ANNOUNCED }),
      aResult('one', { responseId: 'r2' }),
    ],
    [
      'an equal text of the first id that was announced',
      aTurn({ work: unnamed, ...ran, response: ANNOUNCED }),
      aResult('one', { responseId: 'r2' }),
    ],
    [
      'an equal text of an id never heard of',
      aTurn({ work: done, ...ran }),
      aResult('one', { responseId: 'r2' }),
    ],
    ['no text, of another id', aTurn({ work: done, ...ran }), aResult('', { responseId: 'r2' })],
    [
      'a failure after a completion, of another id',
      aTurn({ work: done, ...ran }),
      aResult('boom', { status: 'failed', responseId: 'r2' }),
    ],
    ['a completion after a failure and a run', aTurn({ work: failed, ...ran }), aResult('two')],
    [
      'another failure after a failure and a run',
      aTurn({ work: failed, ...ran }),
      aResult('bang', { status: 'failed' }),
    ],
    [
      'one after a run whose text could not be looked up, whatever was delivered',
      aTurn({ work: blank, ...ran }),
      aResult('', { digest: null }),
    ],
    [
      'one of the delivered id after a run whose text could not be looked up',
      aTurn({ work: done, ...ran, response: DELIVERED }),
      aResult('', { digest: null, responseId: 'r1' }),
    ],

    ['a different one after a provisional one', aTurn({ work: provisional }), aResult('two')],
    [
      'a failure after a provisional completion',
      aTurn({ work: provisional }),
      aResult('boom', { status: 'failed' }),
    ],
    [
      'one without text after a provisional one and a run',
      aTurn({ work: provisional, ...ran }),
      aResult(''),
    ],
    [
      'one after a provisional one whose text could not be looked up',
      aTurn({ work: provisional }),
      aResult('', { digest: null }),
    ],

    ['text that was awaited', aTurn({ work: blank }), aResult('two')],
    ['another try of what is parked', aTurn({ work: done, repeatsParked: true }), aResult('two')],
    [
      'a failure while a completion that follows is parked',
      aTurn({ work: done, repeatsParked: true }),
      aResult('boom', { status: 'failed' }),
    ],
    [
      'a report after its runner was thought lost',
      aTurn({ work: aWork({ status: 'unknown' }) }),
      aResult('one'),
    ],
    [
      'a report without text after its runner was thought lost',
      aTurn({ work: aWork({ status: 'unknown' }) }),
      aResult(''),
    ],
  ])('follows: %s', (_what, turn, result) => {
    expect(judgeResult(turn, result)).toEqual({ kind: 'follow_up' });
  });

  test.each<EndedStatus>(['cancelled', 'interrupted', 'stalled', 'timeout'])(
    'is late once the turn is %s, whatever has run since',
    (status) => {
      for (const ranSince of [false, true]) {
        const turn = aTurn({ work: aWork({ status }), ranSince });
        expect(judgeResult(turn, aResult('two', { responseId: 'r2' }))).toEqual({ kind: 'late' });
      }
    },
  );
});

const id = fc.constantFrom(null, 'r1', 'r2');
const text = fc.constantFrom('', ' ', 'one', 'two');
const turns: fc.Arbitrary<Turn> = fc.record({
  work: fc.option(
    fc
      .record({
        status: fc.constantFrom(...LIVE_STATUSES, ...ENDED_STATUSES),
        resultDigest: fc.option(text.map((output) => digest('completed', output))),
        resultResponseId: id,
        provisional: fc.boolean(),
        awaitsText: fc.boolean(),
      })
      .map(aWork),
  ),
  lastDigest: fc.option(text.map((output) => digest('completed', output))),
  ranSince: fc.boolean(),
  repeatsParked: fc.boolean(),
  response: fc.constantFrom(null, ANNOUNCED, DELIVERED),
});
const results: fc.Arbitrary<Result> = fc
  .record({
    status: fc.constantFrom(...ENDED_STATUSES),
    output: text,
    responseId: id,
    named: fc.boolean(),
    isFound: fc.boolean(),
  })
  .map(({ isFound, ...said }) => {
    const found = { ...said, digest: digest(said.status, said.output) };
    return isFound ? found : { ...said, output: '', digest: null };
  });

describe('every turn', () => {
  test('has nothing added to it by any result where none may add something', () => {
    fc.assert(
      fc.property(turns, results, (turn, result) => {
        fc.pre(!mayAddSomething(turn));
        expect(judgeResult(turn, result)).toEqual({ kind: 'repeat' });
      }),
    );
  });

  test('may get a result as long as it is live, or has no entry', () => {
    fc.assert(
      fc.property(turns, results, (turn, result) => {
        const isOpen =
          turn.work === null || LIVE_STATUSES.some((status) => status === turn.work?.status);
        const { kind } = judgeResult(turn, result);
        expect(kind === 'first' || kind === 'provisional').toBe(isOpen);
        if (isOpen) expect(mayAddSomething(turn)).toBe(true);
      }),
    );
  });

  test('has no follow-up that equals what was delivered and names no other id', () => {
    const ends = fc.constantFrom<EndedStatus[]>('completed', 'failed', 'error');
    fc.assert(
      fc.property(turns, ends, text, fc.boolean(), (turn, status, output, isNamed) => {
        const work = deliveredWork(output, { ...turn.work, status });
        const equal = { resultDigest: digest(status, output), awaitsText: isBlank(output) };
        const responseId = isNamed ? work.resultResponseId : null;
        const result = aResult(output, { status, responseId });
        expect(judgeResult({ ...turn, work: { ...work, ...equal } }, result).kind).toBe('repeat');
      }),
    );
  });
});
