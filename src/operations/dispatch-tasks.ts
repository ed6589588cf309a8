import {
  decideDispatch,
  newChild,
  refuseTasks,
  type DispatchDecision,
} from '../domain/dispatch.ts';
import { firstDueAt, type StallSettings } from '../domain/liveness.ts';
import type { Resources } from '../resources.ts';
import { selectRoute, type Route } from '../store/closing-interrupts.ts';
import type { Queryable } from '../store/database.ts';
import {
  adoptChildren,
  insertChildren,
  insertDispatchedWork,
  leaveTextToEarlierTurns,
  loadDispatchedChildren,
  loadDispatchingParent,
  lockForDispatch,
  setCurrentWork,
  type DispatchedRow,
  type LoadedParent,
} from '../store/dispatch.ts';
import { setInboxOpened } from '../store/inboxes.ts';
import { insertStubs, lockSessions, selectAncestorsAmong } from '../store/sessions.ts';
import { StorageUnavailable } from '../store/unavailable.ts';
import { announceChanged } from './announce.ts';
import { deliverParkedForParent, deliverParkedOfChildren } from './deliver-parked.ts';
import { lookUpUnknown } from './look-up-session.ts';
import { oncePerKey, type Answer } from './once-per-key.ts';
import { isPassing } from './unavailable.ts';

/*
 * The one way by which children get work: some tasks of one parent, in one transaction and a number
 * of statements that does not grow with the tasks. Plain work is the form with one task and no join.
 */

/** A task for a child. */
export interface OrderedTask {
  /** null: a new child is made for it. */
  childId: string | null;
  /** null: the child's own name. */
  agent: string | null;
  title: string | null;
  /** Of a delegation: where its result belongs. */
  task: DispatchedRow['task'];
  /** Where in the request its child is named. */
  path: string;
}

/** What holds for all tasks of a dispatch. */
export interface Terms {
  createdBy: string | null;
  /** From the dispatch; null: none. */
  deadlineMs: number | null;
  childTimeoutMs: number | null;
  /** null: they never stall. */
  stall: StallSettings | null;
}

export interface TasksDispatch<Value extends object> {
  tenantId: string;
  parentId: string;
  tasks: readonly OrderedTask[];
  terms: Terms;
  path: string;
  /** The Idempotency-Key, and what it stands for. */
  key: string | null;
  body: unknown;
  /** Where the call is for the sessions of a route, that route. */
  route: string | null;
  /** Looks, under all locks, whether the parent may dispatch at all; throws the refusal. */
  admit: (tx: Queryable, parent: LoadedParent, route: Route) => Promise<void>;
  /** What else is written in the same transaction, and the answer. */
  record: (tx: Queryable, dispatched: Dispatched) => Promise<Answer<Value>>;
}

/** Tasks that have been given to their children. */
export interface Dispatched {
  parent: LoadedParent;
  rows: DispatchedRow[];
  now: number;
}

const NO_ROUTE: Route = { isClosed: false, openId: null };

/** A second round delivers what the first has found parked; each further one means a race. */
const ROUNDS_MAX = 10;

/**
 * Gives each child a new turn of work, for the last session of the parent's chain: all of them or
 * none. Sessions are made if they are not there. A repeat with the same key gets the first answer
 * again. Refusals change nothing.
 */
export async function dispatchTasks<Value extends object>(
  resources: Resources,
  dispatch: TasksDispatch<Value>,
): Promise<Value & { replayed: boolean }> {
  const { tenantId } = dispatch;
  const ids = dispatch.tasks.map((task) => task.childId).filter((id) => id !== null);
  await lookUpUnknown(resources, { tenantId, ids });
  for (let round = 0; round < ROUNDS_MAX; round += 1) {
    await deliverParkedOfChildren(resources, { tenantId, ids });
    const { answer, openedInboxOf, parentId } = await decideAndWrite(resources, dispatch, ids);
    if (openedInboxOf !== null) {
      await deliverParkedForOpened(resources, { tenantId, parentId: openedInboxOf });
    }
    if (answer !== null) {
      if (parentId !== null) announceChanged(resources, [{ tenantId, sessionId: parentId }]);
      return { ...answer.value, replayed: answer.replayed };
    }
  }
  throw new StorageUnavailable('contended');
}

/** What was dispatched stays so, whatever becomes of this: the sweep tries again. */
async function deliverParkedForOpened(
  resources: Resources,
  of: { tenantId: string; parentId: string },
): Promise<void> {
  try {
    await deliverParkedForParent(resources, of);
  } catch (error) {
    if (!isPassing(error)) throw error;
  }
}

/** One transaction. Without an answer another round is needed: something was parked, or in the way. */
async function decideAndWrite<Value extends object>(
  resources: Resources,
  dispatch: TasksDispatch<Value>,
  childIds: string[],
) {
  return await resources.database.transaction(async (tx) => {
    let openedInboxOf = null as string | null;
    let parentId = null as string | null;
    const answer = await oncePerKey(tx, resources, dispatch, async () => {
      const now = resources.clock.now();
      const situation = await lockAndLoad(tx, dispatch, childIds, now);
      if (situation === null) return null;
      const { parent } = situation;
      await dispatch.admit(tx, parent, situation.route);
      const decided = decideAll(resources, dispatch, situation);
      const opensInbox = decided.some(({ decision }) => decision.opensInbox);
      await prepare(tx, dispatch, { decided, parent, opensInbox, now });
      if (opensInbox) openedInboxOf = parent.id;
      if (!decided.every(isDispatch)) return null;
      parentId = parent.id;
      const rows = await begin(tx, resources, dispatch, { decided, parent, now });
      return await dispatch.record(tx, { parent, rows, now });
    });
    return { answer, openedInboxOf, parentId };
  });
}

type Situation = Awaited<ReturnType<typeof loadSituation>>;

/**
 * Loads under the locks of all sessions that matter; null if more or stronger ones have come to be
 * needed while these were waited for: taken one after the other they would be out of order. An
 * inbox is opened under a lock that deliveries wait for, and parks as well.
 */
async function lockAndLoad(
  tx: Queryable,
  { tenantId, parentId, route }: { tenantId: string; parentId: string; route: string | null },
  childIds: string[],
  now: number,
): Promise<Situation | null> {
  const of = { tenantId, parentId, childIds, route };
  await insertStubs(tx, { tenantId, ids: [...new Set([parentId, ...childIds])], now });
  const before = await loadSituation(tx, of);
  const lock = before.parent.inboxEverOpened ? lockForDispatch : lockSessions;
  await lock(tx, { tenantId, ids: before.touched });
  const situation = await loadSituation(tx, of);
  const areLocked = situation.touched.every((id) => before.touched.includes(id));
  const mayOpen = situation.parent.inboxEverOpened || !before.parent.inboxEverOpened;
  return areLocked && mayOpen ? situation : null;
}

async function loadSituation(
  tx: Queryable,
  of: { tenantId: string; parentId: string; childIds: string[]; route: string | null },
) {
  const { tenantId, parentId, childIds } = of;
  const parent = await loadDispatchingParent(tx, { tenantId, parentId });
  const route = of.route === null ? NO_ROUTE : await selectRoute(tx, { tenantId, route: of.route });
  const children =
    childIds.length === 0 ? [] : await loadDispatchedChildren(tx, { tenantId, ids: childIds });
  const orphans = children.filter((child) => child.parentTip === null).map(({ id }) => id);
  const { rootId, found } =
    orphans.length === 0
      ? { rootId: parent.id, found: [] }
      : await selectAncestorsAmong(tx, { tenantId, sessionId: parent.id, soughtIds: orphans });
  // The root as well, so that nobody hangs it under a child meanwhile.
  const touched = [parent.id, ...childIds, rootId, route.openId].filter((id) => id !== null);
  return {
    parent,
    route,
    children: new Map(children.map((child) => [child.id, child])),
    ancestors: new Set([...found, parent.id]),
    touched: [...new Set(touched)],
  };
}

type Going = Exclude<DispatchDecision, { kind: 'refuse' }>;

interface Decided<Kind extends Going = Going> {
  task: OrderedTask;
  childId: string;
  decision: Kind;
}

function isDispatch(decided: Decided): decided is Decided<Extract<Going, { kind: 'dispatch' }>> {
  return decided.decision.kind === 'dispatch';
}

function decideAll(
  resources: Resources,
  { tasks }: { tasks: readonly OrderedTask[] },
  { parent, children, ancestors }: Situation,
): Decided[] {
  const decided = tasks.map((task) => {
    const childId = task.childId ?? resources.ids.next('session');
    const child = children.get(childId) ?? newChild(childId);
    const parentDescends = child.parentTip === null && ancestors.has(childId);
    const itself = childId === parent.id;
    return {
      task,
      childId,
      decision: decideDispatch(task, parent, child, parentDescends || itself),
    };
  });
  const refused = decided.flatMap(({ task, decision }) =>
    decision.kind === 'refuse' ? [{ path: task.path, refusal: decision.refusal }] : [],
  );
  if (refused.length > 0) throw refuseTasks(refused);
  return decided as Decided[];
}

/** What must be so before the children's results can go to the parent. */
async function prepare(
  tx: Queryable,
  { tenantId }: { tenantId: string },
  to: { decided: readonly Decided[]; parent: LoadedParent; opensInbox: boolean; now: number },
): Promise<void> {
  const { parent, now } = to;
  const adopted = to.decided.filter(({ task, decision }) => task.childId && decision.adoption);
  if (adopted.length > 0) {
    const children = adopted.map(({ childId, decision }) => ({
      childId,
      names: decision.adoption?.names ?? null,
    }));
    await adoptChildren(tx, { tenantId, parentSessionId: parent.id, children, now });
  }
  if (to.opensInbox) await setInboxOpened(tx, { tenantId, sessionId: parent.id, now });
}

async function begin(
  tx: Queryable,
  { ids }: Resources,
  { tenantId, terms }: { tenantId: string; terms: Terms },
  to: {
    decided: readonly Decided<Extract<Going, { kind: 'dispatch' }>>[];
    parent: LoadedParent;
    now: number;
  },
): Promise<DispatchedRow[]> {
  const { decided, parent, now } = to;
  const of = { tenantId, parentSessionId: parent.id };
  const made = decided.filter(({ task }) => task.childId === null);
  if (made.length > 0) {
    const children = made.map(({ childId, task: { agent, title } }) => ({ childId, agent, title }));
    await insertChildren(tx, { ...of, children, now });
  }
  const rows = decided.map(({ task: { task }, childId, decision }) => ({
    workId: ids.next('subagent'),
    childSessionId: childId,
    agent: decision.agent,
    title: decision.title,
    task,
  }));
  await insertDispatchedWork(tx, { ...of, ...clocksOf(terms, now), createdAt: now, rows });
  await setCurrentWork(tx, { tenantId, rows });
  const known = decided.filter(({ task }) => task.childId !== null).map(({ childId }) => childId);
  if (known.length > 0) await leaveTextToEarlierTurns(tx, { tenantId, ids: known });
  return rows;
}

function clocksOf({ createdBy, deadlineMs, childTimeoutMs, stall }: Terms, now: number) {
  const dueAt = firstDueAt({
    status: 'launching',
    createdAt: now,
    deadlineMs,
    childTimeoutMs,
    stall,
    interruptedAt: null,
    graceMs: null,
    stalled: null,
  });
  const deadlineAt = deadlineMs === null ? null : now + deadlineMs;
  return { createdBy, deadlineAt, childTimeoutMs, stall, dueAt };
}
