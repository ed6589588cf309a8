import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  dueAfterFirstHeartbeat,
  firstDueAt,
  isLeaseOver,
  isProgress,
  judgeClocks,
  watch,
  type Beat,
  type Heartbeats,
  type Judgement,
  type LiveWork,
  type Watch,
} from '../../src/domain/liveness.ts';

const SECOND = 1_000;
const GAP = 10 * SECOND;
const STALL = { idleMs: 450 * SECOND, inToolMs: 1_200 * SECOND, graceMs: 120 * SECOND };

/** Seconds after the dispatch. */
const at = (seconds: number) => 1_000_000 + seconds * SECOND;

const work = (over: Partial<LiveWork> = {}): LiveWork => ({
  status: 'running',
  createdAt: at(0),
  deadlineMs: null,
  childTimeoutMs: null,
  stall: null,
  interruptedAt: null,
  graceMs: null,
  stalled: null,
  ...over,
});

const beats = (over: Partial<Heartbeats> = {}): Heartbeats => ({
  apiCalls: 3,
  currentTool: null,
  lastActivityAt: null,
  progressed: false,
  progressAt: at(0),
  ...over,
});

/** A service that has watched from before the dispatch, or since then. */
const seen = (uninterruptedSince: number, now: number): Watch => ({
  observedAt: now,
  uninterruptedSince,
  gapMs: GAP,
  clockWentBack: false,
});

/** What is decided that many seconds after the dispatch. */
function judged(entry: LiveWork, heartbeats: Heartbeats | null, seconds: number): Judgement {
  return judgeClocks(entry, heartbeats, seen(at(-1_000), at(seconds)), at(seconds));
}

describe('progress', () => {
  const beat: Beat = { apiCalls: 1, currentTool: 'bash', lastActivityAt: '2026-01-01T00:00:00Z' };

  it.each<[string, Partial<Beat>]>([
    ['another count of calls', { apiCalls: 2 }],
    ['a count that goes back', { apiCalls: 0 }],
    ['another tool', { currentTool: 'grep' }],
    ['the end of a tool', { currentTool: null }],
    ['later activity', { lastActivityAt: '2026-01-01T00:00:01Z' }],
    ['activity in another form', { lastActivityAt: 1 }],
  ])('is %s', (_, change) => {
    expect(isProgress(beat, { ...beat, ...change })).toBe(true);
    expect(isProgress({ ...beat, ...change }, beat)).toBe(true);
  });

  it('is not a beat that says the same', () => {
    expect(isProgress(beat, { ...beat })).toBe(false);
  });
});

describe('the watch', () => {
  it('begins with the first sweep', () => {
    expect(watch(null, at(5), GAP)).toEqual(seen(at(5), at(5)));
  });

  it('goes on while sweeps come in time, at the latest after the gap', () => {
    const former = { observedAt: at(5), uninterruptedSince: at(0) };
    expect(watch(former, at(15), GAP)).toEqual(seen(at(0), at(15)));
  });

  it('begins anew after a longer time without a sweep', () => {
    const former = { observedAt: at(5), uninterruptedSince: at(0) };
    expect(watch(former, at(15) + 1, GAP)).toEqual(seen(at(15) + 1, at(15) + 1));
  });

  it('begins anew when the clock has gone back, and says so', () => {
    const former = { observedAt: at(5_000), uninterruptedSince: at(0) };
    expect(watch(former, at(100), GAP)).toEqual({ ...seen(at(100), at(100)), clockWentBack: true });
  });

  it('bears replicas whose clocks differ by less than the gap', () => {
    let state: Watch = watch(null, at(0), GAP);
    for (let second = 1; second < 1_000; second += 1) {
      state = watch(state, at(second) + (second % 2 === 0 ? 9 * SECOND : 0), GAP);
    }
    expect(state.uninterruptedSince).toBe(at(0));
  });

  it('sees a clock that is put back in many small steps', () => {
    let state: Watch = watch(null, at(0), GAP);
    for (let step = 1; step <= 4; step += 1) state = watch(state, at(0) - step * 3 * SECOND, GAP);
    expect(state).toMatchObject({ uninterruptedSince: at(-12), clockWentBack: true });
  });
});

describe('a child that makes no progress', () => {
  it('stalls after the idle threshold, counted from its last progress', () => {
    const quiet = beats({ progressed: true, progressAt: at(100) });
    expect(judged(work({ stall: STALL }), quiet, 549.999)).toEqual({
      kind: 'wait',
      dueAt: at(550),
    });
    expect(judged(work({ stall: STALL }), quiet, 552)).toEqual({
      kind: 'stall',
      phase: 'idle',
      quietMs: 452 * SECOND,
      thresholdMs: 450 * SECOND,
      graceMs: 120 * SECOND,
      dueAt: at(672),
    });
  });

  it('stalls after the longer threshold while a tool is current', () => {
    const inTool = beats({ currentTool: 'bash' });
    expect(judged(work({ stall: STALL }), inTool, 1_199).kind).toBe('wait');
    expect(judged(work({ stall: STALL }), inTool, 1_200)).toMatchObject({
      kind: 'stall',
      phase: 'in_tool',
      thresholdMs: 1_200 * SECOND,
    });
  });

  it('is not stalled before its first heartbeat, however long that takes', () => {
    for (const status of ['launching', 'running'] as const) {
      const entry = work({ status, stall: STALL });
      expect(judged(entry, null, 1_000_000)).toEqual({ kind: 'wait', dueAt: null });
    }
  });

  it('stalls while it is still launching, once it has sent a heartbeat', () => {
    const entry = work({ status: 'launching', stall: STALL });
    const first = beats({ progressAt: at(1_000) });
    expect(judged(entry, first, 1_449).kind).toBe('wait');
    expect(judged(entry, first, 1_450).kind).toBe('stall');
  });

  it('never stalls where that is switched off', () => {
    expect(judged(work(), beats(), 1_000_000)).toEqual({ kind: 'wait', dueAt: null });
  });
});

describe('a child that is stalling', () => {
  const stalled = {
    phase: 'in_tool',
    quietMs: 1_201 * SECOND,
    thresholdMs: 1_200 * SECOND,
  } as const;
  const stalling = work({
    status: 'stalling',
    stall: STALL,
    interruptedAt: at(1_201),
    graceMs: 120 * SECOND,
    stalled,
  });

  it('has its grace, and then ends as stalled with the figures of the stall', () => {
    expect(judged(stalling, beats(), 1_320)).toEqual({ kind: 'wait', dueAt: at(1_321) });
    expect(judged(stalling, beats({ apiCalls: 7 }), 1_321)).toEqual({
      kind: 'end',
      as: 'stalled',
      ...stalled,
      graceMs: 120 * SECOND,
      apiCalls: 7,
    });
  });

  it('does not go back to running, whatever progress it makes', () => {
    const lively = beats({ progressed: true, progressAt: at(1_320) });
    expect(judged(stalling, lively, 1_320)).toEqual({ kind: 'wait', dueAt: at(1_321) });
    expect(judged(stalling, lively, 1_321)).toMatchObject({ kind: 'end', as: 'stalled' });
  });

  it('has made no calls if it never said how many', () => {
    expect(judged(stalling, beats({ apiCalls: null }), 1_321)).toMatchObject({ apiCalls: 0 });
  });

  it('is timed out all the same', () => {
    const entry = { ...stalling, childTimeoutMs: 1_250 * SECOND };
    expect(judged(entry, beats(), 1_250)).toMatchObject({ as: 'timeout', cause: 'child_timeout' });
    const due = { ...stalling, deadlineMs: 1_260 * SECOND };
    expect(judged(due, beats(), 1_260)).toMatchObject({ as: 'timeout', cause: 'deadline' });
  });

  it('that does not say how it stalled is a defect', () => {
    expect(() => judged({ ...stalling, stalled: null }, null, 1)).toThrow('stalling');
    expect(() => judged({ ...stalling, graceMs: null }, null, 1)).toThrow('grace');
  });
});

describe('the time-out of a child', () => {
  const entry = work({ childTimeoutMs: 60 * SECOND });
  const timeout = { kind: 'end', as: 'timeout', cause: 'child_timeout', timeoutMs: 60 * SECOND };

  it('runs from the dispatch, for a child that never sent a heartbeat', () => {
    expect(judged(entry, null, 59)).toEqual({ kind: 'wait', dueAt: at(60) });
    expect(judged(entry, null, 60)).toEqual(timeout);
  });

  it('runs from the dispatch, for a child whose beats all said the same', () => {
    expect(judged(entry, beats({ progressAt: at(30) }), 60)).toEqual(timeout);
  });

  it('begins anew with progress', () => {
    const lively = beats({ progressed: true, progressAt: at(50) });
    expect(judged(entry, lively, 109)).toEqual({ kind: 'wait', dueAt: at(110) });
    expect(judged(entry, lively, 110)).toEqual(timeout);
  });

  it('comes at once, before a stall that is due at the same time', () => {
    const both = { ...entry, stall: { idleMs: 60 * SECOND, inToolMs: 1, graceMs: 5 } };
    expect(judged(both, beats(), 61)).toEqual(timeout);
  });

  it('does not take the grace from work that is cancelled', () => {
    const cancelling = work({
      status: 'cancelling',
      childTimeoutMs: 60 * SECOND,
      interruptedAt: at(59),
      graceMs: 10 * SECOND,
    });
    expect(judged(cancelling, null, 68)).toEqual({ kind: 'wait', dueAt: at(69) });
  });
});

describe('the deadline', () => {
  it.each<[string, Partial<LiveWork>]>([
    ['launching', { status: 'launching' }],
    ['running', { status: 'running', childTimeoutMs: 1_000 * SECOND, stall: STALL }],
    ['cancelling', { status: 'cancelling', interruptedAt: at(95), graceMs: 10 * SECOND }],
    [
      'stalling',
      {
        status: 'stalling',
        interruptedAt: at(95),
        graceMs: 10 * SECOND,
        stalled: { phase: 'idle', quietMs: 1, thresholdMs: 1 },
      },
    ],
  ])('ends work that is %s, whatever happens', (_, over) => {
    const entry = work({ deadlineMs: 100 * SECOND, ...over });
    const lively = beats({ progressed: true, progressAt: at(99.9) });
    expect(judged(entry, lively, 99.9)).toEqual({ kind: 'wait', dueAt: at(100) });
    expect(judged(entry, lively, 100)).toEqual({
      kind: 'end',
      as: 'timeout',
      cause: 'deadline',
      timeoutMs: 100 * SECOND,
    });
  });
});

describe('work that is cancelled', () => {
  const cancelling = work({ status: 'cancelling', interruptedAt: at(5), graceMs: 10 * SECOND });

  it('ends as cancelled after its grace', () => {
    expect(judged(cancelling, null, 14)).toEqual({ kind: 'wait', dueAt: at(15) });
    const end = { kind: 'end', as: 'cancelled', graceMs: 10 * SECOND };
    expect(judged(cancelling, null, 15)).toEqual(end);
  });

  it('does not stall meanwhile', () => {
    const entry = { ...cancelling, stall: { idleMs: 1, inToolMs: 1, graceMs: 1 } };
    expect(judged(entry, beats(), 14).kind).toBe('wait');
  });

  it('ends by the clock that ran out first, even if the sweep is late', () => {
    const entry = { ...cancelling, deadlineMs: 20 * SECOND };
    expect(judged(entry, null, 30)).toMatchObject({ as: 'cancelled' });
    expect(judged({ ...entry, deadlineMs: 14 * SECOND }, null, 30)).toMatchObject({
      as: 'timeout',
    });
  });

  it('ends at once without a grace', () => {
    expect(judged({ ...cancelling, graceMs: 0 }, null, 5)).toMatchObject({ as: 'cancelled' });
  });
});

describe('a clock whose start lies ahead', () => {
  const entry = work({ stall: STALL });
  const ahead = (byMs: number) =>
    judgeClocks(entry, beats({ progressAt: at(0) + byMs }), seen(at(-400), at(0)), at(0));

  it('has just begun if another replica may have written it', () => {
    for (const byMs of [0, 1, GAP, 2 * GAP]) {
      expect(ahead(byMs)).toEqual({ kind: 'wait', dueAt: at(450) });
    }
  });

  it('began with the watch if it lies so far ahead that the clock was put back', () => {
    expect(ahead(2 * GAP + 1)).toEqual({ kind: 'wait', dueAt: at(50) });
  });
});

describe('the bound', () => {
  it('of a dispatch is the first of its time-outs, if it has any', () => {
    expect(firstDueAt(work({ stall: STALL }))).toBeNull();
    expect(firstDueAt(work({ deadlineMs: 90 * SECOND }))).toBe(at(90));
    const both = work({ deadlineMs: 90 * SECOND, childTimeoutMs: 60 * SECOND });
    expect(firstDueAt(both)).toBe(at(60));
  });

  it('of an interrupt is the end of its grace', () => {
    const entry = { status: 'cancelling', interruptedAt: at(20), graceMs: 10 * SECOND } as const;
    expect(firstDueAt(work({ ...entry, deadlineMs: 90 * SECOND }))).toBe(at(30));
  });

  it('of the first heartbeat is the shorter threshold from then', () => {
    expect(dueAfterFirstHeartbeat(work({ stall: STALL }), at(50))).toBe(at(500));
    expect(dueAfterFirstHeartbeat(work(), at(50))).toBeNull();
    const entry = work({ stall: STALL, deadlineMs: 400 * SECOND });
    expect(dueAfterFirstHeartbeat(entry, at(50))).toBe(at(400));
  });

  it('foresees that a tool may end at once', () => {
    const inTool = beats({ currentTool: 'bash' });
    expect(judged(work({ stall: STALL }), inTool, 0)).toEqual({ kind: 'wait', dueAt: at(450) });
    expect(judged(work({ stall: STALL }), inTool, 1_000)).toEqual({
      kind: 'wait',
      dueAt: at(1_200),
    });
  });

  it('of a stall is the end of its grace, or of a clock that runs out before', () => {
    const entry = work({ stall: STALL, childTimeoutMs: 500 * SECOND });
    expect(judged(entry, beats(), 450)).toMatchObject({ kind: 'stall', dueAt: at(500) });
  });
});

describe('a runner that does not renew its lease', () => {
  const lease = { renewedAt: at(0), leaseMs: 60 * SECOND };

  it('has lost it when the lease has run out', () => {
    expect(isLeaseOver(lease, seen(at(-1), at(59.9)), at(59.9))).toBe(false);
    expect(isLeaseOver(lease, seen(at(-1), at(60)), at(60))).toBe(true);
  });

  it('has a whole lease again after an interruption of the service', () => {
    expect(isLeaseOver(lease, seen(at(5_000), at(5_059)), at(5_059))).toBe(false);
    expect(isLeaseOver(lease, seen(at(5_000), at(5_060)), at(5_060))).toBe(true);
  });

  it('has not lost it to a replica whose clock is behind', () => {
    const renewedAhead = { renewedAt: at(0) + 5, leaseMs: 60 * SECOND };
    expect(isLeaseOver(renewedAhead, seen(at(-90_000), at(0)), at(0))).toBe(false);
  });
});

/*
 * A service, a child and a clock, in time steps of one. What is stored is what the store would hold,
 * and a sweep does what the sweep would do: it looks at nothing that is not due.
 */

const gap = 10;

interface Settings {
  deadlineMs: number | null;
  childTimeoutMs: number | null;
  stall: LiveWork['stall'];
}

type Act = Exclude<Judgement, { kind: 'wait' }>;

function world(settings: Settings) {
  let trueNow = 0;
  let offset = 1_000_000;
  const clock = () => trueNow + offset;
  let entry: LiveWork = work({ ...settings, status: 'launching', createdAt: clock() });
  let heartbeats: Heartbeats | null = null;
  let stored: Watch = watch(null, clock(), gap);
  let dueAt = firstDueAt(entry);
  /** When, in truth, the clocks of the entry began. */
  const began = { dispatch: 0, progress: 0, interrupt: 0 };
  let sweptAt = 0;
  let hasChanged = false;
  const acts: { at: number; judgement: Act }[] = [];
  const hasEnded = () => acts.at(-1)?.judgement.kind === 'end';

  function least(bound: number | null) {
    if (bound !== null) dueAt = Math.min(dueAt ?? Infinity, bound);
  }

  return {
    acts,
    began,
    hasEnded,
    get trueNow() {
      return trueNow;
    },
    get entry() {
      return entry;
    },
    get heartbeats() {
      return heartbeats;
    },
    get hasChanged() {
      return hasChanged;
    },
    pass() {
      trueNow += 1;
    },
    jump(by: number) {
      offset += by;
    },
    beat(beat: Beat) {
      if (heartbeats === null) {
        heartbeats = { ...beat, progressed: false, progressAt: clock() };
        began.progress = trueNow;
        least(dueAfterFirstHeartbeat(entry, clock()));
        return;
      }
      if (!isProgress(heartbeats, beat)) return;
      heartbeats = { ...beat, progressed: true, progressAt: clock() };
      hasChanged = true;
      began.progress = trueNow;
    },
    interrupt(graceMs: number) {
      if (entry.status === 'cancelling' || hasEnded()) return;
      entry = { ...entry, status: 'cancelling', interruptedAt: clock(), graceMs, stalled: null };
      began.interrupt = trueNow;
      least(firstDueAt(entry));
    },
    get sweptAt() {
      return sweptAt;
    },
    /** What is to be done, whether the bound says so or not; null: nothing. */
    verdict(): Act | null {
      const now = clock();
      if (hasEnded()) return null;
      const judgement = judgeClocks(entry, heartbeats, watch(stored, now, gap), now);
      return judgement.kind === 'wait' ? null : judgement;
    },
    isDue: () => dueAt !== null && dueAt <= clock(),
    sweep() {
      const now = clock();
      sweptAt = trueNow;
      stored = watch(stored, now, gap);
      if (stored.clockWentBack && dueAt !== null) dueAt = Math.min(dueAt, now);
      if (hasEnded() || dueAt === null || dueAt > now) return;
      const judgement = judgeClocks(entry, heartbeats, stored, now);
      if (judgement.kind === 'wait') {
        expect(judgement.dueAt === null || judgement.dueAt > now).toBe(true);
        dueAt = judgement.dueAt;
        return;
      }
      acts.push({ at: trueNow, judgement });
      if (judgement.kind === 'end') return;
      const { phase, quietMs, thresholdMs, graceMs } = judgement;
      const stalled = { phase, quietMs, thresholdMs };
      entry = { ...entry, status: 'stalling', interruptedAt: now, graceMs, stalled };
      began.interrupt = trueNow;
      dueAt = judgement.dueAt;
    },
  };
}

type World = ReturnType<typeof world>;

/** How long the clock that acted should have run, and since when, in truth, it did. */
function clockOf(w: World, judgement: Act) {
  if (judgement.kind === 'stall') return { since: w.began.progress, ms: judgement.thresholdMs };
  switch (judgement.as) {
    case 'timeout': {
      const isRestarted = judgement.cause === 'child_timeout' && w.hasChanged;
      return { since: isRestarted ? w.began.progress : 0, ms: judgement.timeoutMs };
    }
    case 'stalled':
    case 'cancelled':
      return { since: w.began.interrupt, ms: judgement.graceMs };
  }
}

const durations = fc.integer({ min: 1, max: 400 });
const settings: fc.Arbitrary<Settings> = fc.record({
  deadlineMs: fc.option(fc.integer({ min: 1, max: 1_500 })),
  childTimeoutMs: fc.option(durations),
  stall: fc.option(fc.record({ idleMs: durations, inToolMs: durations, graceMs: fc.nat(100) })),
});

const beat: fc.Arbitrary<Beat> = fc.record({
  apiCalls: fc.nat(2),
  currentTool: fc.constantFrom(null, 'bash'),
  lastActivityAt: fc.constantFrom(null, 1),
});

const rarely = <Value>(oneIn: number, arbitrary: fc.Arbitrary<Value>) =>
  fc.oneof({ weight: oneIn - 1, arbitrary: fc.constant(null) }, { weight: 1, arbitrary });

/** What happens with each step of time: a beat, perhaps, and a sweep, unless it is late. */
const steps = fc.array(
  fc.record({
    beat: rarely(2, beat),
    interrupt: rarely(500, fc.nat(100)),
    sweeps: fc.boolean(),
  }),
  { minLength: 1, maxLength: 60 },
);

type Steps = (typeof steps extends fc.Arbitrary<infer Value> ? Value : never)[number][];

/** The same, with a child of which nothing is heard. */
function silent(script: Steps): Steps {
  return script.map(({ sweeps }) => ({ sweeps, beat: null, interrupt: null }));
}

/** Time passes in service; a sweep comes at least every gap. */
function serve(w: World, script: Steps, length: number, each: () => void = () => {}) {
  for (let i = 0; i < length; i += 1) {
    const step = script[i % script.length];
    if (step === undefined) return;
    w.pass();
    if (step.beat) w.beat(step.beat);
    if (step.interrupt !== null && i < script.length) w.interrupt(step.interrupt);
    if (step.sweeps || w.trueNow - w.sweptAt >= gap - 1) w.sweep();
    each();
  }
}

describe('whatever happens, and however the sweeps fall,', () => {
  it('a child that makes progress is never stalled', () => {
    const event = fc.oneof(
      fc.record({ pause: fc.integer({ min: 1, max: 3_000 }) }),
      fc.record({ jump: fc.integer({ min: -3_000, max: 3_000 }) }),
    );
    const progressEvery = 30;
    const stall = { idleMs: 100, inToolMs: 100, graceMs: 50 };
    const property = fc.property(
      fc.array(fc.record({ event, steps, serves: fc.integer({ min: 1, max: 300 }) }), {
        maxLength: 6,
      }),
      (script) => {
        const w = world({ deadlineMs: null, childTimeoutMs: null, stall });
        let calls = 0;
        const progress = () => {
          if (w.trueNow - w.began.progress >= progressEvery || w.heartbeats === null) {
            w.beat({ apiCalls: (calls += 1), currentTool: null, lastActivityAt: null });
          }
        };
        progress();
        for (const { event: each, steps: sweeps, serves } of script) {
          if ('jump' in each) w.jump(each.jump);
          else for (let i = 0; i < each.pause; i += 1) w.pass();
          serve(w, silent(sweeps), serves, progress);
        }
        expect(w.acts).toEqual([]);
      },
    );
    fc.assert(property, { numRuns: 300 });
  });

  it('nothing outlives a clock by more than one sweep while the service watches', () => {
    const property = fc.property(settings, steps, steps, (chosen, script, rest) => {
      const w = world(chosen);
      const overdue = () => {
        if (w.hasEnded()) return;
        const { entry, heartbeats, trueNow, began } = w;
        const isAsked = entry.status === 'cancelling' || entry.status === 'stalling';
        const clocks = [
          entry.deadlineMs,
          isAsked && entry.graceMs !== null ? began.interrupt + entry.graceMs : null,
          entry.childTimeoutMs !== null && entry.status !== 'cancelling'
            ? (w.hasChanged ? began.progress : 0) + entry.childTimeoutMs
            : null,
          entry.stall && heartbeats && !isAsked
            ? began.progress +
              (heartbeats.currentTool === null ? entry.stall.idleMs : entry.stall.inToolMs)
            : null,
        ];
        for (const end of clocks) {
          if (end !== null) expect(trueNow).toBeLessThan(end + gap);
        }
      };
      serve(w, script, script.length * 5, overdue);
      serve(w, silent(rest), 2_500, overdue);
      const { deadlineMs, childTimeoutMs, stall } = chosen;
      const mustEnd =
        deadlineMs !== null ||
        w.entry.status === 'cancelling' ||
        childTimeoutMs !== null ||
        (stall !== null && w.heartbeats !== null);
      expect(w.hasEnded()).toBe(mustEnd);
    });
    fc.assert(property, { numRuns: 150 });
  });

  it('an outage or a step of the clock ends nothing before a full threshold of service after it', () => {
    const long = fc.integer({ min: 2 * gap + 1, max: 5_000 });
    const interruption = fc.oneof(
      fc.record({ kind: fc.constantFrom('outage', 'forward', 'back'), length: long }),
    );
    const property = fc.property(
      settings,
      fc.array(fc.record({ interruption, steps, serves: fc.integer({ min: gap, max: 700 }) }), {
        minLength: 1,
        maxLength: 5,
      }),
      (chosen, script) => {
        const w = world(chosen);
        let interruptedUntil = 0;
        let judgedActs = 0;
        const check = () => {
          for (const act of w.acts.slice(judgedActs)) {
            const { since, ms } = clockOf(w, act.judgement);
            expect(act.at - Math.max(since, interruptedUntil)).toBeGreaterThanOrEqual(ms);
          }
          judgedActs = w.acts.length;
        };
        for (const each of script) {
          serve(w, each.steps, each.serves, check);
          const { kind, length } = each.interruption;
          if (kind === 'outage') for (let i = 0; i < length; i += 1) w.pass();
          else w.jump(kind === 'forward' ? length : -length);
          interruptedUntil = w.trueNow;
        }
        serve(w, silent(script.flatMap(({ steps: some }) => some)), 1_000, check);
      },
    );
    fc.assert(property, { numRuns: 300 });
  });

  it('a clock that is put back does not keep a silent child alive', () => {
    const step = fc.integer({ min: 3_000, max: 5_000 });
    const property = fc.property(settings, steps, step, fc.nat(500), (chosen, script, by, when) => {
      const w = world({ ...chosen, childTimeoutMs: chosen.childTimeoutMs ?? 400 });
      serve(w, script, when);
      w.jump(-by);
      serve(w, silent(script), 400 + 100 + 3 * gap);
      expect(w.hasEnded()).toBe(true);
    });
    fc.assert(property, { numRuns: 150 });
  });

  it('a step too small to be seen takes no more from a clock than the gap', () => {
    const property = fc.property(
      settings,
      steps,
      fc.integer({ min: -2 * gap, max: gap }),
      fc.nat(300),
      (chosen, script, step, when) => {
        const w = world(chosen);
        const check = () => {
          const verdict = w.verdict();
          if (verdict === null) return;
          const { since, ms } = clockOf(w, verdict);
          expect(w.trueNow - since).toBeGreaterThanOrEqual(ms - gap);
        };
        serve(w, script, when, check);
        w.jump(step);
        check();
        serve(w, script, 1_000, check);
      },
    );
    fc.assert(property, { numRuns: 300 });
  });

  it('nothing is ever to be done before its bound', () => {
    const property = fc.property(
      settings,
      fc.array(
        fc.record({ steps, serves: fc.nat(200), silence: fc.nat(400), outage: fc.nat(200) }),
        {
          minLength: 1,
          maxLength: 4,
        },
      ),
      (chosen, script) => {
        const w = world(chosen);
        const check = () => {
          if (w.verdict()) expect(w.isDue()).toBe(true);
        };
        for (const each of script) {
          serve(w, each.steps, each.serves, check);
          serve(w, silent(each.steps), each.silence, check);
          for (let i = 0; i < each.outage; i += 1) w.pass();
          check();
        }
        serve(w, silent(script.flatMap(({ steps: some }) => some)), 500, check);
      },
    );
    fc.assert(property, { numRuns: 300 });
  });
});
