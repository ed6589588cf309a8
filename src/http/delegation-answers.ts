import { z } from '@hono/zod-openapi';
import { unitError, type TaskResult, type Unit } from '../domain/delegation.ts';
import { FAILED_STATUSES } from '../domain/task-end.ts';
import type { Delegation, ShownCall } from '../operations/read-delegations.ts';
import { instant, instantOrNull, instantOut } from './wire.ts';

/* Delegations as answers have them. */

const resultStatus = z.enum(['completed', ...FAILED_STATUSES]);
const callStatus = z.enum(['running', 'completed', ...FAILED_STATUSES]);

/** The figures of a stall, where there was one. */
export const stallFields = {
  stalled_after_quiet_seconds: z.number().optional(),
  stall_threshold_seconds: z.number().optional(),
  stall_phase: z.enum(['idle', 'in_tool']).optional(),
  stall_grace_seconds: z.number().optional(),
};

/** The result of a task. */
export const taskResultOut = z
  .object({
    task_index: z.int(),
    session_id: z.string(),
    work_id: z.string(),
    status: resultStatus,
    summary: z.string().nullable(),
    error: z.string().nullable(),
    exit_reason: z.string(),
    truncated: z.boolean(),
    api_calls: z.int(),
    duration_seconds: z.number(),
    model: z.string().nullable(),
    ...stallFields,
    timeout_seconds: z.number().optional(),
    summary_truncated: z.literal(true).optional(),
    error_truncated: z.literal(true).optional(),
  })
  .openapi('TaskResult');

const unitOut = z.object({
  delegation_id: z.string().openapi({ description: "The unit's" }),
  group: z.string().nullable(),
  task_indexes: z.array(z.int()),
});

const notifyOut = {
  notify: z.boolean().optional(),
  notify_unsupported: z.string().optional(),
};

/** The answer to a call whose results come later. */
export const dispatchedOut = z
  .object({
    status: z.literal('dispatched'),
    mode: z.literal('background'),
    delegation_id: z.string(),
    count: z.int(),
    goals: z.array(z.string()),
    tasks: z.array(
      z.object({ task_index: z.int(), child_session_id: z.string(), work_id: z.string() }),
    ),
    units: z.array(unitOut).optional(),
    ...notifyOut,
  })
  .openapi('DispatchedDelegation');

/** The answer to a call that is waited for, and has not ended. */
export const inlineRunningOut = z
  .object({
    mode: z.literal('inline'),
    status: z.literal('running'),
    delegation_id: z.string(),
    ...notifyOut,
  })
  .openapi('RunningInlineDelegation');

/** … and once it has. */
export const inlineOut = z
  .object({
    mode: z.literal('inline'),
    note: z.literal('no_async'),
    delegation_id: z.string(),
    results: z.array(taskResultOut),
    total_duration_seconds: z.number(),
    ...notifyOut,
  })
  .openapi('InlineDelegation');

/** The units as the dispatch names them. */
export function renderUnits(units: readonly Unit[]) {
  return units.map(({ unitId, group, taskIndexes }) => ({
    delegation_id: unitId,
    group,
    task_indexes: taskIndexes,
  }));
}

/** The results, as they were stored. */
export function renderResults(results: readonly TaskResult[]): z.output<typeof taskResultOut>[] {
  return [...results];
}

const callOut = z.object({
  delegation_id: z.string(),
  origin_session_id: z.string(),
  parent_session_id: z.string(),
  mode: z.enum(['background', 'inline']),
  status: callStatus,
  count: z.int(),
  goals: z.array(z.string()),
  context: z.string().nullable(),
  toolsets: z.array(z.string()).nullable(),
  role: z.string().nullable(),
  model: z.string().nullable(),
  session_key: z.string().nullable(),
  origin_ui_session_id: z.string().nullable(),
  channel: z.record(z.string(), z.unknown()).nullable(),
  max_concurrent: z.int().optional(),
  independent_completions: z.boolean().optional(),
  child_timeout_seconds: z.number().optional(),
  deadline_seconds: z.number().optional(),
  stall: z
    .object({
      idle_seconds: z.number().optional(),
      in_tool_seconds: z.number().optional(),
      grace_seconds: z.number().optional(),
    })
    .nullable()
    .optional()
    .openapi({ description: 'As it was asked for; null: its children never stall' }),
  finite: z.union([z.literal(true), z.literal('1')]).optional(),
  notify: z.boolean().optional(),
  notify_failures: z.boolean(),
  dispatched_at: instant,
  completed_at: instant.nullable(),
});

/** A call with all that is known of it. */
export const delegationOut = callOut
  .extend({
    units: z.array(
      unitOut.extend({
        status: callStatus,
        error: z.string().nullable(),
        completed_at: instant.nullable(),
      }),
    ),
    tasks: z.array(
      z.object({
        task_index: z.int(),
        child_session_id: z.string(),
        work_id: z.string(),
        delegation_id: z.string().openapi({ description: "The unit's" }),
        goal: z.string(),
        agent: z.string(),
        title: z.string(),
        model: z.string().nullable(),
        status: z.string(),
      }),
    ),
    results: z.array(taskResultOut).openapi({ description: 'Of the tasks that have ended' }),
    total_duration_seconds: z.number().nullable(),
  })
  .openapi('Delegation');

function renderCall({ call, status }: Pick<Delegation, 'call' | 'status'>) {
  return {
    delegation_id: call.delegationId,
    origin_session_id: call.originSessionId,
    parent_session_id: call.parentSessionId,
    mode: call.mode === 'inline' ? ('inline' as const) : ('background' as const),
    status,
    count: call.taskCount,
    goals: call.goals,
    context: call.context,
    toolsets: call.toolsets as string[] | null,
    role: call.role,
    model: call.model,
    session_key: call.sessionKey,
    origin_ui_session_id: call.originUiSessionId,
    channel: call.channel,
    ...call.request,
    notify_failures: call.notifyFailures,
    dispatched_at: instantOut(call.createdAt),
    completed_at: instantOrNull(call.endedAt),
  };
}

/** Its JSON. */
export function renderDelegation(delegation: Delegation): z.output<typeof delegationOut> {
  const { units, tasks, results, totalDurationSeconds } = delegation;
  return {
    ...renderCall(delegation),
    units: units.map((unit) => ({
      delegation_id: unit.unitId,
      group: unit.groupName,
      task_indexes: unit.taskIndexes,
      status: unit.status,
      error: unit.endedAt === null ? null : unitError(resultsOf(unit, results)),
      completed_at: instantOrNull(unit.endedAt),
    })),
    tasks: tasks.map((task) => ({
      task_index: task.taskIndex,
      child_session_id: task.childSessionId,
      work_id: task.workId,
      delegation_id: task.unitId,
      goal: task.goal,
      agent: task.agent,
      title: task.title,
      model: task.model,
      status: task.result?.status ?? task.status,
    })),
    results: renderResults(results),
    total_duration_seconds: totalDurationSeconds,
  };
}

function resultsOf({ taskIndexes }: Pick<Unit, 'taskIndexes'>, results: TaskResult[]) {
  const indexes = new Set(taskIndexes);
  return results.filter((result) => indexes.has(result.task_index));
}

/** A call in the list of its parent; of an active one with what its children are doing. */
export const listedDelegationOut = callOut
  .extend({
    in_tool: z.boolean().optional(),
    seconds_since_progress: z.number().nullable().optional(),
    children_activity: z
      .array(
        z.object({
          task_index: z.int(),
          session_id: z.string(),
          status: z.string(),
          api_calls: z.int().nullable(),
          current_tool: z.string().nullable(),
          seconds_since_activity: z.number().nullable(),
        }),
      )
      .optional(),
  })
  .openapi('ListedDelegation');

/** Its JSON. */
export function renderListedDelegation(shown: ShownCall): z.output<typeof listedDelegationOut> {
  const { activity } = shown;
  if (activity === null) return renderCall(shown);
  return {
    ...renderCall(shown),
    in_tool: activity.inTool,
    seconds_since_progress: activity.secondsSinceProgress,
    children_activity: activity.children.map((child) => ({
      task_index: child.taskIndex,
      session_id: child.sessionId,
      status: child.status,
      api_calls: child.apiCalls,
      current_tool: child.currentTool,
      seconds_since_activity: child.secondsSinceActivity,
    })),
  };
}
