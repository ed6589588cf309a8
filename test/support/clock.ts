import { systemClock, type Clock } from '../../src/platform/clock.ts';

/** A clock that moves only when told to. */
export interface TestClock extends Clock {
  advance(ms: number): void;
}

/** Starts at the present, so that rows made by the database's own clock are not in its future. */
export function createTestClock(startMs = systemClock.now()): TestClock {
  let nowMs = startMs;
  return {
    now: () => nowMs,
    advance: (ms) => {
      nowMs += ms;
    },
  };
}
