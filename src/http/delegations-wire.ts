import { z } from '@hono/zod-openapi';
import type { DeclaredChannel } from '../domain/channel.ts';
import { unitError, type TaskResult, type Unit } from '../domain/delegation.ts';
import { FAILED_STATUSES } from '../domain/task-end.ts';
import type { StallSettings } from '../domain/liveness.ts';
import { nameOrNull } from '../domain/names.ts';
import type { OrderedDelegation } from '../operations/delegate.ts';
import type { Delegation, ShownCall } from '../operations/read-delegations.ts';
import {
  clamped,
  clampedWhole,
  keyOrEmpty,
  instant,
  instantOrNull,
  instantOut,
  name,
  sessionId,
  text,
  title,
} from './wire.ts';

/* Delegations as requests and answers have them. */

const TASKS_MAX = 1_000;
/** A parent that runs more calls at once than this has no limit worth the name. */
const MAX_CONCURRENT_MAX = 10_000;
/** Ten years: the calendar of the database goes no further than it must. */
const SECONDS_MAX = 315_360_000;
const DEADLINE_DEFAULT_SECONDS = 86_400;
const STALL_DEFAULT: StallSettings = { idleMs: 450_000, inToolMs: 1_200_000, graceMs: 120_000 };

const duration = z
  .number()
  .gt(0)
  .transform((seconds) => Math.min(seconds, SECONDS_MAX))
  .meta({ description: `In seconds, fractions too; above ${SECONDS_MAX} it counts as that` });

const channelIn = z.object({
  kind: name.nullish(),
  async_delivery: z.boolean().nullish(),
  history_delivery: z.boolean().nullish(),
  route: name.nullish(),
});

const taskIn = z.object({
  goal: text(),
  child_session_id: sessionId.nullish(),
  agent: name.nullish(),
  title: title.nullish(),
  group: name.nullish(),
  model: name.nullish(),
});

/** What a parent asks for. */
export const delegationBody = z.object({
  tasks: z.array(taskIn).min(1).max(TASKS_MAX),
  context: text().nullish(),
  toolsets: z.array(name).nullish(),
  role: name.nullish(),
  model: name.nullish(),
  session_key: keyOrEmpty.nullish(),
  origin_ui_session_id: keyOrEmpty.nullish(),
  max_concurrent: clampedWhole({ min: 1, max: MAX_CONCURRENT_MAX }).nullish(),
  independent_completions: z.boolean().nullish(),
  child_timeout_seconds: duration.nullish(),
  deadline_seconds: duration.nullish(),
  stall: z
    .object({
      idle_seconds: duration.nullish(),
      in_tool_seconds: duration.nullish(),
      grace_seconds: clamped({ min: 0, max: SECONDS_MAX }).nullish(),
    })
    .nullable()
    .optional(),
  notify: z.boolean().nullish(),
  notify_failures: z.boolean().nullish(),
  channel: channelIn.nullish(),
  finite: z.unknown().optional(),
});

type DelegationBody = z.output<typeof delegationBody>;

/** The order that the body stands for. */
export function orderOf(
  of: { tenantId: string; sessionId: string },
  body: DelegationBody,
): OrderedDelegation {
  return {
    ...of,
    tasks: body.tasks.map((task) => ({
      goal: task.goal,
      childId: task.child_session_id ?? null,
      agent: nameOrNull(task.agent),
      title: task.title ?? null,
      group: nameOrNull(task.group),
      model: nameOrNull(task.model),
    })),
    context: body.context ?? null,
    toolsets: body.toolsets ?? null,
    role: body.role ?? null,
    model: nameOrNull(body.model),
    sessionKey: body.session_key || null,
    originUiSessionId: body.origin_ui_session_id || null,
    maxConcurrent: body.max_concurrent ?? null,
    independentCompletions: body.independent_completions ?? false,
    childTimeoutMs: body.child_timeout_seconds == null ? null : ms(body.child_timeout_seconds),
    deadlineMs: ms(body.deadline_seconds ?? DEADLINE_DEFAULT_SECONDS),
    stall: stallOf(body.stall),
    notifyFailures: body.notify_failures ?? false,
    channel: channelOf(body.channel),
    finite: body.finite,
    request: requestOf(body),
  };
}

function ms(seconds: number): number {
  return Math.ceil(seconds * 1000);
}

function stallOf(said: DelegationBody['stall']): StallSettings | null {
  if (said === null) return null;
  const { idleMs, inToolMs, graceMs } = STALL_DEFAULT;
  return {
    idleMs: said?.idle_seconds == null ? idleMs : ms(said.idle_seconds),
    inToolMs: said?.in_tool_seconds == null ? inToolMs : ms(said.in_tool_seconds),
    graceMs: said?.grace_seconds == null ? graceMs : ms(said.grace_seconds),
  };
}

function channelOf(said: DelegationBody['channel']): DeclaredChannel | null {
  return said == null ? null : sayings(said);
}

/** What of the request answers repeat, besides what has a place of its own. */
function requestOf(body: DelegationBody): Record<string, unknown> {
  const { finite } = body;
  const said = sayings({
    max_concurrent: body.max_concurrent,
    independent_completions: body.independent_completions,
    child_timeout_seconds: body.child_timeout_seconds,
    deadline_seconds: body.deadline_seconds,
    stall: body.stall && sayings(body.stall),
    notify: body.notify,
    finite: finite === true || finite === '1' ? finite : undefined,
  });
  // Here null is said: such children never stall.
  return body.stall === null ? { ...said, stall: null } : said;
}

function sayings(members: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(members).filter(([, value]) => value != null));
}

// ---- answers

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
