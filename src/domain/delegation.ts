import { isBlank, codePoints, storable } from './text.ts';
import { cutSummaries } from './text-budget.ts';
import type { LiveStatus, Outcome } from './work.ts';

/*
 * A delegation: one call by which a parent hands tasks to children. It is joined by units; a unit
 * yields one item when its last task has ended, whatever became of the tasks. Results and items have
 * the names that they have on the wire, so that what is stored is what is sent.
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

/** How a task can end: `unknown` only by a lost runner, never by a child's own word. */
export type ResultStatus = 'completed' | FailedStatus;

/** How a task can end without success. */
export type FailedStatus = (typeof FAILED_STATUSES)[number];

/** The ends that are no success. */
export const FAILED_STATUSES = [
  'failed',
  'error',
  'timeout',
  'interrupted',
  'stalled',
  'unknown',
] as const;

/** True for an end that is no success. */
export function isFailure(status: ResultStatus): status is FailedStatus {
  return status !== 'completed';
}

/** How long a child was silent, and how long it was allowed to be. */
export interface StallFigures {
  quietMs: number;
  thresholdMs: number;
  phase: 'idle' | 'in_tool';
  graceMs: number;
}

/** How one task ended: what its report says, or what is said in its place. */
export interface TaskEnd {
  status: ResultStatus;
  /** Never null if completed; else the partial output, if there is any. */
  summary: string | null;
  error: string | null;
  exitReason: string;
  /** It hit its limit of iterations before it was done. */
  truncated: boolean;
  /** 0 if nobody ever said. */
  apiCalls: number;
  model: string | null;
  stall?: StallFigures;
  timeoutMs?: number;
}

/** What is known of a task before it ends: from its heartbeats, and from the dispatch. */
export interface TaskSoFar {
  apiCalls: number | null;
  model: string | null;
}

/** A terminal report of a task's child. */
export interface TaskReport extends TaskSoFar {
  reportStatus: 'idle' | 'failed';
  outcome: Outcome | null;
  /** The text of the report, looked up where it had none. */
  output: string;
  /** The child's `data.result`; nothing of it is certain. */
  result: Readonly<Record<string, unknown>> | null;
  /** Of the work entry, when the report arrived. */
  workStatus: LiveStatus;
}

const MAX_ITERATIONS = 'max_iterations';

/**
 * What a report says of its task. The child's own `status` goes before the report's outcome, and
 * that before `idle` or `failed`; `failed: true` goes before any success. Within the grace of an
 * interrupt only an explicit completion is one; after a stall the report counts as it is.
 */
export function resultFromReport(report: TaskReport): TaskEnd {
  const claim = claimOf(report.result);
  const status = reportedStatus(report, claim);
  const exitReason = exitReasonOf(status, claim);
  return {
    status,
    summary: summaryOf(status, report, claim),
    error: errorOf(status, report, claim),
    exitReason,
    truncated: exitReason === MAX_ITERATIONS,
    apiCalls: claim.apiCalls ?? report.apiCalls ?? 0,
    model: claim.model ?? report.model,
  };
}

/** What a child says of its own result, as far as it can be understood. */
interface Claim {
  status: ResultStatus | null;
  failed: boolean;
  summary: string | null;
  error: string | null;
  exitReason: string | null;
  apiCalls: number | null;
  model: string | null;
}

/** The words that children use for their ends. */
const CLAIMED_STATUSES: ReadonlyMap<unknown, ResultStatus> = new Map<unknown, ResultStatus>([
  ['completed', 'completed'],
  ['success', 'completed'],
  ['failed', 'failed'],
  ['failure', 'failed'],
  ['error', 'error'],
  ['timeout', 'timeout'],
  ['interrupted', 'interrupted'],
  ['cancelled', 'interrupted'],
  ['stalled', 'stalled'],
]);

function claimOf(result: Readonly<Record<string, unknown>> | null): Claim {
  const said = result ?? {};
  return {
    status: CLAIMED_STATUSES.get(said['status']) ?? null,
    failed: said['failed'] === true,
    summary: textOf(said['summary']),
    error: textOf(said['error']),
    exitReason: nameOf(said['exit_reason']),
    apiCalls: countOf(said['api_calls']),
    model: nameOf(said['model']),
  };
}

function textOf(value: unknown): string | null {
  return typeof value === 'string' && !isBlank(value) ? storable(value) : null;
}

/** Names are at most so long, in code points, as any id that a client sends. */
const NAME_MAX = 512;

function nameOf(value: unknown): string | null {
  const name = textOf(value);
  return name !== null && codePoints(name) <= NAME_MAX ? name : null;
}

function countOf(value: unknown): number | null {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0 ? value : null;
}

const OUTCOME_STATUSES: Record<Outcome, ResultStatus> = {
  completed: 'completed',
  failed: 'failed',
  cancelled: 'interrupted',
  interrupted: 'interrupted',
};

function reportedStatus(report: TaskReport, claim: Claim): ResultStatus {
  const said = saidStatus(report, claim);
  if (report.workStatus === 'cancelling') return said === 'completed' ? said : 'interrupted';
  return said ?? (report.reportStatus === 'idle' ? 'completed' : 'failed');
}

/** The status that is said in so many words; null: none is. */
function saidStatus({ outcome }: TaskReport, claim: Claim): ResultStatus | null {
  const said = claim.status ?? (outcome === null ? null : OUTCOME_STATUSES[outcome]);
  return claim.failed && (said === null || said === 'completed') ? 'failed' : said;
}

function exitReasonOf(status: ResultStatus, { exitReason }: Claim): string {
  switch (status) {
    case 'completed':
      return exitReason ?? 'completed';
    case 'failed':
    case 'error':
      return exitReason === null || exitReason === 'completed' ? 'error' : exitReason;
    case 'timeout':
    case 'interrupted':
    case 'stalled':
    case 'unknown':
      return status;
  }
}

function summaryOf(status: ResultStatus, report: TaskReport, claim: Claim): string | null {
  if (claim.summary !== null) return claim.summary;
  if (!isFailure(status)) return report.output;
  return report.reportStatus === 'idle' && !isBlank(report.output) ? report.output : null;
}

const UNEXPLAINED: Record<FailedStatus, string> = {
  failed: 'The sub-agent reported that it failed.',
  error: 'The sub-agent ended with an error.',
  timeout: 'The sub-agent timed out.',
  interrupted: 'The sub-agent was interrupted before it had finished.',
  stalled: 'The sub-agent stopped responding.',
  unknown: 'The outcome of the sub-agent is unknown.',
};

function errorOf(status: ResultStatus, report: TaskReport, claim: Claim): string | null {
  if (!isFailure(status)) return claim.error;
  const failure = report.reportStatus === 'failed' && report.output !== '' ? report.output : null;
  const said = claim.error ?? failure;
  if (said === null) return UNEXPLAINED[status];
  return status === 'timeout' && !said.includes('timed out')
    ? `The sub-agent timed out: ${said}`
    : said;
}

/** The end of a child that made no progress and did not answer the interrupt within its grace. */
export function stalledResult(task: TaskSoFar & StallFigures): TaskEnd {
  const { quietMs, thresholdMs, phase, graceMs } = task;
  const where = phase === 'in_tool' ? ' inside a tool' : '';
  const error =
    `The sub-agent stopped responding: it made no progress for ${inSeconds(quietMs)}${where} ` +
    `(allowed: ${inSeconds(thresholdMs)}), did not answer an interrupt within ` +
    `${inSeconds(graceMs)}, and was cancelled.`;
  return { ...endOf('stalled', task, error), stall: { quietMs, thresholdMs, phase, graceMs } };
}

/** The end of a child whose time was up: since its last progress, or since its dispatch. */
export function timedOutResult(
  task: TaskSoFar & { cause: 'child_timeout' | 'deadline'; timeoutMs: number },
): TaskEnd {
  const { cause, timeoutMs } = task;
  const error =
    cause === 'child_timeout'
      ? `The sub-agent timed out after ${inSeconds(timeoutMs)} without progress.`
      : `The sub-agent timed out: it had not finished ${inSeconds(timeoutMs)} after its dispatch.`;
  return { ...endOf('timeout', task, error), timeoutMs };
}

function inSeconds(durationMs: number): string {
  return `${Math.round(durationMs / 100) / 10} s`;
}

/** The end of a child whose runner was lost before it had reported. */
export function lostRunnerResult(task: TaskSoFar): TaskEnd {
  const error = 'The runner of the sub-agent was lost before it had reported: outcome unknown.';
  return endOf('unknown', task, error);
}

/** What ended a task without a report of its child. */
export type Interruption =
  'interrupted' | 'stopped' | 'withdrawn' | 'session_deleted' | 'session_closed' | 'client_gone';

const INTERRUPTIONS: Record<Interruption, string> = {
  interrupted: UNEXPLAINED.interrupted,
  stopped: 'The sub-agent was stopped before it had finished.',
  withdrawn: 'The dispatch was withdrawn before the sub-agent had reported.',
  session_deleted: 'The session was deleted before the sub-agent had finished.',
  session_closed: 'The parent session was closed before the sub-agent had finished.',
  client_gone: 'The client that waited for the sub-agent went away before it had finished.',
};

/** The end of a child that was stopped, or that did not answer an interrupt within its grace. */
export function interruptedResult(task: TaskSoFar & { by: Interruption }): TaskEnd {
  return endOf('interrupted', task, INTERRUPTIONS[task.by]);
}

function endOf(status: FailedStatus, { apiCalls, model }: TaskSoFar, error: string): TaskEnd {
  return {
    status,
    summary: null,
    error,
    exitReason: status,
    truncated: false,
    apiCalls: apiCalls ?? 0,
    model,
  };
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

/** What an item repeats of its call, so that it can be read on its own. */
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
 * The item of an ended unit, as it is sent: with the fields of its only task, if it has but one; of
 * several only with an error, and only if a runner was lost.
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
  display_text: string;
  text: string;
}

/** The early word of a task that failed while its unit still runs. */
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
  display_text: string;
  text: string;
}

/** What is stored of an item: all but the texts, which are rendered from it. */
export type DelegationDetails = Omit<DelegationItem, 'display_text' | 'text'>;
/** The same of an early item. */
export type TaskFailedDetails = Omit<TaskFailedItem, 'display_text' | 'text'>;

/** When a unit was dispatched and when it, or its task, ended: RFC 3339. */
export interface Span {
  dispatchedAt: string;
  completedAt: string;
}

/** What the item of an ended unit says; `results` are those of all its tasks. */
export function delegationDetails(
  ended: Span & {
    origin: DelegationOrigin;
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
    ...ended.origin,
  };
  if (only && others.length === 0) Object.assign(details, fieldsOfOnly(only, ended.origin));
  if (error !== null) details.error = error;
  return details;
}

function fieldsOfOnly(result: TaskResult, { goals }: DelegationOrigin): OnlyTaskFields {
  return {
    goal: goals[result.task_index] ?? '',
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

/** What the early item of a failed task says. */
export function taskFailedDetails(
  failed: Span & {
    origin: DelegationOrigin;
    unit: Pick<Unit, 'unitId' | 'group'>;
    result: TaskResult;
  },
): TaskFailedDetails {
  const [result = failed.result] = cutSummaries([failed.result]);
  return {
    type: 'task_failed',
    delegation_id: failed.unit.unitId,
    ...failed.origin,
    status: result.status,
    ...fieldsOfOnly(result, failed.origin),
    results: [result],
    group: failed.unit.group,
    dispatched_at: failed.dispatchedAt,
    completed_at: failed.completedAt,
    display_kind: 'task_failed',
  };
}
