import { secondsBetween, taskResult, type TaskResult } from './delegation.ts';
import { resultFromReport, wordsOf, type TaskEnd } from './task-end.ts';
import { responseIdOf } from './reported-turn.ts';
import type {
  DecideContext,
  Decision,
  ItemWrite,
  Report,
  ReportedInbox,
  ReportedSession,
  ReportState,
  TaskOf,
  WorkState,
  WorkWrite,
} from './report.ts';
import { resultOf } from './result-output.ts';
import { changed, ranSinceNow } from './session-change.ts';
import { isBlank } from './text.ts';
import type { Turn } from './turn.ts';
import {
  isLive,
  labelFromSnapshot,
  OUTCOMES,
  type EndedStatus,
  type LiveStatus,
  type Outcome,
} from './work.ts';

/* What a result that can be delivered writes: an item, or a task's result for its unit to join. */

/** A result that is to be delivered, and what it was found to be. */
export interface Delivery {
  turn: Turn;
  status: EndedStatus;
  output: string;
  digest: string;
  provisional: boolean;
  inbox: ReportedInbox;
  fromText: boolean;
  messageId: string | null;
}

/** Ends the turn with the result, or follows the one before. */
export function deliver(
  report: Report,
  state: ReportState,
  session: ReportedSession,
  context: DecideContext,
  delivery: Delivery,
): Decision {
  const entry = delivery.turn.work ?? rebuilt(report, session, context);
  const revision = entry.revision + 1;
  const result = entry.task && taskResultOf(report, entry, entry.task, delivery, context.now);
  const words = wordsOf(resultOf(report, entry)) ?? delivery.output;
  const work: WorkWrite = {
    endedAt: context.now,
    result,
    wholeOutput: result === null ? null : outputBeside(report, delivery, result),
    interrupt: null,
    mayStillRun: isSaidInPlace(report, delivery.status),
    // The members that it has already come last: new ones behind a spread cost microseconds.
    ...entry,
    status: delivery.status,
    revision,
    lastItemSeq: entry.task ? null : context.itemSeq,
    resultDigest: delivery.digest,
    resultResponseId: responseIdOf(report, state),
    provisional: delivery.provisional,
    awaitsText: delivery.status === 'completed' && isBlank(words),
  };
  const item: ItemWrite | null = entry.task
    ? null
    : {
        sessionId: delivery.inbox.sessionId,
        seq: context.itemSeq,
        source: `work:${entry.workId}:${revision}`,
        type: 'sub_agent',
        delegationId: null,
        workId: entry.workId,
        childSessionId: report.sessionId,
        agent: entry.agent,
        title: entry.title,
        status: delivery.status,
        output: delivery.output,
        details: null,
        disposition: delivery.inbox.disposition,
        wakes: true,
        recovered: entry.recovered,
        followsSeq: entry.lastItemSeq,
        revision,
        responseId: work.resultResponseId,
        createdBy: entry.createdBy,
        traceparent: report.traceparent,
        deliveredAt: context.now,
      };
  const change = changed(report, state, session, {
    currentWorkId: state.work === null ? entry.workId : session.currentWorkId,
    ranSinceResult: ranSinceNow(report, state, session),
    // What is said in the child's place it will not say again.
    lastDigest: report.origin.kind === 'end' ? session.lastDigest : delivery.digest,
    upstreamMessageId: delivery.messageId ?? session.upstreamMessageId,
  });
  const usesText = state.named === null && leavesTextBehind(report, state, delivery);
  return { kind: 'deliver', work, item, usesText, session: change };
}

/** The text kept here came before this result: it is none of the next. */
function leavesTextBehind(report: Report, { text }: ReportState, { fromText }: Delivery): boolean {
  switch (report.origin.kind) {
    case 'forwarder':
      return text?.fresh === true;
    case 'parked':
      return fromText;
    case 'late_text':
      return true;
    case 'end':
    case 'interrupt':
      return false;
  }
}

/** The task's result: what its child says of it, or what is said in its place. */
function taskResultOf(
  report: Report,
  entry: WorkState,
  task: TaskOf,
  { status, output }: Delivery,
  now: number,
): TaskResult {
  const durationSeconds = secondsBetween(entry.createdAt, now);
  const { workId, childSessionId: sessionId } = entry;
  const of = { taskIndex: task.taskIndex, sessionId, workId, durationSeconds };
  return taskResult(of, taskEndOf(report, entry, task, status, output));
}

/** The service itself ended the turn; also when it could only park that at first. */
function isSaidInPlace({ origin }: Report, status: EndedStatus): boolean {
  return origin.kind === 'end' || ['stalled', 'timeout', 'unknown'].includes(status);
}

function taskEndOf(
  report: Report,
  entry: WorkState,
  task: TaskOf,
  status: EndedStatus,
  output: string,
): TaskEnd {
  if (report.origin.kind === 'end') return report.origin.task;
  if (isSaidInPlace(report, status)) return report.result as unknown as TaskEnd;
  return resultFromReport({
    apiCalls: task.apiCalls,
    model: task.model,
    reportStatus: report.status === 'failed' ? 'failed' : 'idle',
    outcome: outcomeSaid(report.outcome),
    output,
    result: report.result,
    workStatus: statusAtReport(report, entry),
  });
}

/** The status of the entry when the report came. */
function statusAtReport({ origin, outcome }: Report, { status }: WorkState): LiveStatus {
  if (origin.kind === 'parked') return outcome === 'cancelled' ? 'cancelling' : 'running';
  return isLive(status) ? status : 'running';
}

/** The text of the child's report, where its result has words of its own; null: it has not. */
function outputBeside(
  report: Report,
  { status, output }: Delivery,
  { summary, error }: TaskResult,
): string | null {
  const isOwn = !isSaidInPlace(report, status) && wordsOf(report.result) !== null;
  const isThere = output === summary || error?.includes(output) === true;
  return !isOwn || isBlank(output) || isThere ? null : output;
}

function outcomeSaid(outcome: EndedStatus | null): Outcome | null {
  return OUTCOMES.find((known) => known === outcome) ?? null;
}

/** A work entry made from the child's snapshot, where none is there. */
export function rebuilt(
  report: Report,
  session: ReportedSession,
  context: DecideContext,
): WorkState {
  const { agent, title } = labelFromSnapshot(session);
  return {
    agent,
    title,
    workId: context.workId,
    parentSessionId: session.parentSessionId ?? '',
    childSessionId: report.sessionId,
    createdBy: null,
    recovered: true,
    status: 'running',
    createdAt: context.now,
    revision: 0,
    lastItemSeq: null,
    resultDigest: null,
    resultResponseId: null,
    provisional: false,
    awaitsText: false,
    task: null,
  };
}
