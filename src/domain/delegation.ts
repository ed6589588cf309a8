import { isFailure, type ResultStatus, type StallFigures, type TaskEnd } from './task-end.ts';

/*
 * A delegation: one call by which a parent hands tasks to children. It is joined by units; a unit
 * yields one item when its last task has ended, whatever became of the tasks. Results have the names
 * that they have on the wire, so that what is stored is what is sent.
 *
 *   task  -> ended     its report, or the clock, a lost runner, an interrupt in its place
 *   unit  -> ended     with the last of its tasks
 */

/** The tasks of a call that are joined into one item. */
export interface Unit {
  unitId: string;
  group: string | null;
  taskIndexes: number[];
}

/**
 * The units of a call: the call itself, or with independent completions one for each group, in the
 * order of first appearance, and one for each task without a group (an empty name is none).
 */
export function planUnits(
  callId: string,
  tasks: readonly { group?: string | null | undefined }[],
  independentCompletions: boolean,
): Unit[] {
  if (!independentCompletions) {
    return [{ unitId: callId, group: null, taskIndexes: tasks.map((_, index) => index) }];
  }
  const units = unitsByGroup(tasks);
  return units.map((unit, place) => ({
    unitId: units.length === 1 ? callId : `${callId}-${place + 1}`,
    ...unit,
  }));
}

function unitsByGroup(
  tasks: readonly { group?: string | null | undefined }[],
): Omit<Unit, 'unitId'>[] {
  const units: Omit<Unit, 'unitId'>[] = [];
  const byGroup = new Map<string, number[]>();
  for (const [index, task] of tasks.entries()) {
    const group = task.group || null;
    const joined = group === null ? undefined : byGroup.get(group);
    if (joined) {
      joined.push(index);
      continue;
    }
    const taskIndexes = [index];
    units.push({ group, taskIndexes });
    if (group !== null) byGroup.set(group, taskIndexes);
  }
  return units;
}

/** The figures of a stall, as they are sent. */
export interface StallFields {
  stalled_after_quiet_seconds?: number;
  stall_threshold_seconds?: number;
  stall_phase?: 'idle' | 'in_tool';
  stall_grace_seconds?: number;
}

/** The result of one task, as it is sent. */
export interface TaskResult extends StallFields {
  task_index: number;
  session_id: string;
  work_id: string;
  status: ResultStatus;
  summary: string | null;
  error: string | null;
  exit_reason: string;
  truncated: boolean;
  api_calls: number;
  duration_seconds: number;
  model: string | null;
  timeout_seconds?: number;
  /** The summary is cut in this item, and whole at the work entry; likewise the error. */
  summary_truncated?: true;
  error_truncated?: true;
}

/** A result as its work entry keeps it: with its child's output, where the result has other words. */
export type StoredResult = TaskResult & { output?: string };

/** The result that a task's end is sent as. */
export function taskResult(
  task: { taskIndex: number; sessionId: string; workId: string; durationSeconds: number },
  end: TaskEnd,
): TaskResult {
  const result: TaskResult = {
    task_index: task.taskIndex,
    session_id: task.sessionId,
    work_id: task.workId,
    status: end.status,
    summary: end.summary,
    error: end.error,
    exit_reason: end.exitReason,
    truncated: end.truncated,
    api_calls: end.apiCalls,
    duration_seconds: task.durationSeconds,
    model: end.model,
  };
  if (end.stall) Object.assign(result, stallFields(end.stall));
  if (end.timeoutMs !== undefined) result.timeout_seconds = end.timeoutMs / 1000;
  return result;
}

function stallFields(stall: StallFigures): StallFields {
  return {
    stalled_after_quiet_seconds: stall.quietMs / 1000,
    stall_threshold_seconds: stall.thresholdMs / 1000,
    stall_phase: stall.phase,
    stall_grace_seconds: stall.graceMs / 1000,
  };
}

/** Seconds from one instant to another, in fractions; a clock that was set back makes none. */
export function secondsBetween(from: number, to: number): number {
  return Math.max(0, to - from) / 1000;
}

/** The status of an ended unit. */
export function unitStatus(results: readonly Pick<TaskResult, 'status'>[]): ResultStatus {
  const [only, ...others] = results;
  if (only === undefined) return 'completed';
  if (others.length === 0) return only.status;
  if (results.some(({ status }) => status === 'unknown')) return 'unknown';
  return results.every(({ status }) => isFailure(status)) ? 'error' : 'completed';
}

/** How much is known of a unit that has lost a runner; null if it has lost none. */
export function recordedOfLost(results: readonly Pick<TaskResult, 'status'>[]): string | null {
  const lost = results.filter(({ status }) => status === 'unknown').length;
  if (lost === 0) return null;
  const recorded = results.length - lost;
  return `A runner was lost: ${recorded}/${results.length} child results were recorded.`;
}

/** What is said of a unit that has failed: that it has lost a runner, or what its only task says. */
export function unitError(results: readonly Pick<TaskResult, 'status' | 'error'>[]): string | null {
  const [only, ...others] = results;
  return recordedOfLost(results) ?? (others.length === 0 ? (only?.error ?? null) : null);
}
