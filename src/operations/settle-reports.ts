import { hash } from 'node:crypto';
import { decide } from '../domain/decide.ts';
import type { Decision, Report } from '../domain/report.ts';
import type { Resources } from '../resources.ts';
import { lockAndLoad, type LoadedReport } from '../store/report-load.ts';
import { batchStatements, type BatchWrites } from '../store/report-write.ts';
import { announceChanged, announceDelivered } from './announce.ts';
import { addWrites, createJoins, noWrites } from './batch-writes.ts';
import { changedSessions, parentEvents } from './after-settling.ts';

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
  const startedAt = performance.now();
  const { maxPendingItems, parkAfterAttempts } = resources.policy;
  const { rows, settled, writes } = await resources.database.lane(async (lane) => {
    const loaded = await lockAndLoad(lane, reports, {
      locked,
      maxPendingItems,
      roomy: resources.inboxRoom.known(),
      parkAfterAttempts,
      now,
    });
    const decided = decideBatch(resources, reports, loaded, now);
    await lane.commit(Promise.all(batchStatements(lane, decided.writes, now)));
    return { ...decided, rows: loaded };
  });
  resources.metrics.batchReports.observe(reports.length);
  resources.metrics.batchDurations.observe((performance.now() - startedAt) / 1000);
  rememberRoom(resources, rows, writes);
  announceDelivered(resources, [
    ...writes.items.map(({ tenantId, item }) => ({ tenantId, sessionId: item.sessionId })),
    // Who waits for a call in a request waits under its id.
    ...writes.units.map(({ tenantId, unit }) => ({ tenantId, sessionId: unit.delegationId })),
  ]);
  announceChanged(resources, changedSessions(reports, rows, writes));
  resources.wakes.submit(parentEvents(reports, rows, settled, writes));
  return settled;
}

function rememberRoom(
  { inboxRoom }: Resources,
  rows: readonly LoadedReport[],
  writes: BatchWrites,
): void {
  for (const { counted } of rows) {
    if (counted !== null) inboxRoom.counted(counted, counted.pending);
  }
  for (const { tenantId, item } of writes.items) {
    inboxRoom.delivered({ tenantId, sessionId: item.sessionId });
  }
}

/** Fingerprint of a result: equal ones are repeats. */
function resultDigest(status: string, output: string): string {
  return hash('sha256', `${status}\n${output}`, 'base64url');
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
    if (row.state.inbox) row.state.inbox.room -= inBatch;
    const decision = decide(report, row.state, {
      now,
      parkAfterAttempts: resources.policy.parkAfterAttempts,
      upstream: resources.upstream !== null,
      itemSeq: row.itemSeq,
      workId: resources.ids.next('subagent'),
      digest: resultDigest,
    });
    if (needsMoreLocks(decision, row)) return { kind: 'locked_elsewhere' };
    if (decision.kind === 'deliver' && decision.item) taken.set(inboxKey, inBatch + 1);
    addWrites(writes, report, row, decision, resources);
    if (decision.kind === 'deliver') joins.add(report, row, decision);
    return { kind: 'decided', decision };
  });
  joins.write(writes, now);
  return { settled: nameUnitItems(settled, reports, loaded, writes), writes };
}

/** Lets the reports of tasks name the item of their unit, where it has one. */
function nameUnitItems(
  settled: readonly Settled[],
  reports: readonly Report[],
  loaded: readonly LoadedReport[],
  writes: BatchWrites,
): Settled[] {
  const ended = new Map(
    writes.units.map(({ tenantId, unit }) => [`${tenantId}\0${unit.unitId}`, unit.lastItemSeq]),
  );
  return settled.map((outcome, at) => {
    const unit = loaded[at]?.unit ?? null;
    if (unit === null || outcome.kind !== 'decided') return outcome;
    const itemSeq = ended.get(`${reports[at]?.tenantId}\0${unit.unitId}`) ?? unit.lastItemSeq;
    return itemSeq === null ? outcome : { ...outcome, decision: inItem(outcome.decision, itemSeq) };
  });
}

/** The decision on a task's result, which is in the item of its unit. */
function inItem(decision: Decision, lastItemSeq: number): Decision {
  if (decision.kind === 'deliver') {
    return { ...decision, work: { ...decision.work, lastItemSeq } };
  }
  if (decision.kind === 'already_delivered') {
    return { ...decision, work: { ...decision.work, lastItemSeq } };
  }
  return decision;
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
