import {
  isClosedToResults,
  isLive,
  type EndedStatus,
  type LiveStatus,
  type WorkStatus,
} from './work.ts';

/*
 * When work ends without a report.
 *
 * A live entry has up to four clocks: the deadline and the child's time-out, the quiet after which it
 * stalls, and the grace of a child that was asked to stop. None is stored as a moment at which it
 * runs out. What is stored is a lower bound, `due_at`, before which none does; a sweep takes what is
 * due, judges it here by what is true by then, and either acts or moves the bound forward. So
 * heartbeats need not touch it, and a sweep costs what is due, not what is alive.
 *
 * The service does not judge what it could not see: a clock that began before an interruption of the
 * service's own watch begins anew when the watch does.
 */

/** What a runner says of a child that it works on; null: it does not say. */
export interface Beat {
  apiCalls: number | null;
  currentTool: string | null;
  /** As it was sent. It is compared with its former value, never with a clock of ours. */
  lastActivityAt: string | number | null;
}

/** The newest beat of an entry, and when, by our clock, the beats told of progress. */
export interface Heartbeats extends Beat {
  /** Whether anything has changed since the first beat. */
  progressed: boolean;
  /** When the last change arrived; until there was one, the first beat. */
  progressAt: number;
}

/** True if the child has done something since the former beat. */
export function isProgress(former: Beat, beat: Beat): boolean {
  return (
    former.apiCalls !== beat.apiCalls ||
    former.currentTool !== beat.currentTool ||
    former.lastActivityAt !== beat.lastActivityAt
  );
}

/** What the service knows of its own attention. */
export interface Watch {
  /** The latest time at which a sweep has looked. */
  observedAt: number;
  /** Since then sweeps have looked without an interruption, and the clock has not gone back. */
  uninterruptedSince: number;
  /** The longest time without a sweep that is no interruption. */
  gapMs: number;
  /**
   * The clock went back with this look. Bounds stored before lie too far ahead: those of all live
   * entries must be pulled down to now.
   */
  clockWentBack: boolean;
}

/**
 * The watch as a sweep at `now` finds it; `former` is as the last sweep of any replica left it.
 * A step of no more than `gapMs`, forward or back, is not told from a late sweep or from replicas
 * whose clocks differ: forward, it shortens a clock by as much. Nor is an outage seen through which
 * the clock stood still, or after which it was put back by as much.
 */
export function watch(
  former: { observedAt: number; uninterruptedSince: number } | null,
  now: number,
  gapMs: number,
): Watch {
  const clockWentBack = former !== null && now < former.observedAt - gapMs;
  if (former === null || clockWentBack || now > former.observedAt + gapMs) {
    return { observedAt: now, uninterruptedSince: now, gapMs, clockWentBack };
  }
  // The latest, so that many small steps back count together.
  const observedAt = Math.max(former.observedAt, now);
  return { observedAt, uninterruptedSince: former.uninterruptedSince, gapMs, clockWentBack };
}

/** How long a child may be quiet, outside of a tool and in one, and then take to stop. */
export interface StallSettings {
  idleMs: number;
  inToolMs: number;
  graceMs: number;
}

/** Whether the child was in a tool when it stalled. */
export type StallPhase = 'idle' | 'in_tool';

/** How a child stalled, as it was seen. */
export interface Stall {
  phase: StallPhase;
  /** How long the service has seen no progress. */
  quietMs: number;
  thresholdMs: number;
}

/** A live entry, as far as its clocks go. */
export interface LiveWork {
  status: LiveStatus;
  createdAt: number;
  deadlineMs: number | null;
  childTimeoutMs: number | null;
  /** null: it never stalls. */
  stall: StallSettings | null;
  /** When the child was asked to stop, and how long it may take; set while cancelling or stalling. */
  interruptedAt: number | null;
  graceMs: number | null;
  /** Set while stalling. */
  stalled: Stall | null;
}

/** What is to be done with an entry. */
export type Judgement =
  /** Nothing is to be done, and nothing will be before `dueAt`; null: no clock runs. */
  | { kind: 'wait'; dueAt: number | null }
  /** The entry becomes `stalling`: its child is asked to stop, and has `graceMs` from now for it. */
  | ({ kind: 'stall'; graceMs: number; dueAt: number } & Stall)
  | ({ kind: 'end' } & Ending);

/** How an entry ends when a clock has run out. */
export type Ending =
  | ({ as: Extract<EndedStatus, 'stalled'>; graceMs: number; apiCalls: number } & Stall)
  | {
      as: Extract<EndedStatus, 'timeout'>;
      cause: 'deadline' | 'child_timeout';
      timeoutMs: number;
    }
  | { as: Extract<EndedStatus, 'cancelled'>; graceMs: number };

/** What is to be done with a live entry now; safe to ask at any time, and as often as you like. */
export function judgeClocks(
  work: LiveWork,
  heartbeats: Heartbeats | null,
  seen: Watch,
  now: number,
): Judgement {
  const clocks = runningClocks(work, heartbeats, seen, now);
  const over = clocks
    .filter((clock) => clock.runsOutAt <= now)
    .toSorted((a, b) => a.runsOutAt - b.runsOutAt);
  for (const clock of over) {
    if (clock.kind === 'end') return { kind: 'end', ...clock.ending };
  }
  for (const clock of over) {
    if (clock.kind !== 'stall') continue;
    const { stall, stalling } = stallOf(work, clock, now);
    const dueAt = boundOf(runningClocks(stalling, heartbeats, seen, now), now) ?? now;
    return { kind: 'stall', graceMs: clock.settings.graceMs, dueAt, ...stall };
  }
  return { kind: 'wait', dueAt: boundOf(clocks, now) };
}

/**
 * The first bound of an entry, from its dispatch; or, once its child has been asked to stop, the
 * bound that this brings: the stored one must not be later. null: no clock runs.
 */
export function firstDueAt(work: LiveWork): number | null {
  return earliest(clocksOf(work, null).map((clock) => clock.from + clock.ms));
}

/**
 * The bound that the first heartbeat brings, which starts the stall clock: the stored one must not
 * be later. No heartbeat after it can bring an earlier one.
 */
export function dueAfterFirstHeartbeat(work: LiveWork, now: number): number | null {
  const stall = mayStall(work) ? work.stall : null;
  return earliest([firstDueAt(work), stall && now + leastThreshold(stall)]);
}

/** True if a lease that runners (or viewers) hold has run out while the service watched. */
export function isLeaseOver(
  lease: { renewedAt: number; leaseMs: number },
  seen: Watch,
  now: number,
): boolean {
  return startOf(lease.renewedAt, seen, now) + lease.leaseMs <= now;
}

/** Why the child is to be stopped; null: it is not, or has said by itself that it ended. */
export function stopReason(work: {
  status: WorkStatus;
  interruptReason: string | null;
}): string | null {
  const { status, interruptReason } = work;
  return isLive(status) || isClosedToResults(status) ? interruptReason : null;
}

/** What runs, from when, for how long, and what it means that it has run out. */
type Clock = { from: number; ms: number } & (
  { kind: 'end'; ending: Ending } | { kind: 'stall'; phase: StallPhase; settings: StallSettings }
);

type RunningClock = Clock & { runsOutAt: number };

/** The clocks as the service may judge them. */
function runningClocks(
  work: LiveWork,
  heartbeats: Heartbeats | null,
  seen: Watch,
  now: number,
): RunningClock[] {
  return clocksOf(work, heartbeats).map((clock) => ({
    ...clock,
    runsOutAt: startOf(clock.from, seen, now) + clock.ms,
  }));
}

/** All clocks of the entry; of those that run out together, the first is the one that counts. */
function clocksOf(work: LiveWork, heartbeats: Heartbeats | null): Clock[] {
  return [
    deadlineOf(work),
    childTimeoutOf(work, heartbeats),
    graceOf(work, heartbeats),
    stallClockOf(work, heartbeats),
  ].filter((clock) => clock !== null);
}

/** From the dispatch, whatever happens. */
function deadlineOf({ createdAt, deadlineMs }: LiveWork): Clock | null {
  if (deadlineMs === null) return null;
  const ending: Ending = { as: 'timeout', cause: 'deadline', timeoutMs: deadlineMs };
  return { kind: 'end', from: createdAt, ms: deadlineMs, ending };
}

/**
 * From the dispatch, or from the last progress. A stall does not lengthen it; a child whose work is
 * cancelled has its grace instead.
 */
function childTimeoutOf(work: LiveWork, heartbeats: Heartbeats | null): Clock | null {
  const { createdAt, childTimeoutMs, status } = work;
  if (childTimeoutMs === null || status === 'cancelling') return null;
  const from = heartbeats?.progressed ? heartbeats.progressAt : createdAt;
  const ending: Ending = { as: 'timeout', cause: 'child_timeout', timeoutMs: childTimeoutMs };
  return { kind: 'end', from, ms: childTimeoutMs, ending };
}

function graceOf(work: LiveWork, heartbeats: Heartbeats | null): Clock | null {
  const { status, interruptedAt, graceMs, stalled } = work;
  if (status === 'launching' || status === 'running') return null;
  if (interruptedAt === null || graceMs === null) {
    throw new Error(`work that is ${status} has been interrupted, with a grace`);
  }
  const clock = { kind: 'end', from: interruptedAt, ms: graceMs } as const;
  if (status === 'cancelling') return { ...clock, ending: { as: 'cancelled', graceMs } };
  if (stalled === null) throw new Error('work that is stalling knows how it stalled');
  const apiCalls = heartbeats?.apiCalls ?? 0;
  return { ...clock, ending: { as: 'stalled', graceMs, apiCalls, ...stalled } };
}

function stallClockOf(work: LiveWork, heartbeats: Heartbeats | null): Clock | null {
  const { stall: settings } = work;
  if (settings === null || heartbeats === null || !mayStall(work)) return null;
  const phase = heartbeats.currentTool === null ? 'idle' : 'in_tool';
  const ms = phase === 'idle' ? settings.idleMs : settings.inToolMs;
  return { kind: 'stall', from: heartbeats.progressAt, ms, phase, settings };
}

function mayStall({ status }: LiveWork): boolean {
  return status === 'launching' || status === 'running';
}

/**
 * When a clock that runs from `from` began for the service. A start that lies ahead was written
 * before the clock went back: far ahead, before a step that the watch has seen; not so far, perhaps
 * just now by a replica whose clock is ahead, and then nothing has passed yet.
 */
function startOf(from: number, { uninterruptedSince, gapMs }: Watch, now: number): number {
  if (from <= now) return Math.max(from, uninterruptedSince);
  return from > now + 2 * gapMs ? uninterruptedSince : now;
}

/** No clock runs out before, whatever may still happen: a tool may begin or end at once. */
function boundOf(clocks: RunningClock[], now: number): number | null {
  return earliest(
    clocks.map((clock) =>
      clock.kind === 'stall'
        ? Math.min(clock.runsOutAt, now + leastThreshold(clock.settings))
        : clock.runsOutAt,
    ),
  );
}

function leastThreshold({ idleMs, inToolMs }: StallSettings): number {
  return Math.min(idleMs, inToolMs);
}

/** How the child has stalled, and its entry once that is written. */
function stallOf(
  work: LiveWork,
  { phase, ms, settings, runsOutAt }: Extract<RunningClock, { kind: 'stall' }>,
  now: number,
): { stall: Stall; stalling: LiveWork } {
  const stall = { phase, quietMs: now - runsOutAt + ms, thresholdMs: ms };
  const { graceMs } = settings;
  const asked = { status: 'stalling', interruptedAt: now, graceMs } as const;
  return { stall, stalling: { ...work, ...asked, stalled: stall } };
}

function earliest(times: (number | null)[]): number | null {
  const some = times.filter((time) => time !== null);
  return some.length === 0 ? null : Math.min(...some);
}
