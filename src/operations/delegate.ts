import { deliveryMode, type DeclaredChannel } from '../domain/channel.ts';
import { planUnits, type Unit } from '../domain/delegation.ts';
import { refuseCall } from '../domain/dispatch.ts';
import type { StallSettings } from '../domain/liveness.ts';
import { invalid } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import { countActiveCalls, insertCall, insertUnits } from '../store/delegations.ts';
import { dispatchTasks, type OrderedTask } from './dispatch-tasks.ts';

/** How many calls of a parent may be active at once where nobody says otherwise. */
const MAX_CONCURRENT_DEFAULT = 10;

export interface OrderedDelegation {
  tenantId: string;
  /** The session that was asked. */
  sessionId: string;
  tasks: readonly {
    goal: string;
    childId: string | null;
    agent: string | null;
    title: string | null;
    group: string | null;
    model: string | null;
  }[];
  context: string | null;
  toolsets: string[] | null;
  role: string | null;
  model: string | null;
  sessionKey: string | null;
  originUiSessionId: string | null;
  /** null: as the session has it. */
  maxConcurrent: number | null;
  independentCompletions: boolean;
  childTimeoutMs: number | null;
  deadlineMs: number;
  stall: StallSettings | null;
  notifyFailures: boolean;
  channel: DeclaredChannel | null;
  /** As the client sent it. */
  finite: unknown;
  /** The request's fields that are kept to be shown, as they were sent. */
  request: Record<string, unknown>;
}

export interface Delegated {
  delegationId: string;
  mode: 'background' | 'inline';
  tasks: { taskIndex: number; childSessionId: string; workId: string }[];
  units: Unit[];
}

/**
 * Hands the tasks over to their children, all of them or none, if the parent has room for another
 * call. A repeat with the same key gets the first answer again; a refusal changes nothing.
 */
export async function delegate(
  resources: Resources,
  order: OrderedDelegation,
  request: { path: string; key: string | null; body: unknown },
): Promise<Delegated & { replayed: boolean }> {
  refuseRepeatedChildren(order);
  const { tenantId } = order;
  const delegationId = resources.ids.next('deleg');
  const units = planUnits(delegationId, order.tasks, order.independentCompletions);
  return await dispatchTasks<Delegated>(resources, {
    ...request,
    tenantId,
    parentId: order.sessionId,
    tasks: tasksOf(order, delegationId, units),
    terms: {
      createdBy: null,
      deadlineMs: order.deadlineMs,
      childTimeoutMs: order.childTimeoutMs,
      stall: order.stall,
    },
    route: order.sessionKey,
    admit: async (tx, parent, route) => {
      const active = await countActiveCalls(tx, { tenantId, tipId: parent.id });
      const max = order.maxConcurrent ?? parent.maxConcurrent ?? MAX_CONCURRENT_DEFAULT;
      const closed = parent.closed || route.isClosed;
      const refusal = refuseCall({ ...parent, closed }, { active, max });
      if (refusal !== null) throw refusal;
    },
    record: async (tx, { parent, rows, now }) => {
      const { finite, channel: requestChannel } = order;
      const sessionChannel = parent.channel;
      const { mode, wakes } = deliveryMode({ finite, requestChannel, sessionChannel });
      const goesOn = parent.id !== order.sessionId;
      await insertCall(tx, {
        tenantId,
        delegationId,
        originSessionId: order.sessionId,
        parentSessionId: parent.id,
        mode,
        wakes,
        taskCount: order.tasks.length,
        goals: order.tasks.map((task) => task.goal),
        context: order.context,
        toolsets: order.toolsets,
        role: order.role,
        model: order.model,
        sessionKey: goesOn ? parent.id : order.sessionKey,
        originUiSessionId: order.originUiSessionId,
        channel: requestChannel === null ? null : { ...requestChannel },
        request: order.request,
        notifyFailures: order.notifyFailures,
        createdAt: now,
      });
      await insertUnits(tx, { tenantId, delegationId, units });
      const tasks = rows.map(({ childSessionId, workId }, taskIndex) => ({
        taskIndex,
        childSessionId,
        workId,
      }));
      return { status: 202, value: { delegationId, mode, tasks, units } };
    },
  });
}

function refuseRepeatedChildren({ tasks }: OrderedDelegation): void {
  const seen = new Set<string>();
  for (const [at, { childId }] of tasks.entries()) {
    if (childId === null) continue;
    if (seen.has(childId)) {
      throw invalid(pathOf(at), 'this session is given another task of the same call');
    }
    seen.add(childId);
  }
}

function pathOf(taskIndex: number): string {
  return `tasks.${taskIndex}.child_session_id`;
}

function tasksOf(
  order: OrderedDelegation,
  delegationId: string,
  units: readonly Unit[],
): OrderedTask[] {
  const unitIds = new Map(
    units.flatMap(({ unitId, taskIndexes }) => taskIndexes.map((index) => [index, unitId])),
  );
  return order.tasks.map(({ childId, agent, title, goal, model }, taskIndex) => {
    const unitId = unitIds.get(taskIndex);
    if (unitId === undefined) throw new Error('every task belongs to a unit');
    return {
      childId,
      agent,
      title,
      path: pathOf(taskIndex),
      task: { delegationId, unitId, taskIndex, goal, model: model ?? order.model },
    };
  });
}
