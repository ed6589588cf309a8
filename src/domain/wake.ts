import type { Disposition } from './disposition.ts';
import { wakeNotice, type WakeSubject } from './notice.ts';

/*
 * When an idle parent is told that its inbox has something. One wake is pending at a time: what is
 * delivered meanwhile is found by whoever follows it. A wake that is not followed is repeated, ever
 * more slowly, so that no result is stranded by a turn that did not read, or by a reader that died.
 */

/** After how long a wake is first repeated; the delay then doubles. */
const FIRST_REPEAT_MS = 60_000;
/** The longest delay between two of a wake's repetitions. */
export const LONGEST_REPEAT_MS = 3_600_000;

/** What is kept of a parent's wakes. */
export interface WakeState {
  /** It was told, and has not begun a turn since; left by a turn, its end, or an empty inbox. */
  pending: boolean;
  /** What it was last told since its inbox was empty. */
  lastNotice: string | null;
  /** When to look whether it must be told again; null: not before something happens. */
  repeatAt: number | null;
  repeatDelayMs: number;
  /** How many announcements there were: the number of the last one. */
  announcements: number;
  /** Of the parent's turns and items, this says how it stands as of this place in their order. */
  asOf: number;
}

/** The state of a parent that has never been told anything. */
export const NEVER_WOKEN: WakeState = {
  pending: false,
  lastNotice: null,
  repeatAt: null,
  repeatDelayMs: FIRST_REPEAT_MS,
  announcements: 0,
  asOf: 0,
};

/** The parent's inbox as the event finds it. */
export interface WakingInbox {
  /** Items that are not acked, of whatever kind. */
  pending: number;
  /** The newest item that asks for a wake, with its place; null: there is none. */
  newest: { seq: number; subject: WakeSubject } | null;
  /** The newest of those that nobody holds a lease of. */
  unread: WakeSubject | null;
  /** When the first lease of an item that asks for a wake ends; null: there is none. */
  leasedUntil: number | null;
}

/**
 * What bears on a parent's wakes. It may be heard of late, and out of order: `seq` is the place of
 * what has happened among the parent's turns and items.
 */
export type WakeEvent =
  /** An item was delivered; `wakes` is false for a parent that reads its history instead. */
  | {
      kind: 'delivered';
      seq: number;
      subject: WakeSubject;
      disposition: Disposition;
      wakes: boolean;
      /** Items that are not acked, this one included. */
      pending: number;
      now: number;
    }
  | { kind: 'turn_started'; seq: number; inbox: WakingInbox; now: number }
  /** The parent has reported the end of a turn, idle or failed, or that it is so still. */
  | { kind: 'went_idle'; seq: number; inbox: WakingInbox; now: number }
  /** Nothing was left in its inbox that was not acked. */
  | { kind: 'inbox_emptied'; inbox: WakingInbox; now: number }
  /** A reader has given back items that it had a lease of. */
  | { kind: 'released'; turnRuns: boolean; now: number }
  /** The announcement of this number has failed for good. */
  | { kind: 'announcement_failed'; number: number }
  /** The time of `repeatAt` has come; or it had, when that was last looked at. */
  | { kind: 'repeat_due'; inbox: WakingInbox; turnRuns: boolean; now: number };

/** What to tell the parent, once the new state is committed. */
export interface Announcement {
  number: number;
  notice: string;
  pending: number;
}

/** What follows an event. */
export interface WakeStep {
  /** The same object if nothing has changed: then nothing need be written. */
  state: WakeState;
  announce: Announcement | null;
  /** What was announced before is over: where it is still on its way, it need not arrive. */
  withdraws: boolean;
}

/** What becomes of a parent's wakes by an event. */
export function stepWake(state: WakeState, event: WakeEvent): WakeStep {
  switch (event.kind) {
    case 'delivered':
      return delivered(state, event);
    case 'turn_started':
      return turnStarted(state, event);
    case 'went_idle':
      return wentIdle(state, event);
    case 'inbox_emptied':
      return inboxEmptied(state, event);
    case 'released': {
      if (event.turnRuns) return silently(state, {});
      return silently(state, repeatedAfter(state.repeatDelayMs, state.repeatAt, event.now));
    }
    case 'announcement_failed':
      // A later announcement may be on its way.
      return silently(state, event.number === state.announcements ? { pending: false } : {});
    case 'repeat_due':
      return repeatDue(state, event);
  }
}

/** True if a delivery changes nothing: the parent was told, and is told again soon enough. */
export function isCoalesced({ pending, repeatAt, repeatDelayMs }: WakeState, now: number): boolean {
  return (
    pending &&
    repeatDelayMs === FIRST_REPEAT_MS &&
    repeatAt !== null &&
    repeatAt <= now + FIRST_REPEAT_MS
  );
}

function delivered(state: WakeState, event: Extract<WakeEvent, { kind: 'delivered' }>): WakeStep {
  const { seq, subject, disposition, wakes, pending, now } = event;
  if (disposition === 'note' || !wakes) return silently(state, {});
  if (!state.pending) return announced(state, { seq, subject, pending }, now, FIRST_REPEAT_MS);
  // Coalesced; but a new item does not wait for the long delay that older ones have earned.
  return silently(state, repeatedAfter(FIRST_REPEAT_MS, state.repeatAt, now));
}

function turnStarted(
  state: WakeState,
  { seq, inbox, now }: Extract<WakeEvent, { kind: 'turn_started' }>,
): WakeStep {
  // What was announced since is no wake that the turn has followed.
  if (seq < state.asOf) return silently(state, {});
  const cleared = withdrawn(state, state.pending ? { pending: false, asOf: seq } : {});
  const { newest, pending } = inbox;
  if (!state.pending || newest === null || newest.seq < seq) return cleared;
  // It came during the turn, and was taken for a part of what had been told before.
  return {
    ...announced(cleared.state, { ...newest, pending }, now, FIRST_REPEAT_MS),
    withdraws: true,
  };
}

function wentIdle(
  state: WakeState,
  { seq, inbox, now }: Extract<WakeEvent, { kind: 'went_idle' }>,
): WakeStep {
  if (seq < state.asOf) return silently(state, {});
  if (inbox.pending === 0) return emptied(state);
  const idle = state.pending ? { pending: false, asOf: seq } : {};
  if (inbox.unread === null) return silently(state, { ...idle, repeatAt: inbox.leasedUntil });
  if (wakeNotice(inbox.unread, inbox.pending) === state.lastNotice) {
    // What came due while the turn ran is not made up for at once.
    const ahead = state.repeatAt !== null && state.repeatAt > now ? state.repeatAt : null;
    return silently(state, { ...idle, ...repeatedAfter(state.repeatDelayMs, ahead, now) });
  }
  return announced({ ...state, ...idle }, unreadOf(inbox, inbox.unread), now, state.repeatDelayMs);
}

function inboxEmptied(
  state: WakeState,
  { inbox, now }: Extract<WakeEvent, { kind: 'inbox_emptied' }>,
): WakeStep {
  const { newest, unread } = inbox;
  // What is there has come since, and was told.
  if (newest !== null && newest.seq <= state.asOf) return silently(state, {});
  const cleared = emptied(state);
  if (unread === null) return cleared;
  // It has come since, and was taken for a part of what had been told before.
  const told = unreadOf(inbox, unread);
  return { ...announced(cleared.state, told, now, FIRST_REPEAT_MS), withdraws: true };
}

function repeatDue(
  state: WakeState,
  { inbox, turnRuns, now }: Extract<WakeEvent, { kind: 'repeat_due' }>,
): WakeStep {
  if (state.repeatAt === null || state.repeatAt > now) return silently(state, {});
  if (inbox.pending === 0) return emptied(state);
  if (turnRuns) return silently(state, { repeatAt: null });
  if (inbox.unread === null) return silently(state, { repeatAt: inbox.leasedUntil });
  const delayMs = Math.min(state.repeatDelayMs * 2, LONGEST_REPEAT_MS);
  return announced(state, unreadOf(inbox, inbox.unread), now, delayMs);
}

/** What is told of the inbox: its newest unread item, as of its newest. */
function unreadOf({ newest, pending }: WakingInbox, unread: WakeSubject): Told {
  return { seq: newest?.seq ?? 0, subject: unread, pending };
}

/** Repeated after the delay, or earlier if that was intended. */
function repeatedAfter(
  repeatDelayMs: number,
  intended: number | null,
  now: number,
): Pick<WakeState, 'repeatAt' | 'repeatDelayMs'> {
  return { repeatAt: Math.min(intended ?? Infinity, now + repeatDelayMs), repeatDelayMs };
}

interface Told {
  seq: number;
  subject: WakeSubject;
  pending: number;
}

function announced(
  state: WakeState,
  { seq, subject, pending }: Told,
  now: number,
  repeatDelayMs: number,
): WakeStep {
  const number = state.announcements + 1;
  const notice = wakeNotice(subject, pending);
  return {
    state: {
      pending: true,
      lastNotice: notice,
      repeatAt: now + repeatDelayMs,
      repeatDelayMs,
      announcements: number,
      asOf: Math.max(state.asOf, seq),
    },
    announce: { number, notice, pending },
    withdraws: false,
  };
}

function emptied(state: WakeState): WakeStep {
  const { announcements, asOf } = state;
  return withdrawn(state, { ...NEVER_WOKEN, announcements, asOf });
}

function withdrawn(state: WakeState, change: Partial<WakeState>): WakeStep {
  return { ...silently(state, change), withdraws: true };
}

function silently(state: WakeState, change: Partial<WakeState>): WakeStep {
  const fields = Object.keys(change) as (keyof WakeState)[];
  const isSame = fields.every((field) => change[field] === state[field]);
  return { state: isSame ? state : { ...state, ...change }, announce: null, withdraws: false };
}

/* How a webhook is tried. */

/** How often one announcement is tried in all; once more where only the dispatcher is refused. */
export const WEBHOOK_TRIES = 4;
/** How long to wait after the first try; then twice as long after each. */
const FIRST_RETRY_MS = 500;
/** How long to wait at most, unless the receiver asks for more. */
const LONGEST_RETRY_MS = 4_000;
/** A receiver that asks for more patience than this gets as much as this. */
const LONGEST_RETRY_AFTER_MS = 60_000;

const RETRYABLE_CLIENT_ERRORS: ReadonlySet<number> = new Set([408, 409, 425, 429]);

/** True for an answer after which the same may succeed; null: there was none. */
export function isRetryable(status: number | null): boolean {
  if (status === null) return true;
  return (status >= 500 && status <= 599) || RETRYABLE_CLIENT_ERRORS.has(status);
}

/** How long to wait after so many tries; what the receiver asks for, if that is longer. */
export function retryDelayMs(tries: number, retryAfterMs: number | null = null): number {
  const delayMs = Math.min(FIRST_RETRY_MS * 2 ** Math.min(tries - 1, 10), LONGEST_RETRY_MS);
  return Math.max(delayMs, Math.min(retryAfterMs ?? 0, LONGEST_RETRY_AFTER_MS));
}

/** One try of an announcement, and how it ended. */
export interface WebhookTry {
  /** This one included. */
  tries: number;
  /** null: no answer came. */
  status: number | null;
  /** What the receiver asks for; null: nothing. */
  retryAfterMs: number | null;
  /** The notice named who dispatched the work. */
  withCreatedBy: boolean;
}

/** What is done after a try. */
export type AfterTry =
  | { kind: 'delivered' }
  | { kind: 'retry'; delayMs: number; withCreatedBy: boolean }
  /** This announcement has failed for good. */
  | { kind: 'give_up' }
  /** So has it, and the receiver wants no other. */
  | { kind: 'remove_webhook' };

/** What follows a try. A redirect is a failure: it is not followed. */
export function afterTry({ tries, status, retryAfterMs, withCreatedBy }: WebhookTry): AfterTry {
  if (status !== null && status >= 200 && status <= 299) return { kind: 'delivered' };
  if (status === 410) return { kind: 'remove_webhook' };
  if (status === 403 && withCreatedBy) return { kind: 'retry', delayMs: 0, withCreatedBy: false };
  if (tries >= WEBHOOK_TRIES) return { kind: 'give_up' };
  if (!isRetryable(status)) return { kind: 'give_up' };
  return { kind: 'retry', delayMs: retryDelayMs(tries, retryAfterMs), withCreatedBy };
}
