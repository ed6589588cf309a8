import { StorageUnavailable } from '../store/unavailable.ts';

/**
 * What this replica knows of its own attention, beyond the watch that all share: whether something
 * that it should have seen since its last look was lost. One replica that was deaf is enough, since
 * it may be the one that a child's runner speaks to.
 */
export interface Attention {
  /** Runs what takes in a sign of life; takes note if it was lost with the database. */
  guard<T>(take: () => Promise<T>): Promise<T>;
  /** How the next look is to be taken; `done` is called when it has been stored. */
  look(): { isFirst: boolean; lapsed: boolean; done: () => void };
}

/** The attention of a replica that has not looked yet. */
export function createAttention(): Attention {
  let looks = 0;
  let lapses = 0;
  let accounted = 0;

  async function guard<T>(take: () => Promise<T>): Promise<T> {
    try {
      return await take();
    } catch (error) {
      // What is only locked elsewhere is no outage.
      if (error instanceof StorageUnavailable && error.code !== 'contended') lapses += 1;
      throw error;
    }
  }

  function look() {
    const noted = lapses;
    return {
      isFirst: looks === 0,
      lapsed: noted > accounted,
      done: () => {
        looks += 1;
        accounted = noted;
      },
    };
  }

  return { guard, look };
}
