import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { wakeNotice, type WakeSubject } from '../../src/domain/notice.ts';
import {
  afterTry,
  isRetryable,
  LONGEST_REPEAT_MS,
  NEVER_WOKEN,
  retryDelayMs,
  stepWake,
  WEBHOOK_TRIES,
  type WakeEvent,
  type WakeState,
  type WebhookTry,
} from '../../src/domain/wake.ts';

const MINUTE = 60_000;

interface Item {
  seq: number;
  subject: WakeSubject;
  asksForWake: boolean;
  leasedUntil: number | null;
}

/** A parent with its inbox, which tells the machine what an operation would tell it. */
function parent() {
  let state: WakeState = NEVER_WOKEN;
  let items: Item[] = [];
  let turnRuns = false;
  let now = 1_000;
  let made = 0;
  /** The place of what happened last. */
  let seq = 0;
  const announced: string[] = [];

  function inbox() {
    const asking = items.filter((item) => item.asksForWake);
    const leases = asking.map((item) => item.leasedUntil).filter((at) => at !== null && at > now);
    const unread = asking.filter((item) => item.leasedUntil === null || item.leasedUntil <= now);
    return {
      pending: items.length,
      newest: asking.at(-1) ?? null,
      unread: unread.at(-1)?.subject ?? null,
      leasedUntil: leases.length === 0 ? null : Math.min(...leases.map(Number)),
    };
  }

  function tell(event: WakeEvent): string | null {
    const step = stepWake(state, event);
    state = step.state;
    if (step.announce) announced.push(step.announce.notice);
    return step.announce?.notice ?? null;
  }

  return {
    get state() {
      return state;
    },
    get now() {
      return now;
    },
    get turnRuns() {
      return turnRuns;
    },
    announced,
    inbox,
    tell,
    isSomethingLeft: () => items.some((item) => item.asksForWake),
    complete(
      title = `task ${(made += 1)}`,
      over: { disposition?: 'note' | 'turn'; wakes?: boolean } = {},
    ) {
      const { disposition = 'turn', wakes = true } = over;
      const subject: WakeSubject = { kind: 'sub_agent', agent: 'a', title, status: 'completed' };
      const asksForWake = disposition === 'turn' && wakes;
      items.push({ seq: (seq += 1), subject, asksForWake, leasedUntil: null });
      const pending = items.length;
      return tell({ kind: 'delivered', seq, subject, disposition, wakes, pending, now });
    },
    start(at = (seq += 1)) {
      turnRuns = true;
      return tell({ kind: 'turn_started', seq: at, inbox: inbox(), now });
    },
    idle(at = (seq += 1)) {
      turnRuns = false;
      return tell({ kind: 'went_idle', seq: at, inbox: inbox(), now });
    },
    read(leaseMs: number, count = items.length) {
      for (const item of items.slice(0, count)) item.leasedUntil = now + leaseMs;
    },
    release() {
      for (const item of items) item.leasedUntil = null;
      return tell({ kind: 'released', turnRuns, now });
    },
    ack(count = items.length) {
      items = items.slice(count);
      return items.length === 0 ? tell({ kind: 'inbox_emptied', inbox: inbox(), now }) : null;
    },
    fail: (number = state.announcements) => tell({ kind: 'announcement_failed', number }),
    /** Time passes, with a timer that is on time. */
    pass(ms: number) {
      const until = now + ms;
      while (state.repeatAt !== null && state.repeatAt <= until) {
        now = Math.max(now, state.repeatAt);
        tell({ kind: 'repeat_due', inbox: inbox(), turnRuns, now });
      }
      now = until;
    },
  };
}

const told = (title: string, pending: number) =>
  wakeNotice({ kind: 'sub_agent', agent: 'a', title, status: 'completed' }, pending);

describe('a completion', () => {
  it('wakes the parent with a notice that counts what is in the inbox', () => {
    expect(parent().complete('one')).toBe(told('one', 1));
  });

  it('is coalesced while a wake is pending', () => {
    const p = parent();
    p.complete('one');
    expect([p.complete('two'), p.complete('three')]).toEqual([null, null]);
    expect(p.announced).toEqual([told('one', 1)]);
  });

  it('wakes again while a turn runs, which has cleared the pending wake', () => {
    const p = parent();
    p.complete('one');
    p.start();
    expect(p.complete('two')).toBe(told('two', 2));
    expect(p.complete('three')).toBeNull();
  });

  it('that is a note is never announced, and leaves no trace', () => {
    const p = parent();
    expect(p.complete('one', { disposition: 'note' })).toBeNull();
    expect(p.state).toBe(NEVER_WOKEN);
    expect(p.idle()).toBeNull();
    p.pass(24 * LONGEST_REPEAT_MS);
    expect(p.announced).toEqual([]);
  });

  it('of a delegation without a wake is never announced', () => {
    const p = parent();
    expect(p.complete('one', { wakes: false })).toBeNull();
    expect(p.idle()).toBeNull();
    expect(p.state).toEqual(NEVER_WOKEN);
  });

  it('counts notes that wait as well', () => {
    const p = parent();
    p.complete('note', { disposition: 'note' });
    expect(p.complete('two')).toBe(told('two', 2));
  });
});

describe('a parent that goes idle', () => {
  it('follows the known sequence: notice, coalesced, one re-wake, none, notice, and again', () => {
    const p = parent();
    expect(p.complete('one')).toBe(told('one', 1));
    expect(p.complete('two')).toBeNull();
    expect(p.idle()).toBe(told('two', 2));
    expect(p.idle()).toBeNull();
    expect(p.complete('three')).toBe(told('three', 3));
    p.ack();
    expect(p.complete('one')).toBe(told('one', 1));
  });

  it('is not stranded by a turn that did not read, and not woken over and over at once', () => {
    const p = parent();
    p.complete('one');
    p.complete('two');
    p.start();
    expect(p.idle()).toBe(told('two', 2));
    p.start();
    expect(p.idle()).toBeNull();
    p.start();
    expect(p.idle()).toBeNull();
    p.pass(MINUTE);
    expect(p.announced).toEqual([told('one', 1), told('two', 2), told('two', 2)]);
  });

  it('is not told again what it was told, until its inbox was empty', () => {
    const p = parent();
    p.complete('one');
    p.start();
    expect(p.idle()).toBeNull();
    p.ack();
    p.start();
    p.complete('one');
    p.start();
    expect(p.announced).toEqual([told('one', 1), told('one', 1)]);
  });

  it('with an empty inbox is told nothing, and forgets', () => {
    const p = parent();
    p.complete('one');
    p.start();
    p.ack();
    expect(p.idle()).toBeNull();
    expect(p.state).toEqual({ ...NEVER_WOKEN, announcements: 1, asOf: 2 });
  });

  it('is not told of items that somebody holds, but is once their lease has run out', () => {
    const p = parent();
    p.complete('one');
    p.start();
    p.complete('two');
    p.read(5 * MINUTE);
    expect(p.idle()).toBeNull();
    p.pass(5 * MINUTE - 1);
    expect(p.announced).toHaveLength(2);
    p.pass(1);
    expect(p.announced.at(-1)).toBe(told('two', 2));
    expect(p.announced).toHaveLength(3);
  });

  it('names the newest item that nobody holds, and counts all', () => {
    const p = parent();
    p.complete('one');
    p.complete('two');
    p.complete('three');
    p.read(MINUTE, 1);
    p.start();
    expect(p.idle()).toBe(told('three', 3));
  });
});

describe('a wake that is not followed', () => {
  it('is repeated after a minute, then ever more slowly, up to every hour', () => {
    const p = parent();
    p.complete('one');
    const at: number[] = [];
    for (let minute = 1; minute <= 300; minute += 1) {
      const before = p.announced.length;
      p.pass(MINUTE);
      if (p.announced.length > before) at.push(minute);
    }
    expect(at).toEqual([1, 3, 7, 15, 31, 63, 123, 183, 243]);
  });

  it('is not repeated while a turn runs', () => {
    const p = parent();
    p.complete('one');
    p.start();
    p.pass(24 * LONGEST_REPEAT_MS);
    expect(p.announced).toHaveLength(1);
  });

  it('is repeated only a delay after a turn that outlasts it', () => {
    const p = parent();
    p.complete('one');
    p.start();
    p.pass(10 * MINUTE);
    p.idle();
    p.pass(MINUTE - 1);
    expect(p.announced).toHaveLength(1);
    p.pass(1);
    expect(p.announced).toHaveLength(2);
  });

  it('is not put off by short turns', () => {
    const p = parent();
    p.complete('one');
    for (let second = 0; second < 60; second += 1) {
      p.start();
      p.idle();
      p.pass(1_000);
    }
    expect(p.announced).toHaveLength(2);
  });

  it('is repeated more and more slowly even if each wake is followed by a turn that does not read', () => {
    const p = parent();
    p.complete('one');
    for (let minute = 0; minute < 24 * 60; minute += 1) {
      p.start();
      p.idle();
      p.pass(MINUTE);
    }
    expect(p.announced.length).toBeLessThan(60);
    expect(p.announced.length).toBeGreaterThan(20);
  });

  it('does not make a new completion wait for the long delay', () => {
    const p = parent();
    p.complete('one');
    p.pass(10 * LONGEST_REPEAT_MS);
    const before = p.announced.length;
    expect(p.complete('two')).toBeNull();
    p.pass(MINUTE);
    expect(p.announced.slice(before)).toEqual([told('two', 2)]);
  });

  it('is repeated for a reader that died with its leases', () => {
    const p = parent();
    p.complete('one');
    p.pass(10_000);
    p.read(MINUTE);
    p.pass(MINUTE - 1);
    expect(p.announced).toHaveLength(1);
    p.pass(1);
    expect(p.announced).toHaveLength(2);
  });

  it('is repeated for what a reader gives back long before its lease ends', () => {
    const p = parent();
    p.complete('one');
    p.read(LONGEST_REPEAT_MS);
    p.pass(MINUTE);
    p.release();
    p.pass(MINUTE - 1);
    expect(p.announced).toHaveLength(1);
    p.pass(1);
    expect(p.announced).toHaveLength(2);
  });

  it('ends with an empty inbox', () => {
    const p = parent();
    p.complete('one');
    p.ack();
    p.pass(24 * LONGEST_REPEAT_MS);
    expect(p.announced).toHaveLength(1);
  });

  it('is not repeated before its time, whoever asks', () => {
    const p = parent();
    p.complete('one');
    const early = { kind: 'repeat_due', inbox: p.inbox(), turnRuns: false, now: p.now } as const;
    expect(stepWake(p.state, early)).toMatchObject({ state: p.state, announce: null });
  });
});

describe('an announcement that has failed for good', () => {
  it('clears the flag and keeps the item: the next completion wakes', () => {
    const p = parent();
    p.complete('one');
    p.fail();
    expect(p.complete('two')).toBe(told('two', 2));
  });

  it('is not made again when the parent goes idle, until its inbox was empty', () => {
    const p = parent();
    p.complete('one');
    p.fail();
    expect([p.idle(), p.idle()]).toEqual([null, null]);
    p.ack();
    expect(p.complete('one')).toBe(told('one', 1));
  });

  it('is repeated all the same', () => {
    const p = parent();
    p.complete('one');
    p.fail();
    p.pass(MINUTE);
    expect(p.announced).toHaveLength(2);
  });

  it('leaves the announcement alone that came after it', () => {
    const p = parent();
    p.complete('one');
    p.start();
    p.complete('two');
    p.fail(1);
    expect(p.complete('three')).toBeNull();
  });
});

/** A parent that has been told of the first of these, at the places 1, 2, … */
function toldOf(...titles: string[]) {
  const p = parent();
  for (const title of titles) p.complete(title);
  return p;
}

describe('what is heard of late', () => {
  it('the start of a turn tells of what has come since and was coalesced', () => {
    const p = toldOf('one', 'two');
    expect(p.start(1.5)).toBe(told('two', 2));
    expect(p.complete('three')).toBeNull();
  });

  it('… not of what came before it', () => {
    const p = toldOf('one', 'two');
    expect(p.start(2.5)).toBeNull();
    expect(p.complete('three')).toBe(told('three', 3));
  });

  it('the start of a turn leaves the wake alone that came after it', () => {
    const p = toldOf('one');
    p.start(1.5);
    p.complete('two');
    const stale = { kind: 'turn_started', seq: 1.7, inbox: p.inbox(), now: p.now } as const;
    expect(stepWake(p.state, stale)).toEqual({ state: p.state, announce: null, withdraws: false });
  });

  it('the end of a turn tells nothing that is told already', () => {
    const p = toldOf('one');
    p.start(1.5);
    p.complete('two');
    expect(p.idle(1.7)).toBeNull();
    expect(p.complete('three')).toBeNull();
  });

  it('an empty inbox tells of what has come since and was coalesced, once', () => {
    const p = toldOf('one', 'two');
    const emptied = { kind: 'inbox_emptied', inbox: { ...p.inbox(), pending: 1 } } as const;
    expect(p.tell({ ...emptied, now: p.now })).toBe(told('two', 1));
    expect(p.tell({ ...emptied, now: p.now })).toBeNull();
    expect(p.complete('three')).toBeNull();
  });
});

describe('the state', () => {
  it('is the same object if nothing changes, so that a running parent writes nothing', () => {
    const p = parent();
    p.complete('one');
    p.start();
    const before = p.state;
    p.start();
    expect(p.state).toBe(before);
    p.idle();
    const idle = p.state;
    p.idle();
    expect(p.state).toBe(idle);
  });

  it('keeps these promises whatever happens', () => {
    const action = fc.oneof(
      fc.constantFrom('complete', 'note', 'unwoken', 'start', 'idle', 'ack', 'ack one', 'release'),
      fc.constantFrom('fail', 'stale fail'),
      fc.record({ lease: fc.integer({ min: 1, max: 10 * MINUTE }), count: fc.nat(3) }),
      fc.record({ pass: fc.integer({ min: 1, max: 3 * LONGEST_REPEAT_MS }) }),
    );
    fc.assert(
      fc.property(fc.array(action, { maxLength: 60 }), (actions) => {
        const p = parent();
        for (const each of actions) {
          const before = p.state;
          const announcedBefore = p.announced.length;
          if (typeof each === 'object') {
            if ('pass' in each) p.pass(each.pass);
            else p.read(each.lease, each.count);
          } else if (each === 'complete') p.complete();
          else if (each === 'note') p.complete('n', { disposition: 'note' });
          else if (each === 'unwoken') p.complete('u', { wakes: false });
          else if (each === 'start') p.start();
          else if (each === 'idle') p.idle();
          else if (each === 'ack') p.ack();
          else if (each === 'ack one') p.ack(1);
          else if (each === 'release') p.release();
          else p.fail(each === 'fail' ? before.announcements : before.announcements - 1);

          const announced = p.announced.slice(announcedBefore);
          // One wake is pending at a time.
          if (each === 'complete') expect(announced.length).toBe(before.pending ? 0 : 1);
          // Going idle repeats nothing that was told.
          if (each === 'idle') expect(announced).not.toContain(before.lastNotice);
          // Nothing that asks for a wake is stranded.
          if (p.isSomethingLeft() && !p.turnRuns) expect(p.state.repeatAt).not.toBeNull();
          // The number never goes back, and counts.
          expect(p.state.announcements).toBe(p.announced.length);
          // A parent with a turn is not told by the clock.
          if (typeof each === 'object' && p.turnRuns) expect(announced).toEqual([]);
          if (p.inbox().pending === 0 && each === 'ack') expect(p.state.pending).toBe(false);
        }
      }),
      { numRuns: 500 },
    );
  });
});

const attempt = (over: Partial<WebhookTry>): WebhookTry => ({
  tries: 1,
  status: 202,
  retryAfterMs: null,
  withCreatedBy: false,
  ...over,
});

describe('a webhook', () => {
  it.each([
    [null, true],
    [500, true],
    [502, true],
    [503, true],
    [504, true],
    [599, true],
    [408, true],
    [409, true],
    [425, true],
    [429, true],
    [400, false],
    [401, false],
    [403, false],
    [404, false],
    [410, false],
    [413, false],
    [422, false],
    [301, false],
    [302, false],
    [307, false],
    [308, false],
    [101, false],
    [600, false],
  ])('that answers %s is tried again: %s', (status, again) => {
    expect(isRetryable(status)).toBe(again);
    const after = afterTry(attempt({ status }));
    expect(after.kind === 'retry').toBe(again);
  });

  it.each([200, 201, 202, 204])('that answers %i has it', (status) => {
    expect(afterTry(attempt({ status, tries: WEBHOOK_TRIES }))).toEqual({ kind: 'delivered' });
  });

  it('is tried four times, after half a second, one and two', () => {
    const delays = [1, 2, 3, 4].map((tries) => afterTry(attempt({ status: 503, tries })));
    expect(delays).toEqual([
      { kind: 'retry', delayMs: 500, withCreatedBy: false },
      { kind: 'retry', delayMs: 1_000, withCreatedBy: false },
      { kind: 'retry', delayMs: 2_000, withCreatedBy: false },
      { kind: 'give_up' },
    ]);
  });

  it('waits no longer than four seconds by itself', () => {
    expect([4, 5, 50, 5_000].map((tries) => retryDelayMs(tries))).toEqual([
      4_000, 4_000, 4_000, 4_000,
    ]);
  });

  it('is given the time it asks for, within bounds, and never less than its own', () => {
    expect(retryDelayMs(1, 7_000)).toBe(7_000);
    expect(retryDelayMs(3, 1_000)).toBe(2_000);
    expect(retryDelayMs(1, 86_400_000)).toBe(60_000);
    expect(afterTry(attempt({ status: 429, retryAfterMs: 7_000 }))).toMatchObject({
      delayMs: 7_000,
    });
  });

  it.each([1, 2, 3, WEBHOOK_TRIES])(
    'that refuses the dispatcher at try %i is tried once more without it, at once',
    (tries) => {
      const refused = attempt({ status: 403, tries, withCreatedBy: true });
      expect(afterTry(refused)).toEqual({ kind: 'retry', delayMs: 0, withCreatedBy: false });
      const again = attempt({ status: 403, tries: tries + 1 });
      expect(afterTry(again)).toEqual({ kind: 'give_up' });
    },
  );

  it('is removed when it says that it is gone, at whatever try', () => {
    for (const tries of [1, WEBHOOK_TRIES]) {
      expect(afterTry(attempt({ status: 410, tries }))).toEqual({ kind: 'remove_webhook' });
    }
  });
});
