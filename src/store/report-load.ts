import type { ParkedState } from '../domain/parking.ts';
import type { Report, ReportState } from '../domain/report.ts';
import { isTerminal, type SessionStatus } from '../domain/session.ts';
import { isBlank } from '../domain/text.ts';
import { instantToWire } from './column-types.ts';
import type { Lane, LaneSql } from './database.ts';

/*
 * The first half of the ingest transaction: lock what the reports of a batch touch, then load all
 * that bears on their decisions, in one round trip. The load is a statement of its own: joined with
 * the locking it would read what was true before the lock was waited for.
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
  const [locked, rows, seqs] = await Promise.all([
    Promise.all(locks),
    loadReports(sql, keys, reports, options),
    nextItemSeqs(sql, reports.length),
  ]);
  const lockedKeys = new Set(locked.flat().map((row) => key(row.tenant_id, row.id)));
  const inboxes = new Map(rows[0]?.inboxes?.map((row) => [key(row.tenantId, row.id), row]));
  return reports.map((report, at) => {
    const row = rows[at];
    const seq = seqs[at];
    if (!row || !seq) throw new Error('the load of a batch answers one row a report');
    const inboxKey = row.inbox_id === null ? null : key(report.tenantId, row.inbox_id);
    const inbox = inboxKey === null ? undefined : inboxes.get(inboxKey);
    return {
      state: stateOf(row, inbox, options.maxPendingItems),
      sessionLocked: lockedKeys.has(key(report.tenantId, report.sessionId)),
      inboxLocked: inboxKey === null || lockedKeys.has(inboxKey),
      itemSeq: seq.seq,
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

type Fragment = ReturnType<typeof reportKeys>;

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
 * From each report to its session (s), current work (w), the turn its response_id names (tr), the
 * entry that it names (nw) and the parent (p). Each step is one look-up by key and cannot be planned
 * otherwise: plans made before the tables have statistics are kept, and would read them whole.
 */
function reportPath(sql: LaneSql, keys: Fragment) {
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
      where q.tenant_id = r.tenant_id and q.work_id = coalesce(r.work_id, tr.work_id)
        and not q.retired limit 1
    ) nw on true
    left join lateral (
      select * from sessions q where q.tenant_id = r.tenant_id and q.id =
        coalesce(nw.parent_session_id, w.parent_session_id, s.parent_session_id) limit 1
    ) p on true`;
}

/**
 * A batch never waits for a session, so it cannot be part of a deadlock. A report equal to the last
 * one applied is not locked at all: repeats are read-only. The parents' rows are locked against
 * closing, continuing and deleting, not against each other's deliveries.
 */
function lockSkipping(sql: LaneSql, keys: Fragment): PromiseLike<LockedRow[]>[] {
  return [
    sql<LockedRow[]>`
      with children as materialized (
        select s.tenant_id, s.id, s.current_work_id, s.parent_session_id, r.terminal,
          r.work_id, r.response_id
        from ${keys}
        join sessions s on s.tenant_id = r.tenant_id and s.id = r.id
        where s.last_report is distinct from r.fingerprint
        order by s.tenant_id, s.id for no key update of s skip locked
      ), parent_keys as materialized (
        select c.tenant_id, coalesce(w.parent_session_id, c.parent_session_id) as id
        from children c
        left join lateral (
          select * from work q
          where q.tenant_id = c.tenant_id and q.work_id = c.current_work_id limit 1
        ) w on true
        where c.terminal
      ), parents as materialized (
        select p.tenant_id, p.id, p.tip_session_id
        from parent_keys k join sessions p on p.tenant_id = k.tenant_id and p.id = k.id
        for key share of p skip locked
      ), tips as materialized (
        select t.tenant_id, t.id from parents p
        join sessions t on t.tenant_id = p.tenant_id and t.id = p.tip_session_id
        where p.tip_session_id is not null for key share of t skip locked
      )
      select tenant_id, id from children
      union all select tenant_id, id from parents
      union all select tenant_id, id from tips`,
  ];
}

/**
 * A single report waits: for its child's row and its parent's in one statement, in id order. A
 * session of which not even the name was known gets its row here, so that there is one to lock.
 */
function lockWaiting(sql: LaneSql, keys: Fragment, now: number): PromiseLike<LockedRow[]>[] {
  return [
    sql<LockedRow[]>`
      insert into sessions (tenant_id, id, created_at)
      select r.tenant_id, r.id, ${instantToWire(now)}::timestamptz from ${keys} where r.terminal
      on conflict do nothing returning tenant_id, id`,
    sql<LockedRow[]>`
      select l.tenant_id, l.id from sessions l
      where (l.tenant_id, l.id) in (
        select r.tenant_id, r.id from ${keys}
        union all
        select p.tenant_id, coalesce(p.tip_session_id, p.id)
        from ${reportPath(sql, keys)} where p.id is not null)
      order by l.tenant_id, l.id for no key update of l`,
  ];
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
  inbox_deleted: boolean;
  inbox_open: boolean;
  /** What several reports may share comes once, with the first row. */
  inboxes: LoadedInbox[] | null;
}

interface LoadedInbox {
  tenantId: string;
  id: string;
  /** Never counted further than the limit. */
  pending: number;
  /** A parked report for this parent has been tried as often as is worth it. */
  parked: boolean;
}

/** What the decisions need of an entry, under the names that the domain gives it. */
function workJson(sql: LaneSql, w: Fragment) {
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
  keys: Fragment,
  reports: readonly Report[],
  { maxPendingItems, parkAfterAttempts }: LoadOptions,
) {
  const wantsText = reports.some(
    (r) => r.status === 'idle' && (r.output === null || isBlank(r.output)),
  );
  return sql<LoadedRow[]>`
    with path as materialized (
      select r.n, s.id as session_id, s.described_at is not null as described,
        s.deleted_at is not null as deleted, s.parent_session_id, s.agent_name, s.sub_agent_name,
        s.status, s.background_task_count, s.blocked_on, s.error_code, s.error_message,
        s.response_id, s.current_work_id, s.last_report, s.ran_since_result,
        ${workJson(sql, sql`w`)} as work,
        case when nw.work_id is distinct from w.work_id then ${workJson(sql, sql`nw`)} end as named,
        case when tr.work_id is not null then
          json_build_object('workId', tr.work_id, 'delivered', tr.delivered) end as response,
        case when not coalesce(
          xr.delivered or xr.work_id is distinct from s.current_work_id, false) then x.text
        end as text,
        x.response_id as text_response_id,
        case when k.id is not null then json_build_object('id', k.id, 'turn', k.turn,
          'state', k.state, 'status', k.status, 'outcome', k.outcome,
          'responseId', k.response_id, 'workId', k.work_id, 'tries', k.tries) end as parked,
        r.tenant_id, r.terminal, coalesce(p.tip_session_id, p.id) as inbox_id,
        coalesce(t.deleted_at, p.deleted_at) is not null as inbox_deleted,
        case when t.id is null then p.inbox_opened_at is not null and p.inbox_closed_at is null
          else t.inbox_opened_at is not null and t.inbox_closed_at is null end as inbox_open
      from ${reportPath(sql, keys)}
      left join lateral (
        select * from sessions q
        where q.tenant_id = p.tenant_id and q.id = p.tip_session_id limit 1
      ) t on true
      left join lateral (
        select * from assistant_texts q
        where ${wantsText} and q.tenant_id = r.tenant_id and q.session_id = r.id and q.fresh
        limit 1
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
    )
    select path.*, case when n = 1 then (
      select json_agg(json_build_object('tenantId', d.tenant_id, 'id', d.inbox_id,
        'pending', (select count(*) from (
          select 1 from items i where i.tenant_id = d.tenant_id and i.session_id = d.inbox_id
            and i.acked_at is null limit ${maxPendingItems}) q),
        'parked', exists (
          select 1 from parked_reports q where q.tenant_id = d.tenant_id
            and q.parent_session_id = d.inbox_id and q.state = 'parked'
            and q.tries >= ${parkAfterAttempts})))
      from (
        select distinct tenant_id, inbox_id from path where terminal and inbox_id is not null
      ) d
    ) end as inboxes
    from path order by n`;
}

function nextItemSeqs(sql: LaneSql, count: number) {
  return sql<{ seq: number }[]>`
    select nextval('item_seq') as seq from generate_series(1, ${count}::int)`;
}

function stateOf(
  row: LoadedRow,
  inbox: LoadedInbox | undefined,
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
            backgroundTaskCount: row.background_task_count,
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
          deleted: row.inbox_deleted,
          open: row.inbox_open,
          room: maxPendingItems - inbox.pending,
        }
      : null,
    work: row.work,
    named: row.named,
    response: row.response,
    text: row.text === null ? null : { text: row.text, responseId: row.text_response_id },
    parked: row.parked,
    parentParked: inbox?.parked ?? false,
  };
}
