import type {
  ItemWrite,
  LateWrite,
  ParkWrite,
  Report,
  ReportState,
  SessionChange,
  WorkWrite,
} from '../domain/report.ts';
import type { ParkedState } from '../domain/parking.ts';
import { isTerminal, type SessionStatus } from '../domain/session.ts';
import { isBlank } from '../domain/text.ts';
import { instantToWire } from './column-types.ts';
import type { Lane, LaneSql } from './database.ts';

/*
 * The statements of the ingest transaction, set-based and tuned together: one round trip locks and
 * loads all that bears on a batch of reports, a second writes all decisions and commits. They are
 * sent on a lane: a reserved connection whose queries go out without waiting for each other.
 */

export interface LoadedReport {
  state: ReportState;
  /** The child's row is locked by this transaction. */
  sessionLocked: boolean;
  /** The row of the parent whose inbox it goes to is locked, or there is none. */
  inboxLocked: boolean;
  itemSeq: number;
}

interface LoadOptions {
  /**
   * skip: rows locked elsewhere are left out, so that a batch never waits. wait: for a single
   * report, which waits up to the connection's lock time-out.
   */
  locked: 'skip' | 'wait';
  maxPendingItems: number;
  parkAfterAttempts: number;
  now: number;
}

/**
 * Locks the reports' sessions and their parents' rows, then loads what bears on the decisions, in
 * the order of the reports: all in one round trip.
 */
export async function lockAndLoad(
  { sql }: Lane,
  reports: readonly Report[],
  options: LoadOptions,
): Promise<LoadedReport[]> {
  const keys = reportKeys(sql, reports);
  const locks =
    options.locked === 'skip' ? lockSkipping(sql, keys) : lockWaiting(sql, keys, options.now);
  const [locked, rows, inboxes, seqs] = await Promise.all([
    Promise.all(locks),
    loadReports(sql, keys, reports, options.parkAfterAttempts),
    loadInboxes(sql, keys, options.maxPendingItems),
    nextItemSeqs(sql, reports.length),
  ]);
  const lockedKeys = new Set(locked.flat().map((row) => key(row.tenant_id, row.id)));
  const inboxByKey = new Map(inboxes.map((row) => [key(row.tenant_id, row.id), row]));
  return reports.map((report, at) => {
    const row = rows[at];
    const seq = seqs[at];
    if (!row || !seq) throw new Error('the load of a batch answers one row a report');
    const inboxKey = row.inbox_id === null ? null : key(report.tenantId, row.inbox_id);
    const inbox = inboxKey === null ? undefined : inboxByKey.get(inboxKey);
    return {
      state: stateOf(row, inbox, options.maxPendingItems),
      sessionLocked: lockedKeys.has(key(report.tenantId, report.sessionId)),
      inboxLocked: inboxKey === null || (inbox !== undefined && lockedKeys.has(inboxKey)),
      itemSeq: Number(seq.seq),
    };
  });
}

function key(tenantId: string, id: string): string {
  return `${tenantId}\u0000${id}`;
}

interface LockedRow {
  tenant_id: string;
  id: string;
}

type Keys = ReturnType<typeof reportKeys>;

function reportKeys(sql: LaneSql, reports: readonly Report[]) {
  return sql`unnest(
    ${reports.map((r) => r.tenantId)}::text[],
    ${reports.map((r) => r.sessionId)}::text[],
    ${reports.map((r) => r.fingerprint)}::text[],
    ${reports.map((r) => r.workId)}::text[],
    ${reports.map((r) => r.responseId)}::text[],
    ${reports.map((r) => (r.origin.kind === 'parked' ? r.origin.id : null))}::text[],
    ${reports.map((r) => isTerminal(r.status))}::boolean[]
  ) with ordinality as
    r(tenant_id, id, fingerprint, work_id, response_id, parked_id, terminal, n)`;
}

/**
 * A batch never waits for a lock, so it cannot be part of a deadlock. A report equal to the last
 * one applied is not locked at all: repeats are read-only.
 */
function lockSkipping(sql: LaneSql, keys: Keys): PromiseLike<LockedRow[]>[] {
  return [
    sql<LockedRow[]>`
      select s.tenant_id, s.id from ${keys}
      join sessions s on s.tenant_id = r.tenant_id and s.id = r.id
      where s.last_report is distinct from r.fingerprint
      order by s.tenant_id, s.id for no key update of s skip locked`,
    sql<LockedRow[]>`
      select t.tenant_id, t.id
      from ${inboxKeys(sql, keys, sql`s.last_report is distinct from r.fingerprint`)} d
      join sessions t on t.tenant_id = d.tenant_id and t.id = d.id
      order by t.tenant_id, t.id for key share of t skip locked`,
  ];
}

/**
 * A single report waits: for its child's row and its parent's in one statement, in id order. A
 * session of which not even the name was known gets its row here, so that there is one to lock.
 */
function lockWaiting(sql: LaneSql, keys: Keys, now: number): PromiseLike<LockedRow[]>[] {
  return [
    sql<LockedRow[]>`
      insert into sessions (tenant_id, id, created_at)
      select r.tenant_id, r.id, ${now}::timestamptz from ${keys} where r.terminal
      on conflict do nothing returning tenant_id, id`,
    sql<LockedRow[]>`
      select l.tenant_id, l.id from sessions l
      where (l.tenant_id, l.id) in (
        select r.tenant_id, r.id from ${keys}
        union all
        select d.tenant_id, d.id from ${inboxKeys(sql, keys, sql`true`)} d)
      order by l.tenant_id, l.id for no key update of l`,
  ];
}

/**
 * From each report to its session (s), current work (w), the turn its response_id names (tr), the
 * entry that it names (nw) and the parent (p). Each step is one look-up by key and cannot be planned
 * otherwise: plans made before the tables have statistics are kept, and would read them whole.
 */
function reportPath(sql: LaneSql, keys: Keys) {
  return sql`${keys}
    left join lateral (
      select * from sessions q where q.tenant_id = r.tenant_id and q.id = r.id limit 1
    ) s on true
    left join lateral (
      select * from work q
      where q.tenant_id = r.tenant_id and q.work_id = s.current_work_id limit 1
    ) w on true
    left join lateral (
      select * from turn_responses q
      where q.tenant_id = r.tenant_id and q.child_session_id = r.id and q.response_key =
        sha256(convert_to(coalesce(r.response_id, s.response_id), 'UTF8')) limit 1
    ) tr on true
    left join lateral (
      select * from work q
      where q.tenant_id = r.tenant_id and q.work_id = coalesce(r.work_id, tr.work_id) limit 1
    ) nw on true
    left join lateral (
      select * from sessions q where q.tenant_id = r.tenant_id and q.id =
        coalesce(nw.parent_session_id, w.parent_session_id, s.parent_session_id) limit 1
    ) p on true`;
}

/** The sessions into whose inboxes the terminal reports go, each once. */
function inboxKeys(sql: LaneSql, keys: Keys, condition: Keys) {
  return sql`(
    select distinct p.tenant_id, coalesce(p.tip_session_id, p.id) as id
    from ${reportPath(sql, keys)}
    where r.terminal and p.id is not null and ${condition})`;
}

interface LoadedRow {
  session_id: string | null;
  described: boolean;
  deleted: boolean;
  parent_session_id: string | null;
  agent_name: string | null;
  sub_agent_name: string | null;
  status: SessionStatus;
  background_task_count: number;
  blocked_on: string | null;
  error_code: string | null;
  error_message: string | null;
  response_id: string | null;
  current_work_id: string | null;
  last_report: string | null;
  ran_since_result: boolean;
  work: ReportState['work'];
  named: ReportState['work'];
  response: ReportState['response'];
  text: string | null;
  text_response_id: string | null;
  parked: ParkedState | null;
  inbox_id: string | null;
  parent_parked: boolean;
}

/** What the decisions need of each entry, under the names that the domain gives it. */
function workJson(sql: LaneSql, w: Keys) {
  return sql`case when ${w}.work_id is not null then json_build_object(
    'workId', ${w}.work_id, 'parentSessionId', ${w}.parent_session_id,
    'childSessionId', ${w}.child_session_id, 'agent', ${w}.agent, 'title', ${w}.title,
    'createdBy', ${w}.created_by, 'recovered', ${w}.recovered, 'status', ${w}.status,
    'revision', ${w}.revision, 'lastItemSeq', ${w}.last_item_seq,
    'formerDigest', ${w}.former_digest, 'resultDigest', ${w}.result_digest,
    'resultResponseId', ${w}.result_response_id, 'provisional', ${w}.provisional,
    'awaitsText', ${w}.awaits_text, 'upstreamMessageId', ${w}.upstream_message_id) end`;
}

function loadReports(
  sql: LaneSql,
  keys: Keys,
  reports: readonly Report[],
  parkAfterAttempts: number,
) {
  const wantsText = reports.some(
    (r) => r.status === 'idle' && (r.output === null || isBlank(r.output)),
  );
  return sql<LoadedRow[]>`
    select s.id as session_id, s.described_at is not null as described,
      s.deleted_at is not null as deleted, s.parent_session_id, s.agent_name, s.sub_agent_name,
      s.status, s.background_task_count, s.blocked_on, s.error_code, s.error_message,
      s.response_id, s.current_work_id, s.last_report, s.ran_since_result,
      ${workJson(sql, sql`w`)} as work,
      case when nw.work_id is distinct from w.work_id then ${workJson(sql, sql`nw`)} end as named,
      case when tr.work_id is not null then
        json_build_object('workId', tr.work_id, 'delivered', tr.delivered) end as response,
      case when ${wantsText} and not coalesce(
        xr.delivered or xr.work_id is distinct from s.current_work_id, false) then x.text end as text,
      x.response_id as text_response_id,
      case when k.id is not null then json_build_object('id', k.id, 'turn', k.turn,
        'state', k.state, 'status', k.status, 'outcome', k.outcome, 'responseId', k.response_id,
        'workId', k.work_id, 'tries', k.tries) end as parked,
      coalesce(p.tip_session_id, p.id) as inbox_id,
      p.id is not null and exists (
        select 1 from parked_reports q where q.tenant_id = r.tenant_id
          and q.parent_session_id = coalesce(p.tip_session_id, p.id) and q.state = 'parked' and q.tries >= ${parkAfterAttempts}
      ) as parent_parked
    from ${reportPath(sql, keys)}
    left join lateral (
      select * from assistant_texts q
      where q.tenant_id = r.tenant_id and q.session_id = r.id and q.fresh limit 1
    ) x on true
    left join lateral (
      select * from turn_responses q
      where q.tenant_id = r.tenant_id and q.child_session_id = r.id
        and q.response_key = sha256(convert_to(x.response_id, 'UTF8')) limit 1
    ) xr on true
    left join lateral (
      select * from parked_reports q
      where q.tenant_id = r.tenant_id and q.child_session_id = r.id
        and (r.parked_id is null or q.id = r.parked_id)
      order by q.turn desc limit 1
    ) k on true
    order by r.n`;
}

interface InboxRow extends LockedRow {
  deleted: boolean;
  open: boolean;
  pending: number;
}

/** Each inbox once, with how much is pending in it: never counted further than the limit. */
function loadInboxes(sql: LaneSql, keys: Keys, maxPendingItems: number) {
  return sql<InboxRow[]>`
    select t.tenant_id, t.id, t.deleted_at is not null as deleted,
      t.inbox_opened_at is not null and t.inbox_closed_at is null as open,
      (select count(*) from (
        select 1 from items i where i.tenant_id = t.tenant_id and i.session_id = t.id
          and i.acked_at is null limit ${maxPendingItems}) q)::int as pending
    from ${inboxKeys(sql, keys, sql`true`)} d
    join sessions t on t.tenant_id = d.tenant_id and t.id = d.id`;
}

function nextItemSeqs(sql: LaneSql, count: number) {
  return sql<{ seq: number }[]>`
    select nextval('item_seq') as seq from generate_series(1, ${count}::int)`;
}

function stateOf(
  row: LoadedRow,
  inbox: InboxRow | undefined,
  maxPendingItems: number,
): ReportState {
  return {
    session:
      row.session_id === null
        ? null
        : {
            described: row.described,
            deleted: row.deleted,
            parentSessionId: row.parent_session_id,
            agentName: row.agent_name,
            subAgentName: row.sub_agent_name,
            status: row.status,
            backgroundTaskCount: Number(row.background_task_count),
            blockedOn: row.blocked_on,
            errorCode: row.error_code,
            errorMessage: row.error_message,
            responseId: row.response_id,
            currentWorkId: row.current_work_id,
            lastReport: row.last_report,
            ranSinceResult: row.ran_since_result,
          },
    inbox: inbox
      ? {
          sessionId: inbox.id,
          deleted: inbox.deleted,
          open: inbox.open,
          room: maxPendingItems - inbox.pending,
        }
      : null,
    work: row.work,
    named: row.named,
    response: row.response,
    text: row.text === null ? null : { text: row.text, responseId: row.text_response_id },
    parked: row.parked,
    parentParked: row.parent_parked,
  };
}

/** All that a batch of decisions writes. */
export interface BatchWrites {
  sessions: (SessionChange & Of)[];
  insertedWork: (WorkWrite & Of & { createdAt: number })[];
  updatedWork: (WorkWrite & Of)[];
  items: (ItemWrite & Of)[];
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
      result_response_id, provisional, awaits_text, upstream_message_id)
    select r.tenant_id, r.work_id, r.parent_id, r.child_id, r.agent, r.title, true, r.status,
      r.at, r.at, r.revision, r.last_item_seq, r.result_digest, r.result_response_id, false,
      r.awaits_text, r.upstream_message_id
    from unnest(
      ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.workId)}::text[],
      ${rows.map((r) => r.parentSessionId)}::text[], ${rows.map((r) => r.childSessionId)}::text[],
      ${rows.map((r) => r.agent)}::text[], ${rows.map((r) => r.title)}::text[],
      ${rows.map((r) => r.status)}::text[], ${rows.map((r) => instantToWire(r.createdAt))}::timestamptz[],
      ${rows.map((r) => r.revision)}::int[], ${rows.map((r) => r.lastItemSeq)}::bigint[],
      ${rows.map((r) => r.resultDigest)}::text[], ${rows.map((r) => r.resultResponseId)}::text[],
      ${rows.map((r) => r.awaitsText)}::boolean[], ${rows.map((r) => r.upstreamMessageId)}::text[]
    ) as r(tenant_id, work_id, parent_id, child_id, agent, title, status, at, revision,
      last_item_seq, result_digest, result_response_id, awaits_text, upstream_message_id)`;
}

function updateWork(sql: LaneSql, rows: BatchWrites['updatedWork']): PromiseLike<unknown> {
  return sql`
    update work w set status = r.status, ended_at = coalesce(w.ended_at, r.ended_at),
      revision = r.revision, last_item_seq = r.last_item_seq, result_digest = r.result_digest,
      result_response_id = r.result_response_id, provisional = r.provisional,
      awaits_text = r.awaits_text, upstream_message_id = r.upstream_message_id
    from unnest(
      ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.workId)}::text[],
      ${rows.map((r) => r.status)}::text[],
      ${rows.map((r) => (r.endedAt === null ? null : instantToWire(r.endedAt)))}::timestamptz[],
      ${rows.map((r) => r.revision)}::int[], ${rows.map((r) => r.lastItemSeq)}::bigint[],
      ${rows.map((r) => r.resultDigest)}::text[], ${rows.map((r) => r.resultResponseId)}::text[],
      ${rows.map((r) => r.provisional)}::boolean[], ${rows.map((r) => r.awaitsText)}::boolean[],
      ${rows.map((r) => r.upstreamMessageId)}::text[]
    ) as r(tenant_id, work_id, status, ended_at, revision, last_item_seq, result_digest,
      result_response_id, provisional, awaits_text, upstream_message_id)
    where w.tenant_id = r.tenant_id and w.work_id = r.work_id`;
}

function insertItems(sql: LaneSql, rows: BatchWrites['items']): PromiseLike<unknown> {
  return sql`
    insert into items (tenant_id, session_id, seq, source, type, work_id, child_session_id, agent,
      title, status, output, recovered, follows_seq, revision, response_id, created_by,
      traceparent, delivered_at)
    select * from unnest(
      ${rows.map((r) => r.tenantId)}::text[], ${rows.map((r) => r.sessionId)}::text[],
      ${rows.map((r) => r.seq)}::bigint[], ${rows.map((r) => r.source)}::text[],
      ${rows.map((r) => r.type)}::text[], ${rows.map((r) => r.workId)}::text[],
      ${rows.map((r) => r.childSessionId)}::text[], ${rows.map((r) => r.agent)}::text[],
      ${rows.map((r) => r.title)}::text[], ${rows.map((r) => r.status)}::text[],
      ${rows.map((r) => r.output)}::text[], ${rows.map((r) => r.recovered)}::boolean[],
      ${rows.map((r) => r.followsSeq)}::bigint[], ${rows.map((r) => r.revision)}::int[],
      ${rows.map((r) => r.responseId)}::text[], ${rows.map((r) => r.createdBy)}::text[],
      ${rows.map((r) => r.traceparent)}::text[],
      ${rows.map((r) => instantToWire(r.deliveredAt))}::timestamptz[])`;
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
