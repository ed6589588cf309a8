import type { Log } from '../platform/log.ts';

export interface Schedule {
  /** Starts no further pass and resolves when the one under way has ended. */
  stop(): Promise<void>;
}

/**
 * Runs a pass again and again, `intervalMs` after the one before has ended; at once when it answers
 * true (there is more to do). It knows only when; a pass that fails is logged and comes again.
 */
export function schedule(
  name: string,
  intervalMs: number,
  pass: () => Promise<boolean>,
  log: Log,
): Schedule {
  let stopped = false;
  let timer: NodeJS.Timeout | undefined;
  let running: Promise<void> = Promise.resolve();

  function runLater(ms: number): void {
    if (stopped) return;
    timer = setTimeout(() => {
      running = run();
    }, ms);
    timer.unref();
  }

  async function run(): Promise<void> {
    let more = false;
    try {
      more = await pass();
    } catch (error) {
      log.warn({ err: error, worker: name }, 'a pass failed; it comes again');
    }
    runLater(more ? 0 : intervalMs);
  }

  runLater(intervalMs);
  return {
    stop: async () => {
      stopped = true;
      clearTimeout(timer);
      await running;
    },
  };
}
