import { sql } from 'drizzle-orm';
import {
  bigint,
  boolean,
  check,
  foreignKey,
  index,
  integer,
  jsonb,
  pgSequence,
  pgTable,
  primaryKey,
  smallint,
  text,
  unique,
  uniqueIndex,
} from 'drizzle-orm/pg-core';
import { bytea, instant } from './column-types.ts';

/*
 * The tables. `tenant_id` is the first column of every primary and unique key: isolation today, a
 * distribution column tomorrow. The other indexes begin with what they are for: beside a key, an
 * index that begins with the tenant looks as good to a planner without statistics, and reads it all.
 * What must never be false stands here as a constraint.
 */

const tenantId = text('tenant_id').notNull();

/**
 * One row a session: its snapshot, its status, and the state of its inbox. A stub (described_at is
 * null) was only named so far. A deleted session stays as a marker (deleted_at) until retention.
 */
export const sessions = pgTable(
  'sessions',
  {
    tenantId,
    id: text('id').notNull(),
    createdAt: instant('created_at').notNull(),
    describedAt: instant('described_at'),
    deletedAt: instant('deleted_at'),
    parentSessionId: text('parent_session_id'),
    agentId: text('agent_id'),
    agentName: text('agent_name'),
    subAgentName: text('sub_agent_name'),
    title: text('title'),
    workspace: text('workspace'),
    runnerId: text('runner_id'),
    channel: jsonb('channel').$type<Record<string, unknown>>(),
    maxConcurrent: integer('max_concurrent'),
    continuedAs: text('continued_as'),
    /** The last session of the continued_as chain that begins here; null means this one. */
    tipSessionId: text('tip_session_id'),
    status: text('status').notNull().default('idle'),
    backgroundTaskCount: bigint('background_task_count', { mode: 'number' }).notNull().default(0),
    blockedOn: text('blocked_on'),
    errorCode: text('error_code'),
    errorMessage: text('error_message'),
    /** The agent's id of the turn that runs now, as the last report named it. */
    responseId: text('response_id'),
    closedAt: instant('closed_at'),
    endReason: text('end_reason'),
    inboxOpenedAt: instant('inbox_opened_at'),
    inboxClosedAt: instant('inbox_closed_at'),
    /** How often unread items have moved into it: what was counted before is out of date. */
    inboxMoves: integer('inbox_moves').notNull().default(0),
    currentWorkId: text('current_work_id'),
    /** Fingerprint of the last status event that was applied: an equal one changes nothing. */
    lastReport: text('last_report'),
    /** A `running` has arrived since the last terminal report that was delivered or parked. */
    ranSinceResult: boolean('ran_since_result').notNull().default(false),
    /** Fingerprint of the last result of its own that was delivered, of whichever turn. */
    lastDigest: text('last_digest'),
    /** The newest message of upstream that a result took its text from. */
    upstreamMessageId: text('upstream_message_id'),
  },
  (t) => [
    primaryKey({ columns: [t.tenantId, t.id] }),
    index('sessions_by_parent')
      .on(t.parentSessionId, t.tenantId, t.createdAt)
      .where(sql`${t.parentSessionId} is not null`),
    index('sessions_by_runner')
      .on(t.runnerId, t.tenantId)
      .where(sql`${t.runnerId} is not null`),
    index('sessions_deleted')
      .on(t.deletedAt)
      .where(sql`${t.deletedAt} is not null`),
    index('sessions_by_tip')
      .on(t.tipSessionId, t.tenantId)
      .where(sql`${t.tipSessionId} is not null`),
    index('sessions_by_route')
      .on(sql`(${t.channel} ->> 'route')`, t.tenantId)
      .where(sql`${t.channel} ->> 'route' is not null`),
    check('sessions_status_known', sql`${t.status} in ('idle', 'running', 'waiting', 'failed')`),
    check('sessions_background_task_count_not_negative', sql`${t.backgroundTaskCount} >= 0`),
    check('sessions_error_whole', sql`(${t.errorCode} is null) = (${t.errorMessage} is null)`),
    check(
      'sessions_inbox_closed_after_opened',
      sql`${t.inboxClosedAt} is null or ${t.inboxOpenedAt} is not null`,
    ),
    check(
      'sessions_chain_whole',
      sql`(${t.continuedAs} is null) = (${t.tipSessionId} is null) and ${t.continuedAs} is distinct from ${t.id}`,
    ),
  ],
);

/**
 * One row a dispatch, and its tombstone once it has ended. `revision` counts the items that this
 * turn has put into the inbox.
 */
export const work = pgTable(
  'work',
  {
    tenantId,
    workId: text('work_id').notNull(),
    parentSessionId: text('parent_session_id').notNull(),
    childSessionId: text('child_session_id').notNull(),
    agent: text('agent').notNull(),
    title: text('title').notNull(),
    createdBy: text('created_by'),
    recovered: boolean('recovered').notNull().default(false),
    status: text('status').notNull(),
    createdAt: instant('created_at').notNull(),
    endedAt: instant('ended_at'),
    deadlineAt: instant('deadline_at'),
    revision: integer('revision').notNull().default(0),
    lastItemSeq: bigint('last_item_seq', { mode: 'number' }),
    /** Fingerprint of status and output of the last result that was delivered. */
    resultDigest: text('result_digest'),
    resultResponseId: text('result_response_id'),
    /** The delivered result may have been a repeat of the turn before: a different one follows. */
    provisional: boolean('provisional').notNull().default(false),
    /** Delivered without text: text that arrives late follows, once. */
    awaitsText: boolean('awaits_text').notNull().default(false),

    /** A task of a delegation: its result joins its unit's, and no item of its own is delivered. */
    delegationId: text('delegation_id'),
    unitId: text('unit_id'),
    taskIndex: integer('task_index'),
    goal: text('goal'),
    model: text('model'),
    /** The result of a task, as the unit's item shows it. */
    result: jsonb('result').$type<Record<string, unknown>>(),
    /** Its child was deleted: it counts for its unit, and for no session that comes after. */
    retired: boolean('retired').notNull().default(false),

    /**
     * No clock of this entry runs out before: a lower bound, moved only when it has passed. null when
     * it has none or has ended, so that the end of one without clocks changes no index.
     */
    dueAt: instant('due_at'),
    childTimeoutMs: bigint('child_timeout_ms', { mode: 'number' }),
    stall: jsonb('stall').$type<{ idleMs: number; inToolMs: number; graceMs: number }>(),
    /** What the stall was when it was seen. */
    stalled: jsonb('stalled').$type<Record<string, unknown>>(),
    /** Why the runner is asked to stop the child; null: it is not. */
    interruptReason: text('interrupt_reason'),
    interruptedAt: instant('interrupted_at'),
    graceMs: bigint('grace_ms', { mode: 'number' }),
  },
  (t) => [
    primaryKey({ columns: [t.tenantId, t.workId] }),
    index('work_by_parent').on(t.parentSessionId, t.tenantId, t.workId),
    index('work_by_child').on(t.childSessionId, t.tenantId),
    index('work_by_unit')
      .on(t.unitId, t.tenantId, t.taskIndex)
      .where(sql`${t.unitId} is not null`),
    index('work_by_delegation')
      .on(t.delegationId, t.tenantId, t.taskIndex)
      .where(sql`${t.delegationId} is not null`),
    index('work_due')
      .on(t.dueAt)
      .where(sql`${t.dueAt} is not null`),
    check(
      'work_task_whole',
      sql`(${t.unitId} is null) = (${t.taskIndex} is null) and (${t.unitId} is null) = (${t.delegationId} is null)`,
    ),
    check(
      'work_task_result_at_end',
      sql`${t.unitId} is null or (${t.endedAt} is null) = (${t.result} is null)`,
    ),
    check(
      'work_status_known',
      sql`${t.status} in ('launching', 'running', 'cancelling', 'stalling', 'completed', 'failed', 'cancelled', 'interrupted', 'stalled', 'timeout', 'error', 'unknown')`,
    ),
    check(
      'work_ended_or_live',
      sql`(${t.endedAt} is null) = (${t.status} in ('launching', 'running', 'cancelling', 'stalling'))`,
    ),
    check('work_due_while_live', sql`${t.endedAt} is null or ${t.dueAt} is null`),
    check(
      'work_item_per_revision',
      sql`${t.unitId} is not null or (${t.revision} = 0) = (${t.lastItemSeq} is null)`,
    ),
  ],
);

/**
 * Results that came after the end of their turn and add nothing to the inbox: of each entry a bounded
 * number, equal ones once. `digest` is the SHA-256 of what makes them equal.
 */
export const lateResults = pgTable(
  'late_results',
  {
    tenantId,
    workId: text('work_id').notNull(),
    digest: bytea('digest').notNull(),
    /** In the order in which they came; drawn as items draw theirs. */
    seq: bigint('seq', { mode: 'number' }).notNull(),
    status: text('status').notNull(),
    output: text('output').notNull(),
    responseId: text('response_id'),
    reportedAt: instant('reported_at').notNull(),
  },
  (t) => [
    primaryKey({ columns: [t.tenantId, t.workId, t.digest] }),
    foreignKey({
      name: 'late_results_work',
      columns: [t.tenantId, t.workId],
      foreignColumns: [work.tenantId, work.workId],
    }).onDelete('cascade'),
  ],
);

/** Numbers items in the order of their delivery; taken under the child's lock. */
export const itemSeq = pgSequence('item_seq');

/**
 * What a parent has to read. `source` is what makes delivery happen once: `work:<work id>:<revision>`.
 * `seq` gives the order of delivery and the item's id.
 */
export const items = pgTable(
  'items',
  {
    tenantId,
    sessionId: text('session_id').notNull(),
    seq: bigint('seq', { mode: 'number' }).notNull(),
    source: text('source').notNull(),
    type: text('type').notNull(),
    /** The call that it is an item of: what it repeats of it is read there. */
    delegationId: text('delegation_id'),
    workId: text('work_id'),
    childSessionId: text('child_session_id'),
    agent: text('agent').notNull(),
    title: text('title').notNull(),
    status: text('status').notNull(),
    output: text('output').notNull(),
    recovered: boolean('recovered').notNull().default(false),
    followsSeq: bigint('follows_seq', { mode: 'number' }),
    revision: integer('revision').notNull().default(1),
    disposition: text('disposition').notNull().default('turn'),
    /** Its parent is to be told of it: a turn, and not for a client that reads its history. */
    wakes: boolean('wakes').notNull().default(true),
    responseId: text('response_id'),
    createdBy: text('created_by'),
    traceparent: text('traceparent'),
    /** What an item of a call says beyond these columns and its call's. */
    details: jsonb('details').$type<Record<string, unknown>>(),
    deliveredAt: instant('delivered_at').notNull(),
    deliveryCount: integer('delivery_count').notNull().default(0),
    leasedUntil: instant('leased_until'),
    ackedAt: instant('acked_at'),
  },
  (t) => [
    primaryKey({ columns: [t.tenantId, t.sessionId, t.seq] }),
    unique('items_once_per_source').on(t.tenantId, t.source),
    index('items_pending')
      .on(t.sessionId, t.tenantId, t.seq)
      .where(sql`${t.ackedAt} is null`),
    index('items_waking')
      .on(t.sessionId, t.tenantId, t.seq)
      .where(sql`${t.ackedAt} is null and ${t.wakes}`),
    index('items_acked')
      .on(t.ackedAt)
      .where(sql`${t.ackedAt} is not null`),
    index('items_by_delegation')
      .on(t.delegationId, t.tenantId)
      .where(sql`${t.delegationId} is not null`),
    foreignKey({
      name: 'items_delegation',
      columns: [t.tenantId, t.delegationId],
      foreignColumns: [delegations.tenantId, delegations.delegationId],
    }),
    check(
      'items_of_delegation_or_work',
      sql`(${t.type} = 'sub_agent') = (${t.delegationId} is null)`,
    ),
    check('items_disposition_known', sql`${t.disposition} in ('note', 'turn')`),
    check('items_revision_positive', sql`${t.revision} >= 1`),
  ],
);

/**
 * Which turn of a child the agent's own turn ids belong to: a late duplicate names its turn. The
 * key is the id's SHA-256: with the session's id, the id itself may be longer than an index entry.
 */
export const turnResponses = pgTable(
  'turn_responses',
  {
    tenantId,
    childSessionId: text('child_session_id').notNull(),
    responseKey: bytea('response_key').notNull(),
    workId: text('work_id').notNull(),
    delivered: boolean('delivered').notNull(),
  },
  (t) => [
    primaryKey({ columns: [t.tenantId, t.childSessionId, t.responseKey] }),
    index('turn_responses_by_work').on(t.workId, t.tenantId),
    foreignKey({
      name: 'turn_responses_work',
      columns: [t.tenantId, t.workId],
      foreignColumns: [work.tenantId, work.workId],
    }).onDelete('cascade'),
  ],
);

/**
 * Terminal reports that could not be delivered (`parked`), and those that never will be (`dead`).
 * `turn` orders the reports of one child; one a turn.
 */
export const parkedReports = pgTable(
  'parked_reports',
  {
    tenantId,
    id: text('id').notNull(),
    childSessionId: text('child_session_id').notNull(),
    turn: integer('turn').notNull(),
    state: text('state').notNull(),
    parentSessionId: text('parent_session_id'),
    reason: text('reason').notNull(),
    status: text('status').notNull(),
    outcome: text('outcome'),
    output: text('output'),
    responseId: text('response_id'),
    workId: text('work_id'),
    result: jsonb('result').$type<Record<string, unknown>>(),
    afterRunning: boolean('after_running').notNull(),
    traceparent: text('traceparent'),
    tries: integer('tries').notNull(),
    firstAt: instant('first_at').notNull(),
    lastAt: instant('last_at').notNull(),
    deadAt: instant('dead_at'),
  },
  (t) => [
    primaryKey({ columns: [t.tenantId, t.id] }),
    uniqueIndex('parked_reports_one_per_turn').on(t.tenantId, t.childSessionId, t.turn),
    index('parked_reports_by_parent')
      .on(t.parentSessionId, t.tenantId)
      .where(sql`${t.state} = 'parked'`),
    index('parked_reports_to_probe')
      .on(t.id)
      .where(
        sql`${t.state} = 'parked' and ${t.reason} in ('snapshot_unavailable', 'output_unavailable')`,
      ),
    index('parked_reports_by_state').on(t.state, t.tenantId, t.id),
    check('parked_reports_state_known', sql`${t.state} in ('parked', 'dead')`),
    check('parked_reports_dead_since', sql`(${t.state} = 'dead') = (${t.deadAt} is not null)`),
  ],
);

/** The newest assistant text of each session; `fresh` until a result has been delivered after it. */
export const assistantTexts = pgTable(
  'assistant_texts',
  {
    tenantId,
    sessionId: text('session_id').notNull(),
    text: text('text').notNull(),
    responseId: text('response_id'),
    fresh: boolean('fresh').notNull(),
    receivedAt: instant('received_at').notNull(),
  },
  (t) => [primaryKey({ columns: [t.tenantId, t.sessionId] })],
);

/**
 * The first 2xx answer to each Idempotency-Key, kept for 24 h. `request_key` is the SHA-256 of path
 * and key: together they may be longer than an index entry.
 */
export const idempotencyKeys = pgTable(
  'idempotency_keys',
  {
    tenantId,
    requestKey: bytea('request_key').notNull(),
    fingerprint: text('fingerprint').notNull(),
    answerStatus: smallint('answer_status'),
    answer: jsonb('answer').$type<Record<string, unknown>>(),
    createdAt: instant('created_at').notNull(),
  },
  (t) => [
    primaryKey({ columns: [t.tenantId, t.requestKey] }),
    index('idempotency_keys_by_age').on(t.createdAt),
  ],
);

/**
 * One row a call: what was asked for, and what its items repeat. Ends with its last unit. One without
 * units is gone, and is kept for items that are in another session's inbox still.
 */
export const delegations = pgTable(
  'delegations',
  {
    tenantId,
    delegationId: text('delegation_id').notNull(),
    /** The session that was asked, and the one that the results go to: the end of its chain then. */
    originSessionId: text('origin_session_id').notNull(),
    parentSessionId: text('parent_session_id').notNull(),
    mode: text('mode').notNull(),
    /** false: its items are delivered without a wake. */
    wakes: boolean('wakes').notNull(),
    taskCount: integer('task_count').notNull(),
    goals: jsonb('goals').$type<string[]>().notNull(),
    context: text('context'),
    toolsets: jsonb('toolsets').$type<unknown>(),
    role: text('role'),
    model: text('model'),
    /** How much text it adds to each of its items. */
    textBytes: integer('text_bytes')
      .notNull()
      .generatedAlwaysAs(
        sql`octet_length(goals::text) + coalesce(octet_length(context), 0) + coalesce(octet_length(toolsets::text), 0)`,
      ),
    sessionKey: text('session_key'),
    originUiSessionId: text('origin_ui_session_id'),
    channel: jsonb('channel').$type<Record<string, unknown>>(),
    /** The other fields of the request, as it had them. */
    request: jsonb('request').$type<Record<string, unknown>>().notNull(),
    notifyFailures: boolean('notify_failures').notNull(),
    createdAt: instant('created_at').notNull(),
    endedAt: instant('ended_at'),
  },
  (t) => [
    primaryKey({ columns: [t.tenantId, t.delegationId] }),
    index('delegations_by_parent').on(t.parentSessionId, t.tenantId, t.delegationId),
    /** What is counted against the capacity. */
    index('delegations_active')
      .on(t.parentSessionId, t.tenantId)
      .where(sql`${t.endedAt} is null`),
    index('delegations_active_by_key')
      .on(t.sessionKey, t.tenantId)
      .where(sql`${t.endedAt} is null and ${t.sessionKey} is not null`),
    check('delegations_mode_known', sql`${t.mode} in ('background', 'inline')`),
  ],
);

/** The tasks of a call whose results are delivered together. Its row is the lock of their join. */
export const units = pgTable(
  'units',
  {
    tenantId,
    unitId: text('unit_id').notNull(),
    delegationId: text('delegation_id').notNull(),
    ordinal: integer('ordinal').notNull(),
    groupName: text('group_name'),
    taskIndexes: jsonb('task_indexes').$type<number[]>().notNull(),
    status: text('status').notNull(),
    endedAt: instant('ended_at'),
    revision: integer('revision').notNull().default(0),
    lastItemSeq: bigint('last_item_seq', { mode: 'number' }),
  },
  (t) => [
    primaryKey({ columns: [t.tenantId, t.unitId] }),
    index('units_by_delegation').on(t.delegationId, t.tenantId, t.ordinal),
    check(
      'units_status_known',
      sql`${t.status} in ('running', 'completed', 'failed', 'error', 'timeout', 'interrupted', 'stalled', 'unknown')`,
    ),
    check('units_ended_or_running', sql`(${t.endedAt} is null) = (${t.status} = 'running')`),
  ],
);

/**
 * The newest sign of life of each child: narrow, updated in place, in no index. `progress_at` is
 * when the last change arrived here, or the first beat while nothing has changed (`progressed`); the
 * runner's own times are only compared with each other.
 */
export const heartbeats = pgTable(
  'heartbeats',
  {
    tenantId,
    childSessionId: text('child_session_id').notNull(),
    workId: text('work_id'),
    apiCalls: bigint('api_calls', { mode: 'number' }),
    currentTool: text('current_tool'),
    lastActivityAt: text('last_activity_at'),
    progressed: boolean('progressed').notNull(),
    progressAt: instant('progress_at').notNull(),
  },
  (t) => [primaryKey({ columns: [t.tenantId, t.childSessionId] })],
);

/** The leases of runner nodes; `lost_at` is set when one has run out, until it is renewed. */
export const runners = pgTable(
  'runners',
  {
    tenantId,
    runnerId: text('runner_id').notNull(),
    leaseMs: bigint('lease_ms', { mode: 'number' }).notNull(),
    renewedAt: instant('renewed_at').notNull(),
    lostAt: instant('lost_at'),
  },
  (t) => [primaryKey({ columns: [t.tenantId, t.runnerId] })],
);

/** What the service knows of its own presence: nothing is judged for a time that nobody watched. */
export const serviceWatch = pgTable(
  'service_watch',
  {
    tenantId,
    observedAt: instant('observed_at').notNull(),
    uninterruptedSince: instant('uninterrupted_since').notNull(),
  },
  (t) => [primaryKey({ columns: [t.tenantId] })],
);

/** Who watches a session, each for as long as its lease lasts. */
export const viewers = pgTable(
  'viewers',
  {
    tenantId,
    viewerId: text('viewer_id').notNull(),
    sessionId: text('session_id').notNull(),
    attachedAt: instant('attached_at').notNull(),
    renewedAt: instant('renewed_at').notNull(),
    leaseMs: bigint('lease_ms', { mode: 'number' }).notNull(),
  },
  (t) => [
    primaryKey({ columns: [t.tenantId, t.viewerId] }),
    index('viewers_by_session').on(t.sessionId, t.tenantId),
  ],
);

/**
 * The work that a closing session leaves running: written in the transaction that closes it, and
 * removed as each is asked to stop, so that no crash and no viewer who returns leaves some of it.
 */
export const closingInterrupts = pgTable(
  'closing_interrupts',
  {
    tenantId,
    workId: text('work_id').notNull(),
    sessionId: text('session_id').notNull(),
    childSessionId: text('child_session_id').notNull(),
    closedAt: instant('closed_at').notNull(),
  },
  (t) => [
    primaryKey({ columns: [t.tenantId, t.workId] }),
    index('closing_interrupts_by_age').on(t.closedAt),
  ],
);

/** Whether a parent was told of its inbox, and when it is told again (domain/wake.ts). */
export const wakes = pgTable(
  'wakes',
  {
    tenantId,
    sessionId: text('session_id').notNull(),
    pending: boolean('pending').notNull(),
    lastNotice: text('last_notice'),
    repeatAt: instant('repeat_at'),
    repeatDelayMs: bigint('repeat_delay_ms', { mode: 'number' }).notNull(),
    announcements: integer('announcements').notNull(),
    /** The place among the items up to which it says how the parent stands. */
    asOf: bigint('as_of', { mode: 'number' }).notNull(),
    /** The last announcement as it was made, for the streams. */
    told: jsonb('told').$type<{ notice: string; pending: number; itemId: string | null }>(),
  },
  (t) => [
    primaryKey({ columns: [t.tenantId, t.sessionId] }),
    index('wakes_to_repeat')
      .on(t.repeatAt)
      .where(sql`${t.repeatAt} is not null`),
  ],
);

/** Where a parent is woken from outside. */
export const webhooks = pgTable(
  'webhooks',
  {
    tenantId,
    sessionId: text('session_id').notNull(),
    url: text('url').notNull(),
    secret: text('secret'),
    format: text('format').notNull(),
    createdAt: instant('created_at').notNull(),
  },
  (t) => [
    primaryKey({ columns: [t.tenantId, t.sessionId] }),
    check('webhooks_format_known', sql`${t.format} in ('standard', 'session_message')`),
  ],
);

/**
 * Wakes on their way to a webhook, at most the newest of a session. A replica that sends one moves
 * `due_at` behind the time that it may take: if it dies, another sends it then.
 */
export const webhookWakes = pgTable(
  'webhook_wakes',
  {
    tenantId,
    sessionId: text('session_id').notNull(),
    id: text('id').notNull(),
    /** The number that the announcement has in the wake state. */
    number: integer('number').notNull(),
    notice: text('notice').notNull(),
    pending: integer('pending').notNull(),
    itemId: text('item_id'),
    createdBy: text('created_by'),
    withCreatedBy: boolean('with_created_by').notNull().default(true),
    tries: integer('tries').notNull().default(0),
    dueAt: instant('due_at').notNull(),
    createdAt: instant('created_at').notNull(),
  },
  (t) => [
    primaryKey({ columns: [t.tenantId, t.sessionId] }),
    index('webhook_wakes_due').on(t.dueAt),
  ],
);
