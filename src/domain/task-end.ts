import { fitsName } from './names.ts';
import { isBlank, storable } from './text.ts';
import type { EndedStatus, LiveStatus, Outcome } from './work.ts';

/* How one task of a delegation ends: what its child says of it, or what is said in its place. */

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
  result: SaidResult;
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

/** A child's `data.result`, as it came. */
export type SaidResult = Readonly<Record<string, unknown>> | null;

/** The words of the child's result, which are its text where the report has none; null: it has none. */
export function wordsOf(result: SaidResult): string | null {
  const { summary, error } = claimOf(result);
  return summary ?? error;
}

/** What two results that differ in it are not the same by; empty where nothing is said. */
export function contentOf(result: SaidResult): string {
  const { status, failed, summary, error, exitReason } = claimOf(result);
  const said = [status, failed || null, summary, error, exitReason];
  return said.every((each) => each === null) ? '' : JSON.stringify(said);
}

/** How the turn of a child ends that says so in its result, or by the outcome; null: it does not. */
export function endSaid(outcome: EndedStatus | null, result: SaidResult): EndedStatus | null {
  const claim = claimOf(result);
  const said = claim.status === null ? outcome : WORK_STATUSES[claim.status];
  return claim.failed && (said === null || said === 'completed') ? 'failed' : said;
}

/** What a child calls a stall or a time-out of its own is to its turn a failure like others. */
const WORK_STATUSES: Record<ResultStatus, EndedStatus> = {
  completed: 'completed',
  interrupted: 'interrupted',
  failed: 'failed',
  error: 'failed',
  timeout: 'failed',
  stalled: 'failed',
  unknown: 'failed',
};

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

function claimOf(result: SaidResult): Claim {
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

function nameOf(value: unknown): string | null {
  const name = textOf(value);
  return name !== null && fitsName(name) ? name : null;
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
