import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  isCompleted,
  retryAfterSeconds,
  sameTurnAsParked,
  supersedes,
  type ParkedState,
} from '../../src/domain/parking.ts';
import { aParked } from './situations.ts';

const statuses = fc.constantFrom('idle' as const, 'failed' as const);
const outcomes = fc.option(
  fc.constantFrom(
    'completed' as const,
    'failed' as const,
    'cancelled' as const,
    'interrupted' as const,
  ),
);

describe('a report that arrives while one is parked', () => {
  test.each<[what: string, parked: Partial<ParkedState>, workId: string | null]>([
    ['both are of the same entry', {}, 'work-1'],
    ['neither has one', { workId: null }, null],
    ['the agent has another id for it', { responseId: 'r1' }, 'work-1'],
    ['the parked one is dead by now', { state: 'dead' }, 'work-1'],
  ])('speaks of the same turn where %s', (_what, parked, workId) => {
    expect(sameTurnAsParked(aParked(parked), workId, false)).toBe(true);
  });

  test.each<
    [
      what: string,
      parked: Partial<ParkedState>,
      said: { workId?: string | null; ranSince?: boolean },
    ]
  >([
    ['the child has run since', {}, { ranSince: true }],
    ['the work was dispatched anew', {}, { workId: 'work-2' }],
    ['the work was dispatched after it was parked', { workId: null }, { workId: 'work-1' }],
    ['the entry is gone', {}, { workId: null }],
  ])('speaks of another turn where %s', (_what, parked, said) => {
    const { workId = 'work-1', ranSince = false } = said;
    expect(sameTurnAsParked(aParked(parked), workId, ranSince)).toBe(false);
  });

  test.each<[status: 'idle' | 'failed', outcome: ParkedState['outcome'], completed: boolean]>([
    ['idle', null, true],
    ['failed', null, false],
    ['failed', 'completed', true],
    ['idle', 'completed', true],
    ['idle', 'failed', false],
    ['idle', 'cancelled', false],
    ['idle', 'interrupted', false],
  ])('reports a completion with %s and outcome %s: %s', (status, outcome, completed) => {
    expect(isCompleted(status, outcome)).toBe(completed);
  });

  test.each<
    [what: string, parked: Partial<ParkedState>, later: Partial<ParkedState>, does: boolean]
  >([
    ['a completion replaces a completion', {}, {}, true],
    ['a completion replaces a failure', { status: 'failed' }, {}, true],
    ['a failure replaces a failure', { status: 'failed' }, { status: 'failed' }, true],
    ['a failure does not replace a completion', {}, { status: 'failed' }, false],
    ['an idle that says it failed does not either', {}, { outcome: 'failed' }, false],
    [
      'a failure does not replace a failed report of a completion',
      { status: 'failed', outcome: 'completed' },
      { status: 'failed' },
      false,
    ],
  ])('%s', (_what, parked, later, does) => {
    const { status, outcome } = aParked(later);
    expect(supersedes(status, outcome, aParked(parked))).toBe(does);
  });

  test('replaces it unless that would turn a completion into something else', () => {
    fc.assert(
      fc.property(statuses, outcomes, statuses, outcomes, (was, wasOutcome, is, isOutcome) => {
        const parked = aParked({ status: was, outcome: wasOutcome });
        const kept = isCompleted(was, wasOutcome) && !isCompleted(is, isOutcome);
        expect(supersedes(is, isOutcome, parked)).toBe(!kept);
      }),
    );
  });
});

describe('the time until the next try', () => {
  test.each([
    [1, 1],
    [2, 2],
    [3, 4],
    [9, 256],
    [10, 300],
    [12, 300],
    [1_000_000, 300],
    [0, 1],
  ])('after %i tries is %i seconds', (tries, seconds) => {
    expect(retryAfterSeconds(tries)).toBe(seconds);
  });

  test('doubles with each try and stays within 1 and 300 seconds', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 10_000 }), (tries) => {
        const seconds = retryAfterSeconds(tries);
        expect(seconds).toBe(tries === 1 ? 1 : Math.min(300, 2 * retryAfterSeconds(tries - 1)));
        expect(Number.isInteger(seconds) && seconds >= 1 && seconds <= 300).toBe(true);
      }),
    );
  });
});
