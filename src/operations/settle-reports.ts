import { createHash } from 'node:crypto';
import {
  decide,
  type Decision,
  type Report,
  type ReportedInbox,
  type WorkState,
} from '../domain/report.ts';
import { isLive } from '../domain/work.ts';
import { instantToWire } from '../store/column-types.ts';
import { join, type JoiningTask, type UnitState } from '../domain/join.ts';
import type { Resources } from '../resources.ts';
import { lockAndLoad, type LoadedReport } from '../store/report-load.ts';
import { batchStatements, type BatchWrites } from '../store/report-write.ts';
import { announceDelivered } from './announce.ts';

/*
 * One transaction for a batch of reports, at most one a child: lock and load, decide, write and
 * commit. Nothing is answered before the commit.
 */

export type Settled =
  | { kind: 'decided'; decision: Decision }
  /** A row that it needs is locked elsewhere: to be settled alone, waiting for the lock. */
  | { kind: 'locked_elsewhere' };

/**
 * Settles the reports in one transaction, in their order; `wait` waits for locks and makes a row
 * for a session that is not even known by name. Throws where nothing was committed.
 */
export async function settleReports(
  resources: Resources,
  reports: readonly Report[],
  locked: 'skip' | 'wait',
): Promise<Settled[]> {
  const now = resources.clock.now();
  const { maxPendingItems, parkAfterAttempts } = resources.policy;
  const { settled, writes } = await resources.database.lane(async (lane) => {
    const loaded = await lockAndLoad(lane, reports, {
      locked,
      maxPendingItems,
      parkAfterAttempts,
      now,
    });
    const decided = decideBatch(resources, reports, loaded, now);
    await lane.commit(Promise.all(batchStatements(lane, decided.writes, now)));
    return decided;
  });
  announceDelivered(resources, [
    ...writes.items,
    // Who waits for a call in a request waits under its id.
    ...writes.units.map(({ tenantId, delegationId }) => ({ tenantId, sessionId: delegationId })),
  ]);
  return settled;
}

/** Fingerprint of a result: equal ones are repeats. */
export function resultDigest(status: string, output: string): string {
  return createHash('sha256').update(`${status}\n${output}`).digest('base64url');
}

function decideBatch(
  resources: Resources,
  reports: readonly Report[],
  loaded: readonly LoadedReport[],
  now: number,
): { settled: Settled[]; writes: BatchWrites } {
  const writes = noWrites();
  const joins = createJoins();
  const taken = new Map<string, number>();
  const settled = reports.map((report, at): Settled => {
    const row = loaded[at];
    if (!row) throw new Error('one loaded row a report');
    const inboxKey = `${report.tenantId}\0${row.state.inbox?.sessionId}`;
    const inBatch = taken.get(inboxKey) ?? 0;
    const inbox = row.state.inbox && { ...row.state.inbox, room: row.state.inbox.room - inBatch };
    const decision = decide(
      report,
      { ...row.state, inbox },
      {
        now,
        parkAfterAttempts: resources.policy.parkAfterAttempts,
        upstream: resources.upstream !== null,
        itemSeq: row.itemSeq,
        workId: resources.ids.next('subagent'),
        digest: resultDigest,
      },
    );
    if (needsMoreLocks(decision, row)) return { kind: 'locked_elsewhere' };
    if (decision.kind === 'deliver' && decision.item) taken.set(inboxKey, inBatch + 1);
    addWrites(writes, report, row, decision, resources);
    if (decision.kind === 'deliver') joins.add(report, row, decision);
    return { kind: 'decided', decision };
  });
  joins.write(writes, now);
  return { settled, writes };
}

/** Gathers the tasks that a batch records, by unit, and ends the units that have no others left. */
function createJoins() {
  const units = new Map<
    string,
    { tenantId: string; unit: UnitState; inbox: ReportedInbox; tasks: JoiningTask[] }
  >();

  function add(report: Report, row: LoadedReport, { work }: Deliver): void {
    const { unit, state, itemSeq } = row;
    if (work.result === null || unit === null || state.inbox === null) return;
    const { tenantId } = report;
    const key = `${tenantId}\0${unit.unitId}`;
    const joined = units.get(key) ?? { tenantId, unit, inbox: state.inbox, tasks: [] };
    units.set(key, joined);
    const before = [state.work, state.named].find((entry) => entry?.workId === work.workId);
    const wasLive = before !== undefined && before !== null && isLive(before.status);
    joined.tasks.push({ result: work.result, wasLive, itemSeq });
  }

  function write(writes: BatchWrites, now: number): void {
    const instant = { ms: now, text: instantToWire(now) };
    for (const { tenantId, unit, inbox, tasks } of units.values()) {
      const joined = join(unit, tasks, inbox, instant);
      if (joined.unit) writes.units.push({ ...joined.unit, tenantId });
      for (const item of joined.items) writes.items.push({ ...item, tenantId });
    }
  }

  return { add, write };
}

type Deliver = Extract<Decision, { kind: 'deliver' }>;

function noWrites(): BatchWrites {
  return {
    sessions: [],
    insertedWork: [],
    updatedWork: [],
    items: [],
    units: [],
    responses: [],
    usedTexts: [],
    parked: [],
    settledParked: [],
    late: [],
  };
}

function needsMoreLocks(decision: Decision, row: LoadedReport): boolean {
  switch (decision.kind) {
    case 'deliver':
      return !row.sessionLocked || !row.inboxLocked || !row.callLocked;
    case 'park':
    case 'parent_gone':
    case 'interrupt':
      return !row.sessionLocked || !row.inboxLocked;
    case 'status':
    case 'already_delivered':
    case 'not_a_subagent':
      return decision.session !== null && !row.sessionLocked;
    case 'refuse_work_id':
    case 'look_up_session':
    case 'look_up_text':
    case 'deliver_parked_first':
    case 'settled_elsewhere':
    case 'not_known':
      return false;
  }
}

function addWrites(
  writes: BatchWrites,
  report: Report,
  row: LoadedReport,
  decision: Decision,
  resources: Resources,
): void {
  const of = { tenantId: report.tenantId, childId: report.sessionId };
  if ('session' in decision && decision.session) {
    writes.sessions.push({ ...decision.session, ...of });
  }
  switch (decision.kind) {
    case 'deliver': {
      const { work, item } = decision;
      if (isNew(row, work)) writes.insertedWork.push({ ...work, ...of });
      else writes.updatedWork.push({ ...work, ...of });
      if (item) writes.items.push({ ...item, tenantId: of.tenantId });
      if (work.resultResponseId !== null) {
        writes.responses.push({
          ...of,
          responseId: work.resultResponseId,
          workId: work.workId,
          delivered: true,
        });
      }
      if (decision.usesText) writes.usedTexts.push(of);
      if (report.origin.kind === 'parked') {
        writes.settledParked.push({ ...of, id: report.origin.id });
      }
      return;
    }
    case 'already_delivered':
      if (decision.late) writes.late.push({ ...decision.late, ...of });
      if (report.origin.kind === 'parked') {
        writes.settledParked.push({ ...of, id: report.origin.id });
      }
      return;
    case 'interrupt':
      if (isNew(row, decision.work)) writes.insertedWork.push({ ...decision.work, ...of });
      else writes.updatedWork.push({ ...decision.work, ...of });
      return;
    case 'park':
    case 'parent_gone':
      if (decision.kind === 'park' && decision.usesText) writes.usedTexts.push(of);
      writes.parked.push({
        ...decision.park,
        ...of,
        id: resources.ids.next('parked'),
        traceparent: report.traceparent,
        result: report.result,
      });
      return;
    case 'status':
      if (decision.work) writes.updatedWork.push({ ...decision.work, ...of });
      if (decision.announces !== null && row.state.work) {
        writes.responses.push({
          ...of,
          responseId: decision.announces,
          workId: row.state.work.workId,
          delivered: false,
        });
      }
      return;
    case 'not_a_subagent':
      if (report.origin.kind === 'parked') {
        writes.settledParked.push({ ...of, id: report.origin.id });
      }
      return;
    case 'refuse_work_id':
    case 'look_up_session':
    case 'look_up_text':
    case 'deliver_parked_first':
    case 'settled_elsewhere':
    case 'not_known':
      return;
  }
}

function isNew(row: LoadedReport, work: WorkState): boolean {
  return work.workId !== row.state.work?.workId && work.workId !== row.state.named?.workId;
}
