import { secondsBetween, unitStatus, type TaskResult } from './delegation.ts';
import { delegationDetails, taskFailedDetails } from './delegation-item.ts';
import { isFailure, type ResultStatus } from './task-end.ts';
import type { ItemWrite, ReportedInbox } from './report.ts';

/*
 * The join: a unit ends with the last of its tasks, in the transaction that records it, under the
 * lock of its call. What its children reported since is all that its item needs.
 */

/** A moment, and how answers write it. */
export interface Instant {
  ms: number;
  text: string;
}

/** A unit as it stands before this transaction. */
export interface UnitState {
  unitId: string;
  delegationId: string;
  group: string | null;
  ended: boolean;
  revision: number;
  lastItemSeq: number | null;
  /** How many of its tasks have not ended; where some must stay open, at least so many. */
  open: number;
  /** The results of those that have; null where it cannot end by this transaction. */
  results: TaskResult[] | null;
  call: {
    mode: 'background' | 'inline';
    wakes: boolean;
    notifyFailures: boolean;
    dispatchedAt: Instant;
    /** The session that its results were to go to when it was dispatched. */
    parentSessionId: string;
  };
}

/** A task's result that this transaction records. */
export interface JoiningTask {
  result: TaskResult;
  /** false: it follows a result of the same task. */
  wasLive: boolean;
  /** A place in the order of delivery, for an item that it may bring about. */
  itemSeq: number;
  /** The trace that the report belongs to. */
  traceparent: string | null;
}

export interface UnitWrite {
  unitId: string;
  delegationId: string;
  status: ResultStatus;
  endedAt: number;
  revision: number;
  lastItemSeq: number | null;
}

export interface Joined {
  /** null: the unit runs on. */
  unit: UnitWrite | null;
  items: ItemWrite[];
}

/** What the results that are recorded together do to their unit. */
export function join(
  unit: UnitState,
  tasks: readonly JoiningTask[],
  inbox: ReportedInbox,
  now: Instant,
): Joined {
  const open = unit.open - tasks.filter((task) => task.wasLive).length;
  if (open > 0) return { unit: null, items: earlyItems(unit, tasks, inbox, now) };
  if (unit.results === null) throw new Error('a unit that ends has its results loaded');
  const byIndex = new Map(
    [...unit.results, ...tasks.map((task) => task.result)].map((result) => [
      result.task_index,
      result,
    ]),
  );
  const results = [...byIndex.values()];
  const delivers = unit.call.mode === 'background';
  const revision = unit.revision + (delivers ? 1 : 0);
  const seq = tasks.at(-1)?.itemSeq ?? 0;
  const ended: UnitWrite = {
    unitId: unit.unitId,
    delegationId: unit.delegationId,
    status: unitStatus(results),
    endedAt: now.ms,
    revision,
    lastItemSeq: delivers ? seq : null,
  };
  if (!delivers) return { unit: ended, items: [] };
  const details = delegationDetails({
    unit,
    results,
    totalDurationSeconds: secondsBetween(unit.call.dispatchedAt.ms, now.ms),
    ...spanOf(unit, now),
  });
  // New members before the spread: behind it each costs microseconds.
  const item: ItemWrite = {
    seq,
    source: `unit:${unit.unitId}:${revision}`,
    type: 'async_delegation',
    status: ended.status,
    traceparent: tasks.at(-1)?.traceparent ?? null,
    details: { ...details, ...liveKey(unit, inbox) },
    followsSeq: unit.lastItemSeq,
    revision,
    ...itemOf(unit, inbox, now),
  };
  return { unit: ended, items: [item] };
}

/** The early word of tasks that failed while their unit runs on, where it was asked for. */
function earlyItems(
  unit: UnitState,
  tasks: readonly JoiningTask[],
  inbox: ReportedInbox,
  now: Instant,
): ItemWrite[] {
  const { mode, notifyFailures } = unit.call;
  if (mode !== 'background' || !notifyFailures) return [];
  return tasks
    .filter(({ wasLive, result }) => wasLive && isFailure(result.status))
    .map(({ result, itemSeq, traceparent }) => ({
      ...itemOf(unit, inbox, now),
      seq: itemSeq,
      source: `task_failed:${result.work_id}`,
      type: 'task_failed',
      workId: result.work_id,
      childSessionId: result.session_id,
      status: result.status,
      traceparent,
      details: {
        ...taskFailedDetails({ unit, result, ...spanOf(unit, now) }),
        ...liveKey(unit, inbox),
      },
      followsSeq: null,
      revision: 1,
    }));
}

/** Once the parent was continued, the session that goes on is the key of its results. */
function liveKey({ call }: UnitState, { sessionId }: ReportedInbox): { session_key?: string } {
  return sessionId === call.parentSessionId ? {} : { session_key: sessionId };
}

function itemOf(unit: UnitState, inbox: ReportedInbox, now: Instant) {
  return {
    sessionId: inbox.sessionId,
    delegationId: unit.delegationId,
    workId: null,
    childSessionId: null,
    agent: '',
    title: '',
    output: '',
    disposition: inbox.disposition,
    wakes: unit.call.wakes,
    recovered: false,
    responseId: null,
    createdBy: null,
    deliveredAt: now.ms,
  };
}

function spanOf(unit: UnitState, now: Instant) {
  return { dispatchedAt: unit.call.dispatchedAt.text, completedAt: now.text };
}
