/** Where an operation takes the time from, once: milliseconds since the epoch. */
export interface Clock {
  now(): number;
}

/** The machine's clock. */
export const systemClock: Clock = { now: () => Date.now() };
