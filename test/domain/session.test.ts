import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  applyReport,
  isBusy,
  isTerminal,
  normaliseStatus,
  sameState,
  type SessionState,
  type SessionStatus,
  type StatusReport,
} from '../../src/domain/session.ts';
import { isBlank } from '../../src/domain/text.ts';

function aState(set: Partial<SessionState> = {}): SessionState {
  return {
    status: 'idle',
    backgroundTaskCount: 0,
    blockedOn: null,
    errorCode: null,
    errorMessage: null,
    responseId: null,
    ...set,
  };
}

function aReport(said: Partial<StatusReport> = {}): StatusReport {
  return {
    status: 'idle',
    output: null,
    responseId: null,
    backgroundTaskCount: null,
    blockedOn: null,
    reauthRequired: false,
    ...said,
  };
}

const FAILED = aState({ status: 'failed', errorCode: 'turn_error', errorMessage: 'boom' });

const status = fc.constantFrom<SessionStatus[]>('idle', 'running', 'waiting', 'failed');
const state: fc.Arbitrary<SessionState> = fc
  .record({
    status,
    backgroundTaskCount: fc.nat(),
    blockedOn: fc.option(fc.string({ minLength: 1 })),
    error: fc.option(
      fc.record({ errorCode: fc.constant('turn_error'), errorMessage: fc.string() }),
    ),
    responseId: fc.option(fc.string()),
  })
  .map(({ error, ...rest }) => ({
    ...rest,
    ...(error ?? { errorCode: null, errorMessage: null }),
  }));
const report: fc.Arbitrary<StatusReport> = fc.record({
  status,
  output: fc.option(fc.oneof(fc.string(), fc.constantFrom('', ' ', '\u0085'))),
  responseId: fc.option(fc.string()),
  backgroundTaskCount: fc.option(fc.nat()),
  blockedOn: fc.option(fc.string({ minLength: 1 })),
  reauthRequired: fc.boolean(),
});

describe('the status a report stands for', () => {
  test.each<[SessionStatus, number | null, SessionStatus]>([
    ['waiting', 1, 'idle'],
    ['waiting', 0, 'waiting'],
    ['waiting', null, 'waiting'],
    ['running', 3, 'running'],
    ['failed', 3, 'failed'],
    ['idle', 3, 'idle'],
  ])('is, of %s with %s background tasks, %s', (said, count, meant) => {
    expect(normaliseStatus(said, count)).toBe(meant);
  });

  test.each<[SessionStatus, terminal: boolean, busy: boolean]>([
    ['idle', true, false],
    ['failed', true, false],
    ['running', false, true],
    ['waiting', false, true],
  ])('%s ends a turn: %s; runs: %s', (said, terminal, busy) => {
    expect(isTerminal(said)).toBe(terminal);
    expect(isBusy(said)).toBe(busy);
  });
});

describe('a session after a report', () => {
  test.each<
    [what: string, before: SessionState, said: Partial<StatusReport>, after: Partial<SessionState>]
  >([
    ['runs', aState(), { status: 'running' }, { status: 'running' }],
    ['waits', aState(), { status: 'waiting' }, { status: 'waiting' }],
    ['is idle', aState({ status: 'running' }), {}, { status: 'idle' }],
    ['has failed', aState({ status: 'running' }), { status: 'failed' }, { status: 'failed' }],

    [
      'stays failed after an idle that trails',
      FAILED,
      {},
      { status: 'failed', errorMessage: 'boom' },
    ],
    [
      'runs again after a failure, which is cleared',
      FAILED,
      { status: 'running' },
      { status: 'running', errorCode: null, errorMessage: null },
    ],
    [
      'waits after a failure, which is still shown',
      FAILED,
      { status: 'waiting' },
      { status: 'waiting', errorMessage: 'boom' },
    ],

    ['gets a badge', aState(), { backgroundTaskCount: 2 }, { backgroundTaskCount: 2 }],
    [
      'loses its badge by a count of 0',
      aState({ backgroundTaskCount: 2 }),
      { backgroundTaskCount: 0 },
      { backgroundTaskCount: 0 },
    ],
    [
      'keeps its badge without a count',
      aState({ backgroundTaskCount: 2 }),
      {},
      { backgroundTaskCount: 2 },
    ],
    [
      'keeps its badge while it runs',
      aState({ backgroundTaskCount: 2 }),
      { status: 'running' },
      { backgroundTaskCount: 2 },
    ],
    [
      'loses its badge by a failure',
      aState({ backgroundTaskCount: 2 }),
      { status: 'failed' },
      { backgroundTaskCount: 0 },
    ],
    [
      'loses its badge by a failure that still counts',
      aState(),
      { status: 'failed', backgroundTaskCount: 3 },
      { backgroundTaskCount: 0 },
    ],

    [
      'shows what went wrong',
      aState({ status: 'running' }),
      { status: 'failed', output: 'boom' },
      { errorCode: 'turn_error', errorMessage: 'boom' },
    ],
    [
      'shows that a login is needed',
      aState({ status: 'running' }),
      { status: 'failed', output: 'log in', reauthRequired: true },
      { errorCode: 'reauth_required', errorMessage: 'log in' },
    ],
    [
      'shows no error of blank text',
      aState({ status: 'running' }),
      { status: 'failed', output: ' \u0085', reauthRequired: true },
      { errorCode: null, errorMessage: null },
    ],
    [
      'keeps an error after a failure without text',
      FAILED,
      { status: 'failed', output: '' },
      { status: 'failed', errorMessage: 'boom' },
    ],
    ['takes no error from an idle', aState(), { output: 'boom' }, { errorMessage: null }],

    [
      'is blocked while it waits',
      aState(),
      { status: 'waiting', blockedOn: 'approval' },
      { blockedOn: 'approval' },
    ],
    [
      'stays blocked while it waits on',
      aState({ status: 'waiting', blockedOn: 'approval' }),
      { status: 'waiting' },
      { blockedOn: 'approval' },
    ],
    [
      'is blocked no more once it runs',
      aState({ status: 'waiting', blockedOn: 'approval' }),
      { status: 'running' },
      { blockedOn: null },
    ],

    [
      'knows its turn by id',
      aState(),
      { status: 'running', responseId: 'r1' },
      { responseId: 'r1' },
    ],
    [
      'keeps the id of its turn while it runs',
      aState({ responseId: 'r1' }),
      { status: 'running' },
      { responseId: 'r1' },
    ],
    [
      'has the id of no turn once it is idle',
      aState({ responseId: 'r1' }),
      { responseId: 'r1' },
      { responseId: null },
    ],
    [
      'has the id of no turn once it has failed',
      aState({ responseId: 'r1' }),
      { status: 'failed' },
      { responseId: null },
    ],
  ])('%s', (_what, before, said, after) => {
    expect(applyReport(before, aReport(said), false)).toMatchObject(after);
  });

  test('shows nothing of a failure that follows its completion but that the badge is gone', () => {
    const before = aState({ backgroundTaskCount: 2, blockedOn: 'x' });
    const gaveUp = aReport({ status: 'failed', output: 'hook status idle rejected' });
    expect(applyReport(before, gaveUp, true)).toEqual({ ...before, backgroundTaskCount: 0 });
  });

  test('follows any other report after its completion as before it', () => {
    fc.assert(
      fc.property(state, report, (before, said) => {
        fc.pre(said.status !== 'failed');
        expect(applyReport(before, said, true)).toEqual(applyReport(before, said, false));
      }),
    );
  });

  test('is the same after the same report once more', () => {
    fc.assert(
      fc.property(state, report, fc.boolean(), (before, said, afterCompletion) => {
        const once = applyReport(before, said, afterCompletion);
        const twice = applyReport(once, said, afterCompletion);
        expect(sameState(once, twice)).toBe(true);
        expect(twice).toEqual(once);
      }),
    );
  });

  test('has failed until it runs or waits, however many idle reports trail', () => {
    fc.assert(
      fc.property(state, fc.array(report), (before, reports) => {
        let now: SessionState = { ...before, status: 'failed' };
        for (const said of reports.filter((one) => isTerminal(one.status))) {
          now = applyReport(now, said, false);
        }
        expect(now.status).toBe('failed');
      }),
    );
  });

  test('has an error with both its parts or with neither, and none while it runs', () => {
    fc.assert(
      fc.property(state, report, fc.boolean(), (before, said, afterCompletion) => {
        const after = applyReport(before, said, afterCompletion);
        expect(after.errorCode === null).toBe(after.errorMessage === null);
        if (said.status === 'running') expect(after.errorCode).toBeNull();
        if (after.errorMessage !== before.errorMessage && after.errorMessage !== null) {
          expect(isBlank(after.errorMessage)).toBe(false);
        }
      }),
    );
  });

  test('never has a badge below 0', () => {
    fc.assert(
      fc.property(state, fc.array(report), (before, reports) => {
        let now = before;
        for (const said of reports) now = applyReport(now, said, false);
        expect(now.backgroundTaskCount).toBeGreaterThanOrEqual(0);
      }),
    );
  });
});

describe('two states', () => {
  test.each<[keyof SessionState, Partial<SessionState>]>([
    ['status', { status: 'running' }],
    ['backgroundTaskCount', { backgroundTaskCount: 1 }],
    ['blockedOn', { blockedOn: 'x' }],
    ['errorCode', { errorCode: 'turn_error' }],
    ['errorMessage', { errorMessage: 'x' }],
    ['responseId', { responseId: 'r1' }],
  ])('differ by their %s', (_field, change) => {
    expect(sameState(aState(), aState())).toBe(true);
    expect(sameState(aState(), aState(change))).toBe(false);
  });
});
