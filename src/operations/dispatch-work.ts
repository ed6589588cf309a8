import { decideDispatch, type DispatchDecision } from '../domain/dispatch.ts';
import type { Resources } from '../resources.ts';
import type { Queryable } from '../store/database.ts';
import { setInboxOpened } from '../store/inboxes.ts';
import { insertStubs, selectAncestry } from '../store/sessions.ts';
import { StorageUnavailable } from '../store/unavailable.ts';
import {
  adoptChild,
  insertDispatchedWork,
  leaveTextToEarlierTurns,
  loadForDispatch,
  lockForDispatch,
  setCurrentWork,
} from '../store/work.ts';
import { deliverParkedForParent, deliverParkedOfChild } from './deliver-parked.ts';
import { oncePerKey } from './once-per-key.ts';

export interface Dispatch {
  tenantId: string;
  parentId: string;
  childId: string;
  /** null: the child's own name. */
  agent: string | null;
  title: string | null;
  createdBy: string | null;
  deadlineSeconds: number | null;
}

export interface DispatchedWork {
  workId: string;
  parentSessionId: string;
  childSessionId: string;
  agent: string;
  title: string;
  createdAt: number;
}

/** A second round delivers what the first has found parked; each further one means a race. */
const ROUNDS_MAX = 10;

/**
 * Gives the child a new turn of work, for the last session of the parent's chain; both sessions are
 * made if they are not there. A repeat with the same key gets the first answer again. Refusals
 * change nothing.
 */
export async function dispatchWork(
  resources: Resources,
  dispatch: Dispatch,
  request: { path: string; key: string | null },
): Promise<DispatchedWork & { replayed: boolean }> {
  const { tenantId, childId } = dispatch;
  for (let round = 0; round < ROUNDS_MAX; round += 1) {
    await deliverParkedOfChild(resources, { tenantId, childId });
    const { answer, openedInboxOf } = await decideAndWrite(resources, dispatch, request);
    if (openedInboxOf !== null) {
      await deliverParkedForParent(resources, { tenantId, parentId: openedInboxOf });
    }
    if (answer !== null) return { ...answer.value, replayed: answer.replayed };
  }
  throw new StorageUnavailable('contended');
}

/** One transaction. Without an answer another round is needed: something was parked, or in the way. */
async function decideAndWrite(
  resources: Resources,
  dispatch: Dispatch,
  request: { path: string; key: string | null },
) {
  const { tenantId } = dispatch;
  return await resources.database.transaction(async (tx) => {
    let openedInboxOf = null as string | null;
    const keyed = { ...request, tenantId, body: dispatch };
    const answer = await oncePerKey(tx, resources, keyed, async () => {
      const now = resources.clock.now();
      const decided = await lockAndDecide(tx, dispatch, now);
      if (decided === null) return null;
      const { decision, parentId } = decided;
      if (decision.kind === 'refuse') throw decision.refusal;
      await prepare(tx, dispatch, decision, parentId, now);
      if (decision.opensInbox) openedInboxOf = parentId;
      if (decision.kind === 'deliver_parked_first') return null;
      const workId = resources.ids.next('subagent');
      const value = await begin(tx, dispatch, decision, { workId, parentId, now });
      return { status: 201, value };
    });
    return { answer, openedInboxOf };
  });
}

/**
 * Decides under the locks of all sessions that matter; null if there have come to be more of them
 * while the locks were waited for: taken one after the other they would be out of order.
 */
async function lockAndDecide(
  tx: Queryable,
  dispatch: Dispatch,
  now: number,
): Promise<{ decision: DispatchDecision; parentId: string } | null> {
  const { tenantId, parentId, childId } = dispatch;
  await insertStubs(tx, { tenantId, ids: [...new Set([parentId, childId])], now });
  const before = await loadSituation(tx, dispatch);
  await lockForDispatch(tx, { tenantId, ids: before.touched });
  const { touched, parent, child, parentDescends } = await loadSituation(tx, dispatch);
  if (!touched.every((id) => before.touched.includes(id))) return null;
  const decision = decideDispatch(dispatch, parent, child, parentDescends);
  return { decision, parentId: parent.id };
}

async function loadSituation(tx: Queryable, { tenantId, parentId, childId }: Dispatch) {
  const { parent, child } = await loadForDispatch(tx, { tenantId, parentId, childId });
  const { rootId, passesSought } =
    child.parentTip === null
      ? await selectAncestry(tx, { tenantId, sessionId: parent.id, soughtId: childId })
      : { rootId: parent.id, passesSought: childId === parent.id };
  // The root as well, so that nobody hangs it under the child meanwhile.
  return { parent, child, parentDescends: passesSought, touched: [parent.id, childId, rootId] };
}

/** What must be so before the child's results can go to the parent. */
async function prepare(
  tx: Queryable,
  { tenantId, childId }: Dispatch,
  { adoption, opensInbox }: Exclude<DispatchDecision, { kind: 'refuse' }>,
  parentId: string,
  now: number,
): Promise<void> {
  if (adoption !== null) await adoptChild(tx, { ...adoption, tenantId, childId, now });
  if (opensInbox) await setInboxOpened(tx, { tenantId, sessionId: parentId, now });
}

async function begin(
  tx: Queryable,
  { tenantId, childId, createdBy, deadlineSeconds }: Dispatch,
  { agent, title, formerDigest }: Extract<DispatchDecision, { kind: 'dispatch' }>,
  { workId, parentId, now }: { workId: string; parentId: string; now: number },
): Promise<DispatchedWork> {
  const dispatched = {
    workId,
    parentSessionId: parentId,
    childSessionId: childId,
    agent,
    title,
    createdAt: now,
  };
  const deadlineAt = deadlineSeconds === null ? null : now + Math.ceil(deadlineSeconds * 1000);
  await insertDispatchedWork(tx, { ...dispatched, tenantId, createdBy, deadlineAt, formerDigest });
  await setCurrentWork(tx, { tenantId, childId, workId });
  await leaveTextToEarlierTurns(tx, { tenantId, childId });
  return dispatched;
}
