import { join, type JoiningTask, type UnitState } from '../domain/join.ts';
import type { Decision, Report, ReportedInbox, WorkWrite } from '../domain/report.ts';
import { isLive } from '../domain/work.ts';
import type { Resources } from '../resources.ts';
import { instantToWire } from '../store/column-types.ts';
import type { LoadedReport } from '../store/report-load.ts';
import type { BatchWrites } from '../store/report-write.ts';

/*
 * What the decisions of a batch write, gathered by table, so that each table is written once.
 */

/** Adds what one decision writes. Tasks are joined apart: what their units write depends on all. */
export function addWrites(
  writes: BatchWrites,
  report: Report,
  row: LoadedReport,
  decision: Decision,
  resources: Resources,
): void {
  const of = { tenantId: report.tenantId, childId: report.sessionId };
  if ('session' in decision && decision.session) {
    writes.sessions.push({
      tenantId: report.tenantId,
      childId: report.sessionId,
      change: decision.session,
    });
  }
  switch (decision.kind) {
    case 'deliver': {
      const { work, item } = decision;
      addWork(writes, row, report.tenantId, work);
      if (item) writes.items.push({ tenantId: report.tenantId, item });
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
      if (decision.late) {
        writes.late.push({ ...decision.late, tenantId: report.tenantId, seq: row.itemSeq });
      }
      if (report.origin.kind === 'parked') {
        writes.settledParked.push({ ...of, id: report.origin.id });
      }
      return;
    case 'interrupt':
      addWork(writes, row, report.tenantId, decision.work);
      return;
    case 'park':
    case 'parent_gone':
      if (decision.kind === 'park' && decision.usesText) writes.usedTexts.push(of);
      writes.parked.push({
        ...decision.park,
        ...of,
        id: resources.ids.next('parked'),
        traceparent: report.traceparent,
        result: report.origin.kind === 'end' ? report.origin.task : report.result,
      });
      return;
    case 'status':
      if (decision.work) addWork(writes, row, report.tenantId, decision.work);
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
    case 'refuse_work_id':
    case 'look_up_session':
    case 'look_up_text':
    case 'deliver_parked_first':
    case 'settled_elsewhere':
    case 'not_known':
      return;
  }
}

function addWork(
  writes: BatchWrites,
  { state }: LoadedReport,
  tenantId: string,
  work: WorkWrite,
): void {
  const isThere = work.workId === state.work?.workId || work.workId === state.named?.workId;
  if (isThere) writes.updatedWork.push({ tenantId, work });
  else writes.insertedWork.push({ tenantId, work });
}

/** Gathers the tasks that a batch records, by unit, and ends the units that have no others left. */
export function createJoins() {
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
    joined.tasks.push({
      result: work.result,
      wasLive,
      itemSeq,
      traceparent: report.traceparent,
    });
  }

  function write(writes: BatchWrites, now: number): void {
    const instant = { ms: now, text: instantToWire(now) };
    for (const { tenantId, unit, inbox, tasks } of units.values()) {
      const joined = join(unit, tasks, inbox, instant);
      if (joined.unit) writes.units.push({ unit: joined.unit, tenantId });
      for (const item of joined.items) writes.items.push({ item, tenantId });
    }
  }

  return { add, write };
}

type Deliver = Extract<Decision, { kind: 'deliver' }>;

/** Nothing to write, yet. */
export function noWrites(): BatchWrites {
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
