import { secondsBetween, unitStatus, type TaskResult } from '../domain/delegation.ts';
import type { ResultStatus } from '../domain/task-end.ts';
import { cutSummaries } from '../domain/text-budget.ts';
import { invalid, notFound } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import {
  countActiveCalls,
  countActiveTasks,
  selectActivity,
  selectCall,
  selectCallEnd,
  selectCallPage,
  selectTasks,
  selectUnits,
  type ActivityRow,
  type CallRow,
  type ListedCall,
  type TaskRow,
  type UnitRow,
} from '../store/delegations.ts';
import { inboxesOf } from './ack-items.ts';
import { ANSWER_MAX_BYTES } from './read-inbox.ts';
import { isPassing } from './unavailable.ts';

export type { ActivityRow, CallRow, ListedCall, TaskRow, UnitRow };

/** A call with its units, its tasks, and the results of those that have ended, cut to be shown. */
export interface Delegation {
  call: CallRow;
  status: 'running' | ResultStatus;
  units: UnitRow[];
  tasks: TaskRow[];
  results: TaskResult[];
  /** null: it has not ended. */
  totalDurationSeconds: number | null;
}

/** The call with this id, or that of the unit with this id. */
export async function readDelegation(
  resources: Resources,
  of: { tenantId: string; id: string },
): Promise<Delegation> {
  const read = await resources.database.run(async (db) => {
    const call = await selectCall(db, of);
    if (call === null) return null;
    const tasks = await selectTasks(db, call);
    return { call, tasks, units: await selectUnits(db, call) };
  });
  if (read === null) throw notFound(`Delegation ${of.id}`);
  const { call, tasks } = read;
  const results = cutSummaries(
    tasks.map(({ result }) => result).filter((result) => result !== null),
  );
  return {
    ...read,
    status: call.endedAt === null ? 'running' : unitStatus(results),
    results,
    totalDurationSeconds: call.endedAt && secondsBetween(call.createdAt, call.endedAt),
  };
}

/**
 * Waits until the call has ended: woken, never polling. Answers why it stopped: the call may be gone
 * with its parent by then.
 */
export async function waitForDelegation(
  resources: Resources,
  of: { tenantId: string; delegationId: string },
  { waitMs, left }: { waitMs: number; left: AbortSignal },
): Promise<'ended' | 'time_up' | 'left'> {
  const waitUntil = performance.now() + waitMs;
  const waiter = resources.waiters.register(of.tenantId, of.delegationId);
  try {
    for (let drains = false; ;) {
      if (left.aborted) return 'left';
      const found = await resources.database.run((db) => selectCallEnd(db, of));
      if (found === null || found.endedAt !== null) return 'ended';
      const timeLeft = waitUntil - performance.now();
      if (timeLeft <= 0 || drains) return 'time_up';
      drains = (await waiter.wait(timeLeft, left)) === 'released';
    }
  } finally {
    waiter.close();
  }
}

/**
 * The call that this request has dispatched, once it has ended; else why it does not wait any longer.
 * A database that fails meanwhile is no error: what was dispatched goes on.
 */
export async function waitForDispatched(
  resources: Resources,
  of: { tenantId: string; delegationId: string },
  wait: { waitMs: number; left: AbortSignal },
): Promise<Delegation | 'time_up' | 'left'> {
  try {
    const end = await waitForDelegation(resources, of, wait);
    if (end !== 'ended') return end;
    return await readDelegation(resources, { tenantId: of.tenantId, id: of.delegationId });
  } catch (error) {
    if (!isPassing(error)) throw error;
    return wait.left.aborted ? 'left' : 'time_up';
  }
}

export interface DelegationsPage {
  tenantId: string;
  parentId: string;
  state: 'active' | 'ended' | null;
  /** The id of the call after which the page begins; null: the newest. */
  after: string | null;
  limit: number;
}

/** A call of a list; `activity` is that of an active one. */
export interface ShownCall {
  call: ListedCall;
  status: 'running' | ResultStatus;
  activity: Activity | null;
}

export interface Activity {
  inTool: boolean;
  /** Of the child that was last heard of; null: none ever was. */
  secondsSinceProgress: number | null;
  children: (ActivityRow & { secondsSinceActivity: number | null })[];
}

/** A page of what the session and the others of its chain have delegated, newest first. */
export async function listDelegations(
  resources: Resources,
  page: DelegationsPage,
): Promise<{
  calls: ShownCall[];
  hasMore: boolean;
  activeCount: number;
  activeTaskCount: number;
}> {
  const { tenantId, parentId, state, after, limit } = page;
  if (after !== null && !after.startsWith('deleg_')) {
    throw invalid('after', 'is not the id of a delegation');
  }
  const now = resources.clock.now();
  const [tipId] = await inboxesOf(resources, { tenantId, sessionId: parentId });
  return await resources.database.run(async (db) => {
    const { rows, hasMore } = await selectCallPage(db, {
      tenantId,
      parentTip: tipId,
      state,
      before: after,
      limit,
      maxBytes: ANSWER_MAX_BYTES,
    });
    const ids = rows.filter((call) => call.endedAt === null).map((call) => call.delegationId);
    const activity = ids.length === 0 ? [] : await selectActivity(db, { tenantId, ids });
    return {
      calls: rows.map((call) => showCall(call, activity, now)),
      hasMore,
      activeCount: await countActiveCalls(db, { tenantId, tipId }),
      activeTaskCount: await countActiveTasks(db, { tenantId, tipId }),
    };
  });
}

function showCall(call: ListedCall, activity: readonly ActivityRow[], now: number): ShownCall {
  if (call.endedAt !== null) {
    const statuses = call.unitStatuses.filter((status) => status !== 'running');
    return { call, status: unitStatus(statuses.map((status) => ({ status }))), activity: null };
  }
  const children = activity
    .filter((row) => row.delegationId === call.delegationId)
    .map((row) => ({
      ...row,
      secondsSinceActivity: row.progressAt && secondsBetween(row.progressAt, now),
    }));
  const ages = children.map((child) => child.secondsSinceActivity).filter((age) => age !== null);
  return {
    call,
    status: 'running',
    activity: {
      inTool: children.some((child) => !child.ended && child.currentTool !== null),
      secondsSinceProgress: ages.length === 0 ? null : Math.min(...ages),
      children,
    },
  };
}
