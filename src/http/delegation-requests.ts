import { z } from '@hono/zod-openapi';
import type { DeclaredChannel } from '../domain/channel.ts';
import type { StallSettings } from '../domain/liveness.ts';
import { nameOrNull } from '../domain/names.ts';
import type { OrderedDelegation } from '../operations/delegate.ts';
import {
  clamped,
  duration,
  keyOrEmpty,
  maxConcurrent,
  name,
  SECONDS_MAX,
  sessionId,
  text,
  title,
} from './wire.ts';

/* Delegations as requests have them. */

const TASKS_MAX = 1_000;
const DEADLINE_DEFAULT_SECONDS = 86_400;
const STALL_DEFAULT: StallSettings = { idleMs: 450_000, inToolMs: 1_200_000, graceMs: 120_000 };

const channelIn = z.object({
  kind: name.nullish(),
  async_delivery: z.boolean().nullish(),
  history_delivery: z.boolean().nullish(),
  route: name.nullish(),
});

const taskIn = z.object({
  goal: text(),
  child_session_id: sessionId.nullish(),
  agent: name.nullish(),
  title: title.nullish(),
  group: name.nullish(),
  model: name.nullish(),
});

/** What a parent asks for. */
export const delegationBody = z.object({
  tasks: z.array(taskIn).min(1).max(TASKS_MAX),
  context: text().nullish(),
  toolsets: z.array(name).nullish(),
  role: name.nullish(),
  model: name.nullish(),
  session_key: keyOrEmpty.nullish(),
  origin_ui_session_id: keyOrEmpty.nullish(),
  max_concurrent: maxConcurrent.nullish(),
  independent_completions: z.boolean().nullish(),
  child_timeout_seconds: duration.nullish(),
  deadline_seconds: duration.nullish(),
  stall: z
    .object({
      idle_seconds: duration.nullish(),
      in_tool_seconds: duration.nullish(),
      grace_seconds: clamped({ min: 0, max: SECONDS_MAX }).nullish(),
    })
    .nullable()
    .optional(),
  notify: z.boolean().nullish(),
  notify_failures: z.boolean().nullish(),
  channel: channelIn.nullish(),
  finite: z.unknown().optional(),
});

type DelegationBody = z.output<typeof delegationBody>;

/** The order that the body stands for. */
export function orderOf(
  of: { tenantId: string; sessionId: string },
  body: DelegationBody,
): OrderedDelegation {
  return {
    ...of,
    tasks: body.tasks.map((task) => ({
      goal: task.goal,
      childId: task.child_session_id ?? null,
      agent: nameOrNull(task.agent),
      title: task.title ?? null,
      group: nameOrNull(task.group),
      model: nameOrNull(task.model),
    })),
    context: body.context ?? null,
    toolsets: body.toolsets ?? null,
    role: body.role ?? null,
    model: nameOrNull(body.model),
    sessionKey: body.session_key || null,
    originUiSessionId: body.origin_ui_session_id || null,
    maxConcurrent: body.max_concurrent ?? null,
    independentCompletions: body.independent_completions ?? false,
    childTimeoutMs: body.child_timeout_seconds == null ? null : ms(body.child_timeout_seconds),
    deadlineMs: ms(body.deadline_seconds ?? DEADLINE_DEFAULT_SECONDS),
    stall: stallOf(body.stall),
    notifyFailures: body.notify_failures ?? false,
    channel: channelOf(body.channel),
    finite: body.finite,
    request: requestOf(body),
  };
}

function ms(seconds: number): number {
  return Math.ceil(seconds * 1000);
}

function stallOf(said: DelegationBody['stall']): StallSettings | null {
  if (said === null) return null;
  const { idleMs, inToolMs, graceMs } = STALL_DEFAULT;
  return {
    idleMs: said?.idle_seconds == null ? idleMs : ms(said.idle_seconds),
    inToolMs: said?.in_tool_seconds == null ? inToolMs : ms(said.in_tool_seconds),
    graceMs: said?.grace_seconds == null ? graceMs : ms(said.grace_seconds),
  };
}

function channelOf(said: DelegationBody['channel']): DeclaredChannel | null {
  return said == null ? null : sayings(said);
}

/** What of the request answers repeat, besides what has a place of its own. */
function requestOf(body: DelegationBody): Record<string, unknown> {
  const { finite } = body;
  const said = sayings({
    max_concurrent: body.max_concurrent,
    independent_completions: body.independent_completions,
    child_timeout_seconds: body.child_timeout_seconds,
    deadline_seconds: body.deadline_seconds,
    stall: body.stall && sayings(body.stall),
    notify: body.notify,
    finite: finite === true || finite === '1' ? finite : undefined,
  });
  // Here null is said: such children never stall.
  return body.stall === null ? { ...said, stall: null } : said;
}

function sayings(members: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(members).filter(([, value]) => value != null));
}
