import {
  unitError,
  unitStatus,
  type StallFields,
  type TaskResult,
  type Unit,
} from './delegation.ts';
import type { ResultStatus } from './task-end.ts';
import { cutSummaries } from './text-budget.ts';

/*
 * What the items of a delegation say, under the names that they have on the wire: that of an ended
 * unit, and the early word of a task that has failed.
 */

/** What an item repeats of its call, which keeps it once for them all. */
export interface DelegationOrigin {
  session_key: string | null;
  origin_ui_session_id: string | null;
  origin_session_id: string;
  parent_session_id: string;
  /** Of the whole call: a result's `task_index` counts in it. */
  goals: readonly string[];
  context: string | null;
  toolsets: readonly string[] | null;
  role: string | null;
  model: string | null;
}

/** What an item of one task says of it without its results being looked into. */
export interface OnlyTaskFields extends StallFields {
  goal: string;
  summary: string | null;
  error: string | null;
  api_calls: number;
  exit_reason: string;
}

/**
 * The item of an ended unit as it is sent, but for the texts, which are rendered from it: with the
 * fields of its only task, if it has but one; of several only with an error, and only if a runner was
 * lost.
 */
export interface DelegationItem extends DelegationOrigin, Partial<OnlyTaskFields> {
  type: 'async_delegation';
  /** The unit's. */
  delegation_id: string;
  status: ResultStatus;
  is_batch: true;
  results: readonly TaskResult[];
  group: string | null;
  dispatched_at: string;
  completed_at: string;
  total_duration_seconds: number;
  display_kind: 'async_delegation_complete';
}

/** The early word of a task that failed while its unit still runs, likewise. */
export interface TaskFailedItem extends DelegationOrigin, OnlyTaskFields {
  type: 'task_failed';
  /** The unit's. */
  delegation_id: string;
  /** The task's, as is the only result. */
  status: ResultStatus;
  results: readonly [TaskResult];
  group: string | null;
  dispatched_at: string;
  completed_at: string;
  display_kind: 'task_failed';
}

/** What is stored with an item: what is not its call's. */
type Own<Item> = Omit<Item, keyof DelegationOrigin | 'goal'> & {
  /** In the place of the call's, where the parent was continued since. */
  session_key?: string;
};
export type DelegationDetails = Own<DelegationItem>;
export type TaskFailedDetails = Own<TaskFailedItem>;

/** When a unit was dispatched and when it, or its task, ended: RFC 3339. */
export interface Span {
  dispatchedAt: string;
  completedAt: string;
}

/** What the item of an ended unit says of its own; `results` are those of all its tasks. */
export function delegationDetails(
  ended: Span & {
    unit: Pick<Unit, 'unitId' | 'group'>;
    results: readonly TaskResult[];
    totalDurationSeconds: number;
  },
): DelegationDetails {
  const results = cutSummaries(ended.results.toSorted((a, b) => a.task_index - b.task_index));
  const error = unitError(results);
  const [only, ...others] = results;
  const details: DelegationDetails = {
    type: 'async_delegation',
    delegation_id: ended.unit.unitId,
    status: unitStatus(results),
    is_batch: true,
    results,
    group: ended.unit.group,
    dispatched_at: ended.dispatchedAt,
    completed_at: ended.completedAt,
    total_duration_seconds: ended.totalDurationSeconds,
    display_kind: 'async_delegation_complete',
  };
  if (only && others.length === 0) Object.assign(details, fieldsOfOnly(only));
  if (error !== null) details.error = error;
  return details;
}

function fieldsOfOnly(result: TaskResult): Omit<OnlyTaskFields, 'goal'> {
  return {
    summary: result.summary,
    error: result.error,
    api_calls: result.api_calls,
    exit_reason: result.exit_reason,
    ...stallFieldsOf(result),
  };
}

function stallFieldsOf(result: TaskResult): StallFields {
  const { stalled_after_quiet_seconds, stall_threshold_seconds, stall_phase, stall_grace_seconds } =
    result;
  return {
    ...(stalled_after_quiet_seconds !== undefined && { stalled_after_quiet_seconds }),
    ...(stall_threshold_seconds !== undefined && { stall_threshold_seconds }),
    ...(stall_phase !== undefined && { stall_phase }),
    ...(stall_grace_seconds !== undefined && { stall_grace_seconds }),
  };
}

/** What the early item of a failed task says of its own. */
export function taskFailedDetails(
  failed: Span & { unit: Pick<Unit, 'unitId' | 'group'>; result: TaskResult },
): TaskFailedDetails {
  const [result = failed.result] = cutSummaries([failed.result]);
  return {
    type: 'task_failed',
    delegation_id: failed.unit.unitId,
    status: result.status,
    ...fieldsOfOnly(result),
    results: [result],
    group: failed.unit.group,
    dispatched_at: failed.dispatchedAt,
    completed_at: failed.completedAt,
    display_kind: 'task_failed',
  };
}

/** The item whole: what is stored with it, and what it repeats of its call. */
export function withOrigin<Details extends DelegationDetails | TaskFailedDetails>(
  details: Details,
  origin: DelegationOrigin,
) {
  const [only, ...others] = details.results;
  const isOnly = only !== undefined && others.length === 0;
  const item: object = {
    ...origin,
    ...details,
    ...(isOnly && { goal: origin.goals[only.task_index] ?? '' }),
  };
  return item as Extract<DelegationItem | TaskFailedItem, { type: Details['type'] }>;
}
