import { sessionHash } from './session-hash.ts';
import { createTurns } from './turns.ts';

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
  /** The same by the hash of the session. */
  wakeHashed(hash: string): void;
  /** The inboxes that are waited for here, for the backstop poll. */
  waitedFor(): InboxKey[];
  /** How many readers wait, for the metrics. */
  count(): number;
  /** Answers all waits now and those that come; for the drain. */
  release(): void;
}

export interface InboxWaiter {
  /**
   * Resolves at once if a wake came since the last wait, and when the time is up. Then it is this
   * reader's turn to look, until it waits again or is closed.
   */
  wait(milliseconds: number, left: AbortSignal): Promise<WaitEnd>;
  close(): void;
}

/**
 * - `woken`: the inbox may hold something
 * - `time_up`: nothing was heard
 * - `left`: the reader has gone, and has no turn
 * - `released`: the service drains; no wait takes any time from now on
 */
export type WaitEnd = 'woken' | 'time_up' | 'left' | 'released';

/**
 * So many readers look at once at the end of their waits, ten a connection of the pool, however
 * many are woken at the same time: it would refuse the thousands that a gap in listening wakes.
 */
const TURNS = 100;

/** A register of waiting readers; nobody waits yet. */
export function createInboxWaiters(): InboxWaiters {
  const inboxes = new Map<string, WaitedInbox>();
  const byHash = new Map<string, Set<WaitedInbox>>();
  const turns = createTurns(TURNS);
  let readers = 0;
  let released = false;

  function register(tenantId: string, sessionId: string): InboxWaiter {
    const id = idOf(tenantId, sessionId);
    const inbox = inboxes.get(id) ?? add(id, { tenantId, sessionId });
    const reader = createReader();
    let giveTurnBack: (() => void) | null = null;
    inbox.readers.add(reader);
    readers += 1;
    if (released) reader.end('released');
    return {
      wait: async (milliseconds, left) => {
        giveTurnBack?.();
        const end = await reader.wait(milliseconds, left);
        if (end === 'left') return 'left';
        giveTurnBack = await turns.take(left);
        return left.aborted ? 'left' : end;
      },
      close: () => {
        giveTurnBack?.();
        if (!inbox.readers.delete(reader)) return;
        readers -= 1;
        if (inbox.readers.size === 0) remove(id, inbox);
      },
    };
  }

  function add(id: string, key: InboxKey): WaitedInbox {
    const hash = sessionHash(key.tenantId, key.sessionId);
    const inbox = { key, hash, readers: new Set<Reader>() };
    inboxes.set(id, inbox);
    byHash.set(hash, (byHash.get(hash) ?? new Set()).add(inbox));
    return inbox;
  }

  function remove(id: string, inbox: WaitedInbox): void {
    inboxes.delete(id);
    const ofHash = byHash.get(inbox.hash);
    ofHash?.delete(inbox);
    if (ofHash?.size === 0) byHash.delete(inbox.hash);
  }

  function wakeReaders(inbox: WaitedInbox | undefined): void {
    for (const reader of inbox?.readers ?? []) reader.end('woken');
  }

  function release(): void {
    released = true;
    for (const inbox of inboxes.values()) {
      for (const reader of inbox.readers) reader.end('released');
    }
  }

  return {
    register,
    wake: (tenantId, sessionId) => wakeReaders(inboxes.get(idOf(tenantId, sessionId))),
    wakeHashed: (hash) => {
      for (const inbox of byHash.get(hash) ?? []) wakeReaders(inbox);
    },
    waitedFor: () => [...inboxes.values()].map(({ key }) => key),
    count: () => readers,
    release,
  };
}

function idOf(tenantId: string, sessionId: string): string {
  return `${tenantId}\0${sessionId}`;
}

interface WaitedInbox {
  key: InboxKey;
  hash: string;
  readers: Set<Reader>;
}

interface Reader {
  wait: InboxWaiter['wait'];
  /** Ends the wait, or the next one; `released` ends all that follow. */
  end(why: 'woken' | 'released'): void;
}

function createReader(): Reader {
  let ended: 'woken' | 'released' | null = null;
  let tell: ((why: WaitEnd) => void) | null = null;

  function wait(milliseconds: number, left: AbortSignal): Promise<WaitEnd> {
    return new Promise((resolve) => {
      const timer = setTimeout(() => finish('time_up'), milliseconds);
      const leave = () => finish('left');
      left.addEventListener('abort', leave);
      tell = finish;
      if (left.aborted) finish('left');
      else if (ended !== null) finish(ended);

      function finish(why: WaitEnd): void {
        clearTimeout(timer);
        left.removeEventListener('abort', leave);
        tell = null;
        if (ended === 'woken') ended = null;
        resolve(why);
      }
    });
  }

  return {
    wait,
    end: (why) => {
      if (ended !== 'released') ended = why;
      tell?.(why);
    },
  };
}
