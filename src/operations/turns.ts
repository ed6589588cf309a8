export interface Turns {
  /** Resolves with what gives the turn back when it is this caller's, or at once if it has left. */
  take(left: AbortSignal): Promise<() => void>;
}

/** At most `count` turns are taken at once; those who wait for one get it in their order. */
export function createTurns(count: number): Turns {
  const queue = new Set<() => void>();
  let free = count;

  function giveBack(): void {
    free += 1;
    const [next] = queue;
    next?.();
  }

  return {
    take: (left) =>
      new Promise((resolve) => {
        const begin = () => {
          stopWaiting();
          free -= 1;
          resolve(once(giveBack));
        };
        const leave = () => {
          stopWaiting();
          resolve(() => {});
        };
        const stopWaiting = () => {
          queue.delete(begin);
          left.removeEventListener('abort', leave);
        };
        queue.add(begin);
        left.addEventListener('abort', leave);
        if (left.aborted) leave();
        else if (free > 0) begin();
      }),
  };
}

function once(act: () => void): () => void {
  let done = false;
  return () => {
    if (!done) act();
    done = true;
  };
}
