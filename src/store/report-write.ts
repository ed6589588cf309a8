import type {
  ItemWrite,
  LateWrite,
  ParkWrite,
  SessionChange,
  WorkWrite,
} from '../domain/report.ts';
import type { StoredResult } from '../domain/delegation.ts';
import type { UnitWrite } from '../domain/join.ts';
import { instantToWire } from './column-types.ts';
import type { Lane, LaneSql } from './database.ts';

/*
 * The second half of the ingest transaction: all decisions of a batch, written set-based, sent
 * together with the commit.
 */

/** All that a batch of decisions writes. */
export interface BatchWrites {
  sessions: (Of & { change: SessionChange })[];
  insertedWork: OfTenant<{ work: WorkWrite }>[];
  updatedWork: OfTenant<{ work: WorkWrite }>[];
  items: OfTenant<{ item: ItemWrite }>[];
  units: OfTenant<{ unit: UnitWrite }>[];
  responses: (Of & { responseId: string; workId: string; delivered: boolean })[];
  usedTexts: Of[];
  parked: (ParkWrite & Of & { id: string; traceparent: string | null; result: object | null })[];
  /** Parked rows whose report has been settled. */
  settledParked: (Of & { id: string })[];
  late: OfTenant<LateWrite & { seq: number }>[];
}

type OfTenant<Row> = Row & { tenantId: string };

/** The child session a row of a batch belongs to. */
interface Of {
  tenantId: string;
  childId: string;
}

/** The statements that write a batch's decisions: those that there are. */
export function batchStatements(
  { sql }: Lane,
  writes: BatchWrites,
  now: number,
): PromiseLike<unknown>[] {
  const at = instantToWire(now);
  const worked = [...writes.insertedWork, ...writes.updatedWork];
  const interrupts = worked.filter(({ work }) => work.interrupt !== null);
  const statements: PromiseLike<unknown>[] = [];
  if (writes.sessions.length > 0) statements.push(updateSessions(sql, writes.sessions));
  if (writes.insertedWork.length > 0) statements.push(insertWork(sql, writes.insertedWork, at));
  if (writes.updatedWork.length > 0) statements.push(updateWork(sql, writes.updatedWork, at));
  if (interrupts.length > 0) statements.push(requestInterrupts(sql, interrupts, at));
  if (writes.items.length > 0) statements.push(insertItems(sql, writes.items, at));
  if (writes.units.length > 0) {
    statements.push(endUnits(sql, writes.units, at), endCalls(sql, writes.units, at));
  }
  if (writes.responses.length > 0) statements.push(upsertResponses(sql, writes.responses));
  if (writes.usedTexts.length > 0) statements.push(markTextsUsed(sql, writes.usedTexts));
  if (writes.settledParked.length > 0) statements.push(deleteParked(sql, writes.settledParked));
  for (const row of writes.parked) statements.push(putParked(sql, row, at));
  if (writes.late.length > 0) {
    statements.push(insertLateResults(sql, writes.late, at), endInterrupts(sql, writes.late));
  }
  return statements;
}

function updateSessions(sql: LaneSql, rows: BatchWrites['sessions']): PromiseLike<unknown> {
  return sql`
    update sessions s set status = r.status, background_task_count = r.background_task_count,
      blocked_on = r.blocked_on, error_code = r.error_code, error_message = r.error_message,
      response_id = r.response_id, current_work_id = r.current_work_id,
      last_report = r.last_report, ran_since_result = r.ran_since_result,
      last_digest = r.last_digest, upstream_message_id = r.upstream_message_id
    from unnest(
      ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.childId)}::text[],
      ${rows.map((r) => r.change.status)}::text[],
      ${rows.map((r) => r.change.backgroundTaskCount)}::bigint[],
      ${rows.map((r) => r.change.blockedOn)}::text[],
      ${rows.map((r) => r.change.errorCode)}::text[],
      ${rows.map((r) => r.change.errorMessage)}::text[],
      ${rows.map((r) => r.change.responseId)}::text[],
      ${rows.map((r) => r.change.currentWorkId)}::text[],
      ${rows.map((r) => r.change.lastReport)}::text[],
      ${rows.map((r) => r.change.ranSinceResult)}::boolean[],
      ${rows.map((r) => r.change.lastDigest)}::text[],
      ${rows.map((r) => r.change.upstreamMessageId)}::text[]
    ) as r(tenant_id, id, status, background_task_count, blocked_on, error_code, error_message,
      response_id, current_work_id, last_report, ran_since_result, last_digest,
      upstream_message_id)
    where s.tenant_id = r.tenant_id and s.id = r.id`;
}

/** Only an entry that was rebuilt is new here; it ends at once unless it is to be interrupted. */
function insertWork(
  sql: LaneSql,
  rows: BatchWrites['insertedWork'],
  at: string,
): PromiseLike<unknown> {
  return sql`
    insert into work (tenant_id, work_id, parent_session_id, child_session_id, agent, title,
      recovered, status, created_at, ended_at, revision, last_item_seq, result_digest,
      result_response_id, awaits_text, interrupt_reason)
    select r.tenant_id, r.work_id, r.parent_id, r.child_id, r.agent, r.title, true, r.status,
      ${at}::timestamptz, case when r.ended then ${at}::timestamptz end, r.revision,
      r.last_item_seq, r.result_digest, r.result_response_id, r.awaits_text,
      case when r.may_still_run then r.status end
    from unnest(
      ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.work.workId)}::text[],
      ${rows.map((r) => r.work.parentSessionId)}::text[],
      ${rows.map((r) => r.work.childSessionId)}::text[],
      ${rows.map((r) => r.work.agent)}::text[], ${rows.map((r) => r.work.title)}::text[],
      ${rows.map((r) => r.work.status)}::text[],
      ${rows.map((r) => r.work.endedAt !== null)}::boolean[],
      ${rows.map((r) => r.work.revision)}::int[], ${rows.map((r) => r.work.lastItemSeq)}::bigint[],
      ${rows.map((r) => r.work.resultDigest)}::text[],
      ${rows.map((r) => r.work.resultResponseId)}::text[],
      ${rows.map((r) => r.work.awaitsText)}::boolean[],
      ${rows.map((r) => r.work.mayStillRun)}::boolean[]
    ) as r(tenant_id, work_id, parent_id, child_id, agent, title, status, ended, revision,
      last_item_seq, result_digest, result_response_id, awaits_text,
      may_still_run)`;
}

function updateWork(
  sql: LaneSql,
  rows: BatchWrites['updatedWork'],
  at: string,
): PromiseLike<unknown> {
  return sql`
    update work w set status = r.status,
      ended_at = case when r.ended then coalesce(w.ended_at, ${at}::timestamptz) end,
      due_at = case when not r.ended then w.due_at end,
      revision = r.revision, last_item_seq = r.last_item_seq, result_digest = r.result_digest,
      result_response_id = r.result_response_id, provisional = r.provisional,
      awaits_text = r.awaits_text,
      result = coalesce(r.result::jsonb, w.result),
      interrupt_reason = case when not r.ended then w.interrupt_reason
        when r.may_still_run then coalesce(w.interrupt_reason, r.status) end
    from unnest(
      ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.work.workId)}::text[],
      ${rows.map((r) => r.work.status)}::text[],
      ${rows.map((r) => r.work.endedAt !== null)}::boolean[],
      ${rows.map((r) => r.work.revision)}::int[], ${rows.map((r) => r.work.lastItemSeq)}::bigint[],
      ${rows.map((r) => r.work.resultDigest)}::text[],
      ${rows.map((r) => r.work.resultResponseId)}::text[],
      ${rows.map((r) => r.work.provisional)}::boolean[],
      ${rows.map((r) => r.work.awaitsText)}::boolean[],
      ${rows.map(({ work }) => storedResult(work))}::text[],
      ${rows.map((r) => r.work.mayStillRun)}::boolean[]
    ) as r(tenant_id, work_id, status, ended, revision, last_item_seq, result_digest,
      result_response_id, provisional, awaits_text, result, may_still_run)
    where w.tenant_id = r.tenant_id and w.work_id = r.work_id`;
}

function storedResult({ result, wholeOutput }: WorkWrite): string | null {
  if (result === null) return null;
  const stored: StoredResult = wholeOutput === null ? result : { ...result, output: wholeOutput };
  return JSON.stringify(stored);
}

/** Keeps why a child is asked to stop, and lets the clock of its grace run. */
function requestInterrupts(
  sql: LaneSql,
  rows: OfTenant<{ work: WorkWrite }>[],
  at: string,
): PromiseLike<unknown> {
  return sql`
    update work w set interrupt_reason = r.reason, interrupted_at = ${at}::timestamptz,
      grace_ms = r.grace_ms,
      due_at = least(w.due_at, ${at}::timestamptz + r.grace_ms * interval '1 millisecond')
    from unnest(
      ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.work.workId)}::text[],
      ${rows.map((r) => r.work.interrupt?.reason ?? null)}::text[],
      ${rows.map((r) => r.work.interrupt?.graceMs ?? null)}::bigint[]
    ) as r(tenant_id, work_id, reason, grace_ms)
    where w.tenant_id = r.tenant_id and w.work_id = r.work_id`;
}

function insertItems(sql: LaneSql, rows: BatchWrites['items'], at: string): PromiseLike<unknown> {
  return sql`
    insert into items (tenant_id, session_id, seq, source, type, delegation_id, work_id,
      child_session_id, agent, title, status, output, recovered, follows_seq, revision, response_id, created_by,
      traceparent, disposition, wakes, details, delivered_at)
    select r.tenant_id, r.session_id, r.seq, r.source, r.type, r.delegation_id, r.work_id,
      r.child_id, r.agent, r.title, r.status, r.output, r.recovered, r.follows_seq, r.revision, r.response_id,
      r.created_by, r.traceparent, r.disposition, r.wakes and r.disposition = 'turn',
      r.details::jsonb, ${at}::timestamptz
    from unnest(
      ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.item.sessionId)}::text[],
      ${rows.map((r) => r.item.seq)}::bigint[], ${rows.map((r) => r.item.source)}::text[],
      ${rows.map((r) => r.item.type)}::text[],
      ${rows.map((r) => r.item.delegationId)}::text[], ${rows.map((r) => r.item.workId)}::text[],
      ${rows.map((r) => r.item.childSessionId)}::text[], ${rows.map((r) => r.item.agent)}::text[],
      ${rows.map((r) => r.item.title)}::text[], ${rows.map((r) => r.item.status)}::text[],
      ${rows.map((r) => r.item.output)}::text[], ${rows.map((r) => r.item.recovered)}::boolean[],
      ${rows.map((r) => r.item.followsSeq)}::bigint[], ${rows.map((r) => r.item.revision)}::int[],
      ${rows.map((r) => r.item.responseId)}::text[], ${rows.map((r) => r.item.createdBy)}::text[],
      ${rows.map((r) => r.item.traceparent)}::text[],
      ${rows.map((r) => r.item.disposition)}::text[],
      ${rows.map((r) => r.item.wakes)}::boolean[],
      ${rows.map((r) => r.item.details && JSON.stringify(r.item.details))}::text[]
    ) as r(tenant_id, session_id, seq, source, type, delegation_id, work_id, child_id, agent, title,
      status, output, recovered, follows_seq, revision, response_id, created_by, traceparent, disposition,
      wakes, details)`;
}

function endUnits(sql: LaneSql, rows: BatchWrites['units'], at: string): PromiseLike<unknown> {
  return sql`
    update units u set status = r.status, ended_at = coalesce(u.ended_at, ${at}::timestamptz),
      revision = r.revision, last_item_seq = r.last_item_seq
    from unnest(
      ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.unit.unitId)}::text[],
      ${rows.map((r) => r.unit.status)}::text[], ${rows.map((r) => r.unit.revision)}::int[],
      ${rows.map((r) => r.unit.lastItemSeq)}::bigint[]
    ) as r(tenant_id, unit_id, status, revision, last_item_seq)
    where u.tenant_id = r.tenant_id and u.unit_id = r.unit_id`;
}

/**
 * A call ends with its last unit; it is locked, so that no two units are each other's last. One that
 * has ended keeps its time: asked for by "is null", the index of all live calls would be read whole.
 */
function endCalls(sql: LaneSql, rows: BatchWrites['units'], at: string): PromiseLike<unknown> {
  return sql`
    update delegations d set ended_at = coalesce(d.ended_at, ${at}::timestamptz)
    from (
      select distinct * from unnest(
        ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.unit.delegationId)}::text[]
      ) as q(tenant_id, delegation_id)
    ) r
    where d.tenant_id = r.tenant_id and d.delegation_id = r.delegation_id
      and not exists (
        select 1 from units u where u.delegation_id = d.delegation_id
          and u.tenant_id = d.tenant_id and u.ended_at is null)`;
}

function upsertResponses(sql: LaneSql, rows: BatchWrites['responses']): PromiseLike<unknown> {
  return sql`
    insert into turn_responses (tenant_id, child_session_id, response_key, work_id, delivered)
    select r.tenant_id, r.child_id, sha256(convert_to(r.response_id, 'UTF8')), r.work_id, r.delivered
    from unnest(
      ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.childId)}::text[],
      ${rows.map((r) => r.responseId)}::text[], ${rows.map((r) => r.workId)}::text[],
      ${rows.map((r) => r.delivered)}::boolean[]
    ) as r(tenant_id, child_id, response_id, work_id, delivered)
    on conflict (tenant_id, child_session_id, response_key) do update
      set delivered = true, work_id = excluded.work_id
      where excluded.delivered and not turn_responses.delivered`;
}

function markTextsUsed(sql: LaneSql, rows: Of[]): PromiseLike<unknown> {
  return sql`
    update assistant_texts x set fresh = false
    from unnest(${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.childId)}::text[])
      as r(tenant_id, id)
    where x.tenant_id = r.tenant_id and x.session_id = r.id and x.fresh`;
}

function deleteParked(sql: LaneSql, rows: BatchWrites['settledParked']): PromiseLike<unknown> {
  return sql`
    delete from parked_reports k
    using unnest(${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.id)}::text[])
      as r(tenant_id, id)
    where k.tenant_id = r.tenant_id and k.id = r.id`;
}

/** One row a turn: counts the try, and takes the report's content unless it must not. */
function putParked(
  sql: LaneSql,
  row: BatchWrites['parked'][number],
  at: string,
): PromiseLike<unknown> {
  const deadAt = row.state === 'dead' ? at : null;
  const result = row.result === null ? null : JSON.stringify(row.result);
  if (row.replaces === null) {
    return sql`
      insert into parked_reports (tenant_id, id, child_session_id, turn, state, parent_session_id,
        reason, status, outcome, output, response_id, work_id, result, after_running, traceparent,
        tries, first_at, last_at, dead_at)
      values (${row.tenantId}, ${row.id}, ${row.childId}, ${row.turn}, ${row.state},
        ${row.parentSessionId}, ${row.reason}, ${row.status}, ${row.outcome}, ${row.output},
        ${row.responseId}, ${row.workId}, ${result}::text::jsonb, ${row.afterRunning},
        ${row.traceparent}, ${row.tries}, ${at}, ${at}, ${deadAt})`;
  }
  return sql`
    update parked_reports set state = ${row.state}, dead_at = ${deadAt},
      parent_session_id = ${row.parentSessionId}, reason = ${row.reason}, tries = ${row.tries},
      last_at = ${at}, work_id = ${row.workId},
      status = case when ${row.takesContent} then ${row.status} else status end,
      outcome = case when ${row.takesContent} then ${row.outcome} else outcome end,
      output = case when ${row.takesContent} then ${row.output} else output end,
      result = case when ${row.takesContent} then ${result}::text::jsonb else result end,
      traceparent = case when ${row.takesContent} then ${row.traceparent} else traceparent end,
      response_id = case when ${row.takesContent} then coalesce(${row.responseId}, response_id)
        else coalesce(response_id, ${row.responseId}) end
    where tenant_id = ${row.tenantId} and id = ${row.replaces.id}`;
}

/** So many late results of an entry are kept at most … */
const LATE_KEPT = 100;
/** … and no more text of them, in bytes; but one in any case. */
const LATE_KEPT_BYTES = 16 * 1024 * 1024;

/**
 * Keeps results that came after the end of their turn, as far as the entry has room for them; equal
 * ones once. What a forwarder reports comes under its child's lock, and nobody else adds to what is counted.
 */
function insertLateResults(
  sql: LaneSql,
  rows: BatchWrites['late'],
  at: string,
): PromiseLike<unknown> {
  return sql`
    insert into late_results (tenant_id, work_id, digest, seq, status, output, response_id,
      reported_at)
    select r.tenant_id, r.work_id,
      sha256(convert_to(json_build_array(r.status, r.response_id, r.output)::text, 'UTF8')),
      r.seq, r.status, r.output, r.response_id, ${at}::timestamptz
    from unnest(
      ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.workId)}::text[],
      ${rows.map((r) => r.seq)}::bigint[], ${rows.map((r) => r.status)}::text[],
      ${rows.map((r) => r.output)}::text[], ${rows.map((r) => r.responseId)}::text[]
    ) as r(tenant_id, work_id, seq, status, output, response_id)
    cross join lateral (
      select count(*) as number, sum(octet_length(q.output)) as bytes from late_results q
      where q.tenant_id = r.tenant_id and q.work_id = r.work_id
    ) kept
    where kept.number = 0 or (kept.number < ${LATE_KEPT}
      and kept.bytes + octet_length(r.output) <= ${LATE_KEPT_BYTES})
    on conflict do nothing`;
}

/** Their children have ended by themselves: they need not be asked to stop any more. */
function endInterrupts(sql: LaneSql, rows: BatchWrites['late']): PromiseLike<unknown> {
  return sql`
    update work w set interrupt_reason = null
    from unnest(${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.workId)}::text[])
      as r(tenant_id, work_id)
    where w.tenant_id = r.tenant_id and w.work_id = r.work_id and w.interrupt_reason is not null`;
}
