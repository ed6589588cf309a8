import {
  interruptedResult,
  lostRunnerResult,
  stalledResult,
  timedOutResult,
  type Interruption,
  type TaskEnd,
} from '../domain/task-end.ts';
import { INTERRUPTED_OUTPUT } from '../domain/item-text.ts';
import {
  isLeaseOver,
  judgeClocks,
  watch,
  type Ending,
  type Judgement,
  type Watch,
} from '../domain/liveness.ts';
import type { Report } from '../domain/report.ts';
import type { EndedStatus } from '../domain/work.ts';
import type { Resources } from '../resources.ts';
import {
  markStalling,
  moveDue,
  pullDueDown,
  putOffEnds,
  selectDueWork,
  type DueWork,
  type StallingEntry,
  type WorkKey,
} from '../store/due-work.ts';
import {
  markLost,
  selectLeasesToJudge,
  selectLiveWorkOfRunner,
  type Lease,
  type LiveWorkOfRunner,
} from '../store/runners.ts';
import { lockWatch, putWatch } from '../store/service-watch.ts';
import { ingestReport } from './ingest-report.ts';
import { ownReport } from './own-report.ts';
import { isPassing } from './unavailable.ts';

/** How long after one look at the clocks comes the next: thresholds of a second still mean it. */
export const LIVENESS_INTERVAL_MS = 500;
/**
 * So long without a look is an interruption: a few looks may come late, and no threshold that makes
 * sense is much shorter.
 */
const GAP_MS = 4 * LIVENESS_INTERVAL_MS;
/** A process that begins has seen nothing before, so less is granted to it. */
const GAP_AT_START_MS = 2 * LIVENESS_INTERVAL_MS;

/** A pass takes so many entries, so that it stays short beside the time between two looks. */
const DUE_MAX = 1_000;
const LEASES_MAX = 1_000;
/** What could not be delivered is parked, and delivered as such; this is for what is not even that. */
const PUT_OFF_MS = 60_000;

/**
 * One bounded pass over the clocks whose time may have come: ends work whose time is over, asks
 * stalled children to stop, and ends the children of lost runners. Answers whether there is more to
 * do at once. Any number of replicas may run it at any time; a pass that fails counts as time in
 * which nobody watched.
 */
export async function sweepLiveness(resources: Resources): Promise<boolean> {
  const now = resources.clock.now();
  return await resources.attention.guard(async () => {
    const seen = await keepWatch(resources, now);
    if (seen === null) return true;
    const moreDue = await judgeDueWork(resources, seen, now);
    const moreLost = await judgeLeases(resources, seen, now);
    return moreDue || moreLost;
  });
}

/** Looks, and takes note of it; null: the clock went back, and bounds are still being pulled down. */
async function keepWatch(resources: Resources, now: number): Promise<Watch | null> {
  const look = resources.attention.look();
  const gapMs = look.isFirst ? GAP_AT_START_MS : GAP_MS;
  const seen = await resources.database.transaction(async (tx) => {
    const former = await lockWatch(tx);
    const found = watch(former, now, gapMs);
    if (found.clockWentBack) {
      if (await pullDueDown(tx, { now, limit: DUE_MAX })) return null;
    }
    const next = look.lapsed ? { ...found, uninterruptedSince: now } : found;
    await putWatch(tx, next);
    return next;
  });
  if (seen === null) return null;
  look.done();
  if (seen.uninterruptedSince === now) {
    resources.log.info('the watch over the children begins, and all clocks with it');
  }
  // Replicas are granted the usual difference between their clocks from the start.
  return { ...seen, gapMs: GAP_MS };
}

/** An entry that ends without its child's word. */
interface End extends WorkKey {
  sessionId: string;
  as: EndedStatus;
  task: TaskEnd;
}

async function judgeDueWork(resources: Resources, seen: Watch, now: number): Promise<boolean> {
  const due = await resources.database.run((db) => selectDueWork(db, { now, limit: DUE_MAX }));
  if (due.length === 0) return false;
  const waits: (WorkKey & { dueAt: number | null })[] = [];
  const stalls: StallingEntry[] = [];
  const ends: End[] = [];
  for (const entry of due) {
    const judgement = judgeClocks(entry.work, entry.heartbeats, seen, now);
    switch (judgement.kind) {
      case 'wait':
        waits.push({ ...entry, dueAt: judgement.dueAt });
        break;
      case 'stall':
        stalls.push(stallingEntry(entry, judgement));
        break;
      case 'end':
        ends.push({ ...entry, as: judgement.as, task: endOf(entry, judgement) });
        break;
    }
  }
  if (waits.length > 0 || stalls.length > 0) {
    await resources.database.transaction(async (tx) => {
      if (stalls.length > 0) await markStalling(tx, stalls, now);
      if (waits.length > 0) await moveDue(tx, waits);
    });
  }
  const unsettled = await endAll(resources, ends, now);
  return due.length === DUE_MAX && unsettled === 0;
}

function stallingEntry(
  entry: DueWork,
  { graceMs, dueAt, ...stall }: Extract<Judgement, { kind: 'stall' }>,
): StallingEntry {
  const { phase, quietMs, thresholdMs } = stall;
  return { ...entry, stall: { phase, quietMs, thresholdMs }, graceMs, dueAt };
}

function endOf({ heartbeats, model, interruptReason }: DueWork, ending: Ending): TaskEnd {
  const soFar = { apiCalls: heartbeats?.apiCalls ?? null, model };
  switch (ending.as) {
    case 'stalled':
      return stalledResult({ ...soFar, ...ending });
    case 'timeout':
      return timedOutResult({ ...soFar, ...ending });
    case 'cancelled':
      return interruptedResult({ ...soFar, by: interruption(interruptReason) });
  }
}

/** Work is only cancelling since somebody asked for it, for one of these reasons. */
function interruption(reason: string | null): Interruption {
  return (reason ?? 'interrupted') as Interruption;
}

/**
 * Ends the entries as reports do it, all at once, so that they fill batches. What cannot be
 * delivered has been parked by it. Answers how many have to be tried again.
 */
async function endAll(resources: Resources, ends: readonly End[], now: number): Promise<number> {
  if (ends.length === 0) return 0;
  const outcomes = await Promise.allSettled(
    ends.map((end) => ingestReport(resources, reportOf(end))),
  );
  const putOff: (WorkKey & { stopReason: string | null })[] = [];
  let unsettled = 0;
  for (const [at, end] of ends.entries()) {
    const outcome = outcomes[at];
    if (outcome?.status === 'fulfilled') {
      if (outcome.value.kind === 'deliver') continue;
    } else if (isPassing(outcome?.reason)) {
      unsettled += 1;
      continue;
    } else {
      resources.log.warn({ err: outcome?.reason, workId: end.workId }, 'work could not be ended');
    }
    putOff.push({ ...end, stopReason: end.as === 'unknown' ? null : end.as });
  }
  if (putOff.length > 0) {
    await resources.database.transaction(async (tx) => {
      await putOffEnds(tx, putOff, now + PUT_OFF_MS);
    });
  }
  return unsettled;
}

function reportOf({ tenantId, sessionId, workId, as, task }: End): Report {
  const origin = { kind: 'end', as, task } as const;
  const output = as === 'cancelled' ? INTERRUPTED_OUTPUT : (task.error ?? '');
  return ownReport({ tenantId, sessionId, workId }, origin, output);
}

async function judgeLeases(resources: Resources, seen: Watch, now: number): Promise<boolean> {
  const page = { now, limit: LEASES_MAX };
  const leases = await resources.database.run((db) => selectLeasesToJudge(db, page));
  let room = DUE_MAX;
  for (const lease of leases) {
    if (!isLeaseOver(lease, seen, now)) continue;
    const { found, unsettled } = await endChildrenOf(resources, lease, { now, limit: room });
    if (unsettled > 0) return false;
    room -= found;
    if (room === 0) return true;
  }
  return false;
}

/** Ends the children of a lost runner, and takes note of the loss when there are no more of them. */
async function endChildrenOf(
  resources: Resources,
  lease: Lease,
  { now, limit }: { now: number; limit: number },
): Promise<{ found: number; unsettled: number }> {
  const { tenantId } = lease;
  const page = { ...lease, limit };
  const children = await resources.database.run((db) => selectLiveWorkOfRunner(db, page));
  const ends = children.map((child) => lostEnd(tenantId, child));
  const unsettled = await endAll(resources, ends, now);
  if (children.length < limit && unsettled === 0) {
    await resources.database.run((db) => markLost(db, { ...lease, now }));
  }
  return { found: children.length, unsettled };
}

function lostEnd(tenantId: string, child: LiveWorkOfRunner): End {
  const { sessionId, workId } = child;
  return { tenantId, sessionId, workId, as: 'unknown', task: lostRunnerResult(child) };
}
