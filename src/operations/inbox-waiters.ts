/*
 * Readers that wait for an inbox: woken in memory by what this replica commits, and through the
 * database by what the others do. A wake is only a hint to look; the look decides.
 */

export interface InboxKey {
  tenantId: string;
  sessionId: string;
}

export interface InboxWaiters {
  /** Takes note of a reader; register before looking, so that nothing falls between look and wait. */
  register(tenantId: string, sessionId: string): InboxWaiter;
  /** Wakes everyone who waits for this inbox here. */
  wake(tenantId: string, sessionId: string): void;
  /** The inboxes that are waited for here, for the backstop poll. */
  waitedFor(): InboxKey[];
  /** How many readers wait, for the metrics. */
  count(): number;
  /** Answers all waits now and those that come; for the drain. */
  release(): void;
}

export interface InboxWaiter {
  /** Resolves at once if a wake came since the last wait, and at the latest when the time is up. */
  wait(milliseconds: number, left: AbortSignal): Promise<WaitEnd>;
  close(): void;
}

/**
 * - `woken`: the inbox may hold something
 * - `time_up`: nothing was heard
 * - `left`: the reader has gone
 * - `released`: the service drains; no wait takes any time from now on
 */
export type WaitEnd = 'woken' | 'time_up' | 'left' | 'released';

/** A register of waiting readers; nobody waits yet. */
export function createInboxWaiters(): InboxWaiters {
  const inboxes = new Map<string, { key: InboxKey; readers: Set<Reader> }>();
  let readers = 0;
  let released = false;

  function register(tenantId: string, sessionId: string): InboxWaiter {
    const id = idOf(tenantId, sessionId);
    const inbox = inboxes.get(id) ?? { key: { tenantId, sessionId }, readers: new Set() };
    const reader = createReader(() => released);
    inboxes.set(id, inbox);
    inbox.readers.add(reader);
    readers += 1;
    return {
      wait: reader.wait,
      close: () => {
        if (!inbox.readers.delete(reader)) return;
        readers -= 1;
        if (inbox.readers.size === 0) inboxes.delete(id);
      },
    };
  }

  function wake(tenantId: string, sessionId: string): void {
    for (const reader of inboxes.get(idOf(tenantId, sessionId))?.readers ?? []) reader.wake();
  }

  function release(): void {
    released = true;
    for (const inbox of inboxes.values()) {
      for (const reader of inbox.readers) reader.release();
    }
  }

  return {
    register,
    wake,
    waitedFor: () => [...inboxes.values()].map(({ key }) => key),
    count: () => readers,
    release,
  };
}

function idOf(tenantId: string, sessionId: string): string {
  return `${tenantId}\0${sessionId}`;
}

interface Reader {
  wait: InboxWaiter['wait'];
  wake(): void;
  release(): void;
}

function createReader(isReleased: () => boolean): Reader {
  let woken = false;
  let endWait: ((end: WaitEnd) => void) | null = null;

  function wait(milliseconds: number, left: AbortSignal): Promise<WaitEnd> {
    return new Promise((resolve) => {
      const timer = setTimeout(() => end('time_up'), milliseconds);
      const leave = () => end('left');
      left.addEventListener('abort', leave);
      endWait = end;
      if (left.aborted) end('left');
      else if (isReleased()) end('released');
      else if (woken) end('woken');

      function end(why: WaitEnd): void {
        clearTimeout(timer);
        left.removeEventListener('abort', leave);
        endWait = null;
        woken = false;
        resolve(why);
      }
    });
  }

  return {
    wait,
    wake: () => {
      woken = true;
      endWait?.('woken');
    },
    release: () => endWait?.('released'),
  };
}
