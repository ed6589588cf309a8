import { createHash } from 'node:crypto';
import { decide, type Decision, type Report, type WorkState } from '../domain/report.ts';
import type { Resources } from '../resources.ts';
import { lockAndLoad, type LoadedReport } from '../store/report-load.ts';
import { batchStatements, type BatchWrites } from '../store/report-write.ts';

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
  return await resources.database.lane(async (lane) => {
    const loaded = await lockAndLoad(lane, reports, {
      locked,
      maxPendingItems,
      parkAfterAttempts,
      now,
    });
    const { settled, writes } = decideBatch(resources, reports, loaded, now);
    await lane.commit(Promise.all(batchStatements(lane, writes, now)));
    return settled;
  });
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
    if (decision.kind === 'deliver') taken.set(inboxKey, inBatch + 1);
    addWrites(writes, report, row, decision, resources);
    return { kind: 'decided', decision };
  });
  return { settled, writes };
}

function noWrites(): BatchWrites {
  return {
    sessions: [],
    insertedWork: [],
    updatedWork: [],
    items: [],
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
    case 'park':
    case 'parent_gone':
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
      writes.items.push({ ...item, ...of });
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
    case 'park':
    case 'parent_gone':
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
      return;
  }
}

function isNew(row: LoadedReport, work: WorkState): boolean {
  return work.workId !== row.state.work?.workId && work.workId !== row.state.named?.workId;
}
