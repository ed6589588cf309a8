import { randomFillSync } from 'node:crypto';
import { v7 } from 'uuid';

export type IdPrefix = 'subagent' | 'deleg' | 'viewer' | 'session' | 'parked' | 'wake';

/** Makes the ids of this service: time-ordered, lower-case hex after the prefix. */
export interface Ids {
  next(prefix: IdPrefix): string;
}

/** Ids from UUIDv7: 48 bits of time, a counter within the millisecond, then randomness. */
export const uuidIds: Ids = { next: (prefix) => `${prefix}_${nextUuid().replaceAll('-', '')}` };

let msecs = 0;
let seq = 0;

function nextUuid(): string {
  const now = Date.now();
  // A clock that is set back does not make ids that sort before those that are out.
  if (now > msecs) {
    msecs = now;
    seq = 0;
  } else {
    seq += 1;
  }
  return v7({ msecs, seq, random: nextRandomBytes() });
}

/** Drawn for 256 ids at once: each draw costs as much as all else that an id takes. */
const pool = new Uint8Array(256 * 16);
let drawn = pool.length;

function nextRandomBytes(): Uint8Array {
  if (drawn === pool.length) {
    randomFillSync(pool);
    drawn = 0;
  }
  drawn += 16;
  return pool.slice(drawn - 16, drawn);
}
