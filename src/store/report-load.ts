import type { TaskResult } from '../domain/delegation.ts';
import { disposition } from '../domain/disposition.ts';
import type { UnitState } from '../domain/join.ts';
import type { ParkedState } from '../domain/parking.ts';
import type { Report, ReportState } from '../domain/report.ts';
import type { SessionStatus } from '../domain/session.ts';
import { isBlank } from '../domain/text.ts';
import { LOADED_MAX } from '../domain/text-budget.ts';
import { instantToWire } from './column-types.ts';
import type { Lane, LaneSql } from './database.ts';
import { lockSkipping, lockWaiting, type LockedRow } from './report-locks.ts';
import { reportKeys, reportPath, type Fragment } from './report-path.ts';

/*
 * The first half of the ingest transaction: lock what the reports of a batch touch, then load all
 * that bears on their decisions, in one round trip. The load is a statement of its own: joined with
 * the locking it would read what was true before the lock was waited for.
 */

export interface LoadedReport {
  state: ReportState;
  /** The child's row is locked by this transaction. */
  sessionLocked: boolean;
  /** The inbox that it goes to and what was counted there; null: none, or nothing was. */
  counted: (CountedInbox & { pending: number }) | null;
  /** The row of the parent whose inbox it goes to is locked, or there is none. */
  inboxLocked: boolean;
  /** The unit that the report's work is a task of; null: it is none. */
  unit: UnitState | null;
  /** The call of that unit is locked. */
  callLocked: boolean;
  /** The place of the report, or of the item that it becomes, among all items. */
  itemSeq: number;
  /** The session has been told of its own inbox before: its turns bear on when it is again. */
  hasWake: boolean;
}

/** An inbox, and how often unread items had moved into it when it was counted. */
export interface CountedInbox {
  tenantId: string;
  sessionId: string;
  moves: number;
}

interface LoadOptions {
  /**
   * skip: rows locked elsewhere are left out, so that a batch never waits. wait: for a single
   * report, which waits up to the connection's lock time-out.
   */
  locked: 'skip' | 'wait';
  maxPendingItems: number;
  /** Inboxes that are known not to be full: unless items moved there since, they are not counted. */
  roomy: readonly CountedInbox[];
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
  // Sent in this order, and one flat Promise.all: of several errors the first statement's must win,
  // not that the rest of the transaction was aborted by it.
  const answers = await Promise.all<unknown>([...locks, loadReports(sql, keys, reports, options)]);
  const rows = answers.pop() as LoadedRow[];
  const locked = answers as LockedRow[][];
  const rowsLocked = locked.flat();
  const keysOf = (kind: string) =>
    new Set(rowsLocked.filter((row) => row.kind === kind).map((row) => key(row.tenant_id, row.id)));
  const lockedChildren = keysOf('child');
  const lockedInboxes = keysOf('inbox');
  const lockedCalls = keysOf('call');
  const units = new Map(rows[0]?.units?.map((row) => [key(row.tenantId, row.unitId), row]));
  const inboxes = new Map(rows[0]?.inboxes?.map((row) => [key(row.tenantId, row.id), row]));
  return reports.map((report, at) => {
    const row = rows[at];
    if (!row) throw new Error('the load of a batch answers one row a report');
    const inboxKey = row.inbox_id === null ? null : key(report.tenantId, row.inbox_id);
    const inbox = inboxKey === null ? undefined : inboxes.get(inboxKey);
    const unit = row.unit_id === null ? undefined : units.get(key(report.tenantId, row.unit_id));
    return {
      state: stateOf(row, inbox, options.maxPendingItems),
      counted: inbox ? countedIn(inbox) : null,
      sessionLocked: lockedChildren.has(key(report.tenantId, report.sessionId)),
      inboxLocked: inboxKey === null || lockedInboxes.has(inboxKey) || lockedChildren.has(inboxKey),
      unit: unit === undefined ? null : unitOf(unit),
      callLocked: unit === undefined || lockedCalls.has(key(report.tenantId, unit.delegationId)),
      itemSeq: row.item_seq,
      hasWake: row.has_wake,
    };
  });
}

function countedIn({ tenantId, id, moves, pending }: LoadedInbox): LoadedReport['counted'] {
  return pending === null ? null : { tenantId, sessionId: id, moves, pending };
}

function key(tenantId: string, id: string): string {
  return `${tenantId}\u0000${id}`;
}

interface LoadedRow {
  item_seq: number;
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
  last_digest: string | null;
  upstream_message_id: string | null;
  work: ReportState['work'];
  named: ReportState['work'];
  response: ReportState['response'];
  text: string | null;
  text_response_id: string | null;
  text_fresh: boolean | null;
  parked: ParkedState | null;
  inbox_id: string | null;
  inbox_deleted: boolean;
  inbox_open: boolean;
  inbox_channel: string | null;
  inbox_viewed: boolean;
  has_wake: boolean;
  unit_id: string | null;
  units: LoadedUnit[] | null;
  /** What several reports may share comes once, with the first row. */
  inboxes: LoadedInbox[] | null;
}

interface LoadedUnit {
  tenantId: string;
  unitId: string;
  delegationId: string;
  group: string | null;
  ended: boolean;
  revision: number;
  lastItemSeq: number | null;
  open: number;
  results: TaskResult[] | null;
  mode: 'background' | 'inline';
  wakes: boolean;
  notifyFailures: boolean;
  dispatchedAt: number;
  parentSessionId: string;
}

interface LoadedInbox {
  tenantId: string;
  id: string;
  moves: number;
  /** Never counted further than the limit; null: not counted. */
  pending: number | null;
  /** A parked report for this parent has been tried as often as is worth it. */
  parked: boolean;
}

function epochMs(sql: LaneSql, column: Fragment) {
  return sql`(extract(epoch from ${column}) * 1000)::float8`;
}

/** What the decisions need of an entry, under the names that the domain gives it. */
function workJson(sql: LaneSql, w: Fragment) {
  return sql`case when ${w}.work_id is not null then json_build_object(
    'workId', ${w}.work_id, 'parentSessionId', ${w}.parent_session_id,
    'childSessionId', ${w}.child_session_id, 'agent', ${w}.agent, 'title', ${w}.title,
    'createdBy', ${w}.created_by, 'recovered', ${w}.recovered, 'status', ${w}.status,
    'revision', ${w}.revision, 'lastItemSeq', ${w}.last_item_seq,
    'resultDigest', ${w}.result_digest,
    'resultResponseId', ${w}.result_response_id, 'provisional', ${w}.provisional,
    'awaitsText', ${w}.awaits_text,
    'createdAt', ${epochMs(sql, sql`${w}.created_at`)},
    'task', case when ${w}.unit_id is not null then json_build_object(
      'delegationId', ${w}.delegation_id, 'unitId', ${w}.unit_id, 'taskIndex', ${w}.task_index,
      'model', ${w}.model,
      'mode', (select d.mode from delegations d where d.tenant_id = ${w}.tenant_id
        and d.delegation_id = ${w}.delegation_id),
      'apiCalls', (select h.api_calls from heartbeats h where h.tenant_id = ${w}.tenant_id
        and h.child_session_id = ${w}.child_session_id and h.work_id = ${w}.work_id)
    ) end) end`;
}

function loadReports(
  sql: LaneSql,
  keys: Fragment,
  reports: readonly Report[],
  { maxPendingItems, roomy, parkAfterAttempts, now }: LoadOptions,
) {
  // Where no report asks for a text it is only said that there is one: the result uses it up.
  const wantsText = reports.some(
    (r) => r.status === 'idle' && (r.output === null || isBlank(r.output)),
  );
  return sql<LoadedRow[]>`
    with path as materialized (
      select r.n, s.id as session_id, s.described_at is not null as described,
        s.deleted_at is not null as deleted, s.parent_session_id, s.agent_name, s.sub_agent_name,
        s.status, s.background_task_count, s.blocked_on, s.error_code, s.error_message,
        s.response_id, s.current_work_id, s.last_report, s.ran_since_result, s.last_digest,
        s.upstream_message_id,
        ${workJson(sql, sql`w`)} as work,
        case when nw.work_id is distinct from w.work_id then ${workJson(sql, sql`nw`)} end as named,
        case when tr.work_id is not null then
          json_build_object('workId', tr.work_id, 'delivered', tr.delivered) end as response,
        case when not x.fresh or xr.work_id is null or (xr.work_id = s.current_work_id
            and (not xr.delivered or x.response_id = coalesce(r.response_id, s.response_id)))
          then case when ${wantsText} then x.text when x.fresh then '' end
        end as text,
        x.response_id as text_response_id, x.fresh as text_fresh,
        case when k.id is not null then json_build_object('id', k.id, 'turn', k.turn,
          'state', k.state, 'status', k.status, 'outcome', k.outcome,
          'responseId', k.response_id, 'workId', k.work_id, 'tries', k.tries) end as parked,
        r.tenant_id, r.terminal, coalesce(p.tip_session_id, p.id) as inbox_id,
        case when t.id is null then p.deleted_at else t.deleted_at end is not null
          as inbox_deleted,
        case when t.id is null then p.inbox_opened_at is not null and p.inbox_closed_at is null
          else t.inbox_opened_at is not null and t.inbox_closed_at is null end as inbox_open,
        case when t.id is null then p.inbox_moves else t.inbox_moves end as inbox_moves,
        case when t.id is null then p.channel else t.channel end ->> 'kind' as inbox_channel,
        (select true from viewers q where q.session_id = coalesce(t.id, p.id)
          and q.tenant_id = p.tenant_id and greatest(q.renewed_at,
            (select y.uninterrupted_since from service_watch y where y.tenant_id = '')
          ) + q.lease_ms * interval '1 millisecond' > ${instantToWire(now)}::timestamptz
          limit 1) is not null as inbox_viewed,
        (select true from wakes q where q.tenant_id = r.tenant_id and q.session_id = r.id)
          is not null as has_wake,
        coalesce(nw.unit_id, w.unit_id) as unit_id
      from ${reportPath(sql, keys)}
      left join lateral (
        select * from sessions q
        where q.tenant_id = p.tenant_id and q.id = p.tip_session_id limit 1
      ) t on true
      left join lateral (
        select * from assistant_texts q
        where q.tenant_id = r.tenant_id and q.session_id = r.id limit 1
      ) x on true
      left join lateral (
        select * from turn_responses q
        where q.tenant_id = r.tenant_id and q.child_session_id = r.id
          and q.response_key = sha256(convert_to(x.response_id, 'UTF8')) limit 1
      ) xr on true
      left join lateral (
        select * from parked_reports q
        where q.tenant_id = r.tenant_id and q.child_session_id = r.id and q.turn > 0
          and (r.parked_id is null or q.id = r.parked_id)
        order by q.turn desc limit 1
      ) k on true
    )
    select path.*, nextval('item_seq') as item_seq, case when n = 1 then (
      select json_agg(json_build_object('tenantId', d.tenant_id, 'id', d.inbox_id,
        'moves', d.inbox_moves,
        'pending', case when (d.tenant_id, d.inbox_id, d.inbox_moves) not in (
          select * from unnest(${roomy.map((r) => r.tenantId)}::text[],
            ${roomy.map((r) => r.sessionId)}::text[], ${roomy.map((r) => r.moves)}::int[])
        ) then (select count(*) from (
          select 1 from items i where i.tenant_id = d.tenant_id and i.session_id = d.inbox_id
            and i.acked_at is null limit ${maxPendingItems}) q) end,
        'parked', exists (
          select 1 from parked_reports q where q.tenant_id = d.tenant_id
            and q.parent_session_id = d.inbox_id and q.state = 'parked'
            and q.tries >= ${parkAfterAttempts})))
      from (
        select distinct tenant_id, inbox_id, inbox_moves from path where terminal and inbox_id is not null
      ) d
    ) end as inboxes, case when n = 1 then (
      select json_agg(json_build_object('tenantId', u.tenant_id, 'unitId', u.unit_id,
        'delegationId', u.delegation_id, 'group', u.group_name,
        'ended', u.ended_at is not null, 'revision', u.revision,
        'lastItemSeq', u.last_item_seq, 'open', t.open,
        'results', case when t.may_end then coalesce((
          select json_agg(${shownResult(sql)} order by q.task_index) from work q
          where q.unit_id = u.unit_id and q.tenant_id = u.tenant_id and q.result is not null
          ), '[]') end,
        'mode', d.mode, 'wakes', d.wakes, 'notifyFailures', d.notify_failures,
        'dispatchedAt', ${epochMs(sql, sql`d.created_at`)},
        'parentSessionId', d.parent_session_id))
      from (
        select tenant_id, unit_id, count(*) as reports from path
        where terminal and unit_id is not null group by tenant_id, unit_id
      ) k
      join units u on u.tenant_id = k.tenant_id and u.unit_id = k.unit_id
      join delegations d on d.tenant_id = u.tenant_id and d.delegation_id = u.delegation_id
      cross join lateral (
        select count(*) as open, u.ended_at is not null or count(*) <= k.reports as may_end
        from (
          select 1 from work q where q.unit_id = u.unit_id
            and q.tenant_id = u.tenant_id and q.ended_at is null limit k.reports + 1
        ) q
      ) t
    ) end as units
    from (select * from path order by n) path`;
}

function shownResult(sql: LaneSql) {
  return sql`(q.result - 'output') || jsonb_build_object(
    'summary', left(q.result ->> 'summary', ${LOADED_MAX}::int),
    'error', left(q.result ->> 'error', ${LOADED_MAX}::int))`;
}

function unitOf(row: LoadedUnit): UnitState {
  const dispatchedAt = { ms: row.dispatchedAt, text: instantToWire(row.dispatchedAt) };
  return {
    unitId: row.unitId,
    delegationId: row.delegationId,
    group: row.group,
    ended: row.ended,
    revision: row.revision,
    lastItemSeq: row.lastItemSeq,
    open: row.open,
    results: row.results,
    call: {
      mode: row.mode,
      wakes: row.wakes,
      notifyFailures: row.notifyFailures,
      dispatchedAt,
      parentSessionId: row.parentSessionId,
    },
  };
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
            lastDigest: row.last_digest,
            upstreamMessageId: row.upstream_message_id,
          },
    inbox: inbox
      ? {
          sessionId: inbox.id,
          deleted: row.inbox_deleted,
          open: row.inbox_open,
          disposition: disposition({
            channelKind: row.inbox_channel,
            viewers: row.inbox_viewed ? 1 : 0,
          }),
          room: inbox.pending === null ? Infinity : maxPendingItems - inbox.pending,
        }
      : null,
    work: row.work,
    named: row.named,
    response: row.response,
    text:
      row.text === null
        ? null
        : { text: row.text, responseId: row.text_response_id, fresh: row.text_fresh === true },
    parked: row.parked,
    parentParked: inbox?.parked ?? false,
  };
}
