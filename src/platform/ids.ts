import { v7 } from 'uuid';

export type IdPrefix = 'subagent' | 'deleg' | 'viewer' | 'session' | 'parked' | 'wake';

/** Makes the ids of this service: time-ordered, lower-case hex after the prefix. */
export interface Ids {
  next(prefix: IdPrefix): string;
}

/** Ids from UUIDv7: 48 bits of time, then a counter and randomness. */
export const uuidIds: Ids = { next: (prefix) => `${prefix}_${v7().replaceAll('-', '')}` };
