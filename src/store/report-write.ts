import type {
  ItemWrite,
  LateWrite,
  ParkWrite,
  SessionChange,
  WorkWrite,
} from '../domain/report.ts';
import type { UnitWrite } from '../domain/join.ts';
import { instantToWire } from './column-types.ts';
import type { Lane, LaneSql } from './database.ts';

/*
 * The second half of the ingest transaction: all decisions of a batch, written set-based, sent
 * together with the commit.
 */

/** All that a batch of decisions writes. */
export interface BatchWrites {
  sessions: (SessionChange & Of)[];
  insertedWork: (WorkWrite & Of & { createdAt: number })[];
  updatedWork: (WorkWrite & Of)[];
  items: (ItemWrite & { tenantId: string })[];
  units: (UnitWrite & { tenantId: string })[];
  responses: (Of & { responseId: string; workId: string; delivered: boolean })[];
  usedTexts: Of[];
  parked: (ParkWrite & Of & { id: string; traceparent: string | null; result: object | null })[];
  /** Parked rows whose report has been settled. */
  settledParked: (Of & { id: string })[];
  late: (LateWrite & Of)[];
}

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
  const statements: PromiseLike<unknown>[] = [];
  if (writes.sessions.length > 0) statements.push(updateSessions(sql, writes.sessions));
  if (writes.insertedWork.length > 0) statements.push(insertWork(sql, writes.insertedWork));
  if (writes.updatedWork.length > 0) statements.push(updateWork(sql, writes.updatedWork));
  if (writes.items.length > 0) statements.push(insertItems(sql, writes.items));
  if (writes.units.length > 0) {
    statements.push(endUnits(sql, writes.units), endCalls(sql, writes.units));
  }
  if (writes.responses.length > 0) statements.push(upsertResponses(sql, writes.responses));
  if (writes.usedTexts.length > 0) statements.push(markTextsUsed(sql, writes.usedTexts));
  if (writes.settledParked.length > 0) statements.push(deleteParked(sql, writes.settledParked));
  for (const row of writes.parked) statements.push(putParked(sql, row, now));
  for (const row of writes.late) statements.push(appendLateResult(sql, row, now));
  return statements;
}

function updateSessions(sql: LaneSql, rows: BatchWrites['sessions']): PromiseLike<unknown> {
  return sql`
    update sessions s set status = r.status, background_task_count = r.background_task_count,
      blocked_on = r.blocked_on, error_code = r.error_code, error_message = r.error_message,
      response_id = r.response_id, current_work_id = r.current_work_id,
      last_report = r.last_report, ran_since_result = r.ran_since_result
    from unnest(
      ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.childId)}::text[],
      ${rows.map((r) => r.status)}::text[], ${rows.map((r) => r.backgroundTaskCount)}::bigint[],
      ${rows.map((r) => r.blockedOn)}::text[], ${rows.map((r) => r.errorCode)}::text[],
      ${rows.map((r) => r.errorMessage)}::text[], ${rows.map((r) => r.responseId)}::text[],
      ${rows.map((r) => r.currentWorkId)}::text[], ${rows.map((r) => r.lastReport)}::text[],
      ${rows.map((r) => r.ranSinceResult)}::boolean[]
    ) as r(tenant_id, id, status, background_task_count, blocked_on, error_code, error_message,
      response_id, current_work_id, last_report, ran_since_result)
    where s.tenant_id = r.tenant_id and s.id = r.id`;
}

function insertWork(sql: LaneSql, rows: BatchWrites['insertedWork']): PromiseLike<unknown> {
  return sql`
    insert into work (tenant_id, work_id, parent_session_id, child_session_id, agent, title,
      recovered, status, created_at, ended_at, revision, last_item_seq, result_digest,
      result_response_id, provisional, awaits_text, upstream_message_id, interrupt_reason,
      interrupted_at, grace_ms, due_at)
    select r.tenant_id, r.work_id, r.parent_id, r.child_id, r.agent, r.title, true, r.status,
      r.at, r.ended_at, r.revision, r.last_item_seq, r.result_digest, r.result_response_id, false,
      r.awaits_text, r.upstream_message_id, r.interrupt_reason, r.interrupted_at, r.grace_ms,
      r.interrupted_at + r.grace_ms * interval '1 millisecond'
    from unnest(
      ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.workId)}::text[],
      ${rows.map((r) => r.parentSessionId)}::text[], ${rows.map((r) => r.childSessionId)}::text[],
      ${rows.map((r) => r.agent)}::text[], ${rows.map((r) => r.title)}::text[],
      ${rows.map((r) => r.status)}::text[], ${rows.map((r) => r.createdAt)}::timestamptz[],
      ${rows.map((r) => r.endedAt)}::timestamptz[], ${rows.map((r) => r.revision)}::int[], ${rows.map((r) => r.lastItemSeq)}::bigint[],
      ${rows.map((r) => r.resultDigest)}::text[], ${rows.map((r) => r.resultResponseId)}::text[],
      ${rows.map((r) => r.awaitsText)}::boolean[], ${rows.map((r) => r.upstreamMessageId)}::text[],
      ${rows.map((r) => r.interrupt?.reason ?? null)}::text[],
      ${rows.map((r) => r.interrupt?.at ?? null)}::timestamptz[],
      ${rows.map((r) => r.interrupt?.graceMs ?? null)}::bigint[]
    ) as r(tenant_id, work_id, parent_id, child_id, agent, title, status, at, ended_at, revision,
      last_item_seq, result_digest, result_response_id, awaits_text, upstream_message_id,
      interrupt_reason, interrupted_at, grace_ms)`;
}

function updateWork(sql: LaneSql, rows: BatchWrites['updatedWork']): PromiseLike<unknown> {
  return sql`
    update work w set status = r.status, ended_at = coalesce(w.ended_at, r.ended_at),
      revision = r.revision, last_item_seq = r.last_item_seq, result_digest = r.result_digest,
      result_response_id = r.result_response_id, provisional = r.provisional,
      awaits_text = r.awaits_text, upstream_message_id = r.upstream_message_id,
      result = coalesce(r.result::jsonb, w.result),
      interrupt_reason = coalesce(r.interrupt_reason, w.interrupt_reason),
      interrupted_at = coalesce(r.interrupted_at, w.interrupted_at),
      grace_ms = coalesce(r.grace_ms, w.grace_ms),
      due_at = least(w.due_at, r.interrupted_at + r.grace_ms * interval '1 millisecond')
    from unnest(
      ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.workId)}::text[],
      ${rows.map((r) => r.status)}::text[],
      ${rows.map((r) => r.endedAt)}::timestamptz[],
      ${rows.map((r) => r.revision)}::int[], ${rows.map((r) => r.lastItemSeq)}::bigint[],
      ${rows.map((r) => r.resultDigest)}::text[], ${rows.map((r) => r.resultResponseId)}::text[],
      ${rows.map((r) => r.provisional)}::boolean[], ${rows.map((r) => r.awaitsText)}::boolean[],
      ${rows.map((r) => r.upstreamMessageId)}::text[],
      ${rows.map((r) => r.result && JSON.stringify(r.result))}::text[],
      ${rows.map((r) => r.interrupt?.reason ?? null)}::text[],
      ${rows.map((r) => r.interrupt?.at ?? null)}::timestamptz[],
      ${rows.map((r) => r.interrupt?.graceMs ?? null)}::bigint[]
    ) as r(tenant_id, work_id, status, ended_at, revision, last_item_seq, result_digest,
      result_response_id, provisional, awaits_text, upstream_message_id, result, interrupt_reason,
      interrupted_at, grace_ms)
    where w.tenant_id = r.tenant_id and w.work_id = r.work_id`;
}

function insertItems(sql: LaneSql, rows: BatchWrites['items']): PromiseLike<unknown> {
  return sql`
    insert into items (tenant_id, session_id, seq, source, type, work_id, child_session_id, agent,
      title, status, output, recovered, follows_seq, revision, response_id, created_by,
      traceparent, delivered_at, disposition, details)
    select tenant_id, session_id, seq, source, type, work_id, child_id, agent, title, status,
      output, recovered, follows_seq, revision, response_id, created_by, traceparent, delivered_at,
      disposition, details::jsonb
    from unnest(
      ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.sessionId)}::text[],
      ${rows.map((r) => r.seq)}::bigint[], ${rows.map((r) => r.source)}::text[],
      ${rows.map((r) => r.type)}::text[], ${rows.map((r) => r.workId)}::text[],
      ${rows.map((r) => r.childSessionId)}::text[], ${rows.map((r) => r.agent)}::text[],
      ${rows.map((r) => r.title)}::text[], ${rows.map((r) => r.status)}::text[],
      ${rows.map((r) => r.output)}::text[], ${rows.map((r) => r.recovered)}::boolean[],
      ${rows.map((r) => r.followsSeq)}::bigint[], ${rows.map((r) => r.revision)}::int[],
      ${rows.map((r) => r.responseId)}::text[], ${rows.map((r) => r.createdBy)}::text[],
      ${rows.map((r) => r.traceparent)}::text[],
      ${rows.map((r) => r.deliveredAt)}::timestamptz[], ${rows.map((r) => r.disposition)}::text[],
      ${rows.map((r) => r.details && JSON.stringify(r.details))}::text[]
    ) as r(tenant_id, session_id, seq, source, type, work_id, child_id, agent, title, status, output,
      recovered, follows_seq, revision, response_id, created_by, traceparent, delivered_at,
      disposition, details)`;
}

function endUnits(sql: LaneSql, rows: BatchWrites['units']): PromiseLike<unknown> {
  return sql`
    update units u set status = r.status, ended_at = coalesce(u.ended_at, r.ended_at),
      revision = r.revision, last_item_seq = r.last_item_seq
    from unnest(
      ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.unitId)}::text[],
      ${rows.map((r) => r.status)}::text[], ${rows.map((r) => r.endedAt)}::timestamptz[],
      ${rows.map((r) => r.revision)}::int[], ${rows.map((r) => r.lastItemSeq)}::bigint[]
    ) as r(tenant_id, unit_id, status, ended_at, revision, last_item_seq)
    where u.tenant_id = r.tenant_id and u.unit_id = r.unit_id`;
}

/** A call ends with its last unit; it is locked, so that no two units are each other's last. */
function endCalls(sql: LaneSql, rows: BatchWrites['units']): PromiseLike<unknown> {
  return sql`
    update delegations d set ended_at = r.ended_at
    from (
      select distinct * from unnest(
        ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.delegationId)}::text[],
        ${rows.map((r) => r.endedAt)}::timestamptz[]
      ) as q(tenant_id, delegation_id, ended_at)
    ) r
    where d.tenant_id = r.tenant_id and d.delegation_id = r.delegation_id and d.ended_at is null
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
  now: number,
): PromiseLike<unknown> {
  const at = instantToWire(now);
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
      response_id = coalesce(${row.responseId}, response_id)
    where tenant_id = ${row.tenantId} and id = ${row.replaces.id}`;
}

/** Keeps a result that came after the end of its turn on the entry; an equal one is kept once. */
function appendLateResult(
  sql: LaneSql,
  row: BatchWrites['late'][number],
  now: number,
): PromiseLike<unknown> {
  const known = { status: row.status, output: row.output, response_id: row.responseId };
  const late = JSON.stringify([{ ...known, reported_at: instantToWire(now) }]);
  return sql`
    update work set late_results = late_results || ${late}::text::jsonb
    where tenant_id = ${row.tenantId} and work_id = ${row.workId}
      and not late_results @> ${JSON.stringify([known])}::text::jsonb`;
}
