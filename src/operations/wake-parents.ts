import { itemId } from '../domain/item-id.ts';
import type { WakeSubject } from '../domain/notice.ts';
import { isBusy } from '../domain/session.ts';
import {
  isCoalesced,
  NEVER_WOKEN,
  stepWake,
  type Announcement,
  type WakeState,
} from '../domain/wake.ts';
import type { Resources } from '../resources.ts';
import {
  commitWithoutWaiting,
  insertMissingWakes,
  loadWakingInboxes,
  lockWakes,
  selectUntoldParents,
  selectWakesToRepeat,
  updateWakes,
  type LoadedWakingInbox,
  type WakeKey,
  type WakeRow,
  type WakingItem,
} from '../store/wakes.ts';
import { deleteWebhookWakesOf, putWebhookWakes, type NewWebhookWake } from '../store/webhooks.ts';
import { announceChanged } from './announce.ts';

/*
 * What happens to parents is stepped after it was committed, in transactions of their own, and
 * delays nobody's answer. Each one looks at the inboxes as they are by then, behind the locks of the
 * parents' wakes: nothing is missed, whichever replica steps what first. What a process that dies has
 * not stepped yet, the sweep finds by the inboxes.
 */

/** What has happened to a parent. */
export type ParentEvent = WakeKey &
  (
    | { kind: 'delivered' | 'inbox_emptied' | 'released' | 'repeat_due' }
    /** `seq`: its place among the parent's turns and items. */
    | { kind: 'turn_started' | 'went_idle'; seq: number }
    /** Something unread may be there of which the parent was never told. */
    | { kind: 'look' }
    | { kind: 'announcement_failed'; number: number }
  );

/** So long results for a parent whose wake is pending are gathered. */
const GATHER_MS = 500;
/** … and nobody is in a hurry for it until so long after it was last found pending. */
const FORGET_MS = 5_000;
/** One transaction steps so many parents. */
const PARENTS_AT_A_TIME = 250;
/** So many wait to be stepped at most; of others the sweep takes care. */
const PARENTS_MAX = 20_000;
/** An item that was delivered so long ago has been stepped, or never will be by who delivered it. */
const STEPPED_WITHIN_MS = 5_000;
const REPEATS_AT_A_TIME = 500;
/** The sweep is a backstop that never ends: some hundredths of a core, however many inboxes. */
const SWEPT_AT_A_TIME = 2_000;

export interface WakeQueue {
  /** Takes note of what has been committed; never throws. */
  submit(events: readonly ParentEvent[]): void;
  /** Resolves when all that was submitted has been stepped. */
  idle(): Promise<void>;
}

/**
 * A queue over the resources that are handed in when the first event comes. A parent whose wake is
 * pending hears of further results by it: they are gathered, and stepped together a little later.
 */
export function createWakeQueue(resourcesOf: () => Resources): WakeQueue {
  const waiting = new Map<string, ParentEvent[]>();
  const pending = new Map<string, number>();
  let running: Promise<void> | null = null;
  let hurry: (() => void) | null = null;

  function submit(events: readonly ParentEvent[]): void {
    for (const event of events) {
      const key = idOf(event);
      const ofParent = waiting.get(key);
      if (ofParent === undefined) {
        if (waiting.size < PARENTS_MAX) waiting.set(key, [event]);
      } else {
        // The last of several that are alike says all that they say.
        const isAlike =
          ofParent.at(-1)?.kind === event.kind && event.kind !== 'announcement_failed';
        if (isAlike) ofParent.pop();
        ofParent.push(event);
      }
      if (event.kind !== 'delivered') pending.delete(key);
      if (!pending.has(key)) hurry?.();
    }
    if (waiting.size > 0) running ??= run();
  }

  async function run(): Promise<void> {
    // The caller's turn of the event loop comes first: it has answers to give.
    await Promise.resolve();
    while (waiting.size > 0) {
      const some = takeDue();
      if (some.length === 0) await pauseUnlessHurried(GATHER_MS);
      else await step(some);
    }
    running = null;
  }

  function takeDue(): ParentEvent[] {
    const now = performance.now();
    for (const [key, steppedAt] of pending) if (steppedAt < now - FORGET_MS) pending.delete(key);
    const due: ParentEvent[] = [];
    let parents = 0;
    for (const [key, events] of waiting) {
      if (parents === PARENTS_AT_A_TIME) break;
      const gathers = (pending.get(key) ?? -Infinity) > now - GATHER_MS;
      if (gathers && events.every(({ kind }) => kind === 'delivered')) continue;
      waiting.delete(key);
      due.push(...events);
      parents += 1;
    }
    return due;
  }

  async function step(events: readonly ParentEvent[]): Promise<void> {
    try {
      const told = await stepParents(resourcesOf(), events);
      for (const key of told) pending.set(idOf(key), performance.now());
    } catch (error) {
      resourcesOf().log.warn({ err: error }, 'parents are woken later');
    }
  }

  function pauseUnlessHurried(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      timer.unref();
      hurry = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  return { submit, idle: async () => await (running ?? Promise.resolve()) };
}

/**
 * Steps the parents' wakes by these events, in their order, and announces what follows. Answers the
 * parents whose wake is pending then.
 */
export async function stepParents(
  resources: Resources,
  events: readonly ParentEvent[],
): Promise<WakeKey[]> {
  const now = resources.clock.now();
  const byParent = groupByParent(events);
  const keys = [...byParent.values()].flatMap((ofParent) => ofParent.slice(0, 1));
  const told = await resources.database.transaction(async (tx) => {
    await commitWithoutWaiting(tx);
    const begun = keys.filter((key) => byParent.get(idOf(key))?.some(mayBegin));
    if (begun.length > 0) await insertMissingWakes(tx, begun, NEVER_WOKEN);
    const locked = await lockWakes(tx, keys);
    const coalesced = locked.filter((row) => {
      const hasOnlyDelivered = byParent.get(idOf(row))?.every(({ kind }) => kind === 'delivered');
      return hasOnlyDelivered === true && isCoalesced(row, now);
    });
    const rows = locked.filter((row) => !coalesced.includes(row));
    if (rows.length === 0) return { rows: [], calls: [], pending: coalesced };
    const inboxes = new Map(
      (await loadWakingInboxes(tx, rows, now)).map((inbox) => [idOf(inbox), inbox]),
    );
    const stepped = rows.map((row) => {
      const inbox = inboxes.get(idOf(row));
      if (inbox === undefined) throw new Error('one inbox a row');
      return stepParent(row, byParent.get(idOf(row)) ?? [], inbox, now);
    });
    const changed = stepped.filter(({ isChanged }) => isChanged).map(({ row }) => row);
    if (changed.length > 0) await updateWakes(tx, changed);
    const withdrawn = stepped.filter(({ isWithdrawn }) => isWithdrawn).map(({ row }) => row);
    if (withdrawn.length > 0) await deleteWebhookWakesOf(tx, withdrawn);
    const calls = stepped.flatMap(({ call }) =>
      call === null ? [] : [{ ...call, id: resources.ids.next('wake') }],
    );
    if (calls.length > 0) await putWebhookWakes(tx, calls, now);
    return {
      rows: stepped.filter(({ isTold }) => isTold).map(({ row }) => row),
      calls,
      pending: [...coalesced, ...stepped.map(({ row }) => row).filter((row) => row.pending)],
    };
  });
  if (told.rows.length > 0) announceChanged(resources, told.rows);
  if (told.calls.length > 0) resources.webhooks.nudge();
  return told.pending;
}

function groupByParent(events: readonly ParentEvent[]): Map<string, ParentEvent[]> {
  const groups = new Map<string, ParentEvent[]>();
  for (const event of events) {
    const group = groups.get(idOf(event)) ?? [];
    group.push(event);
    groups.set(idOf(event), group);
  }
  return groups;
}

function idOf({ tenantId, sessionId }: WakeKey): string {
  return `${tenantId}\0${sessionId}`;
}

function mayBegin({ kind }: ParentEvent): boolean {
  return kind === 'delivered' || kind === 'look';
}

interface Stepped {
  row: WakeRow;
  isChanged: boolean;
  isTold: boolean;
  /** What its webhook was to be called with before is not sent any more. */
  isWithdrawn: boolean;
  /** What the parent's webhook is called with; null: it has none, or there is nothing to tell. */
  call: Omit<NewWebhookWake, 'id'> | null;
}

function stepParent(
  row: WakeRow,
  events: readonly ParentEvent[],
  inbox: LoadedWakingInbox,
  now: number,
): Stepped {
  let state: WakeState = row;
  let isWithdrawn = false;
  let told = null as { announcement: Announcement; item: WakingItem } | null;

  function step(event: Parameters<typeof stepWake>[1], item: WakingItem | null): void {
    const { state: next, announce, withdraws } = stepWake(state, event);
    state = next;
    if (withdraws) isWithdrawn = inbox.hasWebhook;
    if (announce !== null && item !== null) told = { announcement: announce, item };
  }

  function tellOf(item: WakingItem | null): void {
    if (item === null) return;
    const { pending } = inbox;
    const delivered = {
      kind: 'delivered',
      disposition: 'turn',
      wakes: true,
      pending,
      now,
    } as const;
    step({ ...delivered, seq: inbox.newest?.seq ?? item.seq, subject: subjectOf(item) }, item);
  }

  const seen = {
    pending: inbox.pending,
    newest: inbox.newest && { seq: inbox.newest.seq, subject: subjectOf(inbox.newest) },
    unread: inbox.unread && subjectOf(inbox.unread),
    leasedUntil: inbox.leasedUntil,
  };
  const turnRuns = inbox.status !== null && isBusy(inbox.status);
  for (const event of events) {
    switch (event.kind) {
      case 'delivered':
        tellOf(inbox.newest);
        break;
      case 'turn_started':
        step({ kind: 'turn_started', seq: event.seq, inbox: seen, now }, inbox.newest);
        break;
      case 'went_idle':
        // Where a turn has begun since, its own end will be told of.
        if (turnRuns) break;
        step({ kind: 'went_idle', seq: event.seq, inbox: seen, now }, inbox.unread);
        break;
      case 'inbox_emptied':
        step({ kind: 'inbox_emptied', inbox: seen, now }, inbox.unread);
        break;
      case 'released':
        if (inbox.unread !== null) step({ kind: 'released', turnRuns, now }, null);
        break;
      case 'repeat_due':
        step({ kind: 'repeat_due', inbox: seen, turnRuns, now }, inbox.unread);
        break;
      case 'look':
        if (!state.pending && state.repeatAt === null && !turnRuns) tellOf(inbox.unread);
        break;
      case 'announcement_failed':
        step({ kind: 'announcement_failed', number: event.number }, null);
        break;
    }
  }
  const { tenantId, sessionId } = row;
  const isChanged = state !== row;
  if (told === null) {
    const next = { ...row, ...state };
    return { row: next, isChanged, isTold: false, isWithdrawn, call: null };
  }
  const { announcement, item } = told;
  const { notice, pending, number } = announcement;
  const last = { notice, pending, itemId: itemId(item.seq) };
  const call = { tenantId, sessionId, number, ...last, createdBy: item.createdBy };
  return {
    row: { ...row, ...state, told: last },
    isChanged: true,
    isTold: true,
    isWithdrawn,
    call: inbox.hasWebhook ? call : null,
  };
}

function subjectOf({ type, agent, title, status, delegationId }: WakingItem): WakeSubject {
  return type === 'async_delegation' && delegationId !== null
    ? { kind: 'delegation', id: delegationId, status }
    : { kind: 'sub_agent', agent, title, status };
}

/** Repeats the wakes that are due: one bounded pass; true if there may be more. */
export async function repeatWakes(resources: Resources): Promise<boolean> {
  const page = { now: resources.clock.now(), limit: REPEATS_AT_A_TIME };
  const due = await resources.database.run((db) => selectWakesToRepeat(db, page));
  await stepSome(resources, due, 'repeat_due');
  return due.length === REPEATS_AT_A_TIME;
}

/**
 * Looks at the next parents with unread items, and tells those that nobody has told: the process
 * that delivered may have died. Answers after which to go on; null when all have been looked at.
 */
export async function sweepUntold(
  resources: Resources,
  after: WakeKey | null,
): Promise<WakeKey | null> {
  const now = resources.clock.now();
  const page = { after, now, since: now - STEPPED_WITHIN_MS, limit: SWEPT_AT_A_TIME };
  const parents = await resources.database.run((db) => selectUntoldParents(db, page));
  await stepSome(
    resources,
    parents.filter(({ isUntold }) => isUntold),
    'look',
  );
  return parents.length < SWEPT_AT_A_TIME ? null : (parents.at(-1) ?? null);
}

async function stepSome(
  resources: Resources,
  keys: readonly WakeKey[],
  kind: 'repeat_due' | 'look',
): Promise<void> {
  for (let at = 0; at < keys.length; at += PARENTS_AT_A_TIME) {
    const some = keys.slice(at, at + PARENTS_AT_A_TIME);
    await stepParents(
      resources,
      some.map(({ tenantId, sessionId }) => ({ tenantId, sessionId, kind })),
    );
  }
}
