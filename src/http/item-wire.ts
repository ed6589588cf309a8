import { z } from '@hono/zod-openapi';
import {
  withOrigin,
  type DelegationDetails,
  type DelegationItem,
  type DelegationOrigin,
  type TaskFailedDetails,
  type TaskFailedItem,
} from '../domain/delegation-item.ts';
import { delegationText, displayText, taskFailedText } from '../domain/delegation-text.ts';
import { itemId } from '../domain/item-id.ts';
import { EMPTY_INBOX, subAgentText } from '../domain/item-text.ts';
import type { ItemRow } from '../operations/list-items.ts';
import { stallFields, taskResultOut } from './delegation-answers.ts';
import { instant, instantOut } from './wire.ts';

/** What every item has. */
const common = {
  id: z.string(),
  status: z.string(),
  text: z.string().openapi({ description: 'For the model to read; a long output is cut' }),
  follows: z.string().nullable().openapi({ description: 'The item that this one follows up' }),
  revision: z.int().min(1),
  disposition: z.enum(['note', 'turn']),
  human_input: z.literal(false),
  delivered_at: instant,
  delivery_count: z.int().min(0),
  traceparent: z.string().nullable(),
};

const subAgentItemOut = z
  .object({
    ...common,
    type: z.literal('sub_agent'),
    work_id: z.string().nullable(),
    task_id: z.string().nullable(),
    handle_id: z.string().nullable(),
    conversation_id: z.string().nullable().openapi({ description: 'The child session' }),
    tool_name: z.string(),
    agent: z.string(),
    title: z.string(),
    output: z.string().openapi({ description: 'Whole, however long' }),
    recovered: z.boolean(),
    response_id: z.string().nullable(),
    created_by: z.string().nullable(),
  })
  .openapi('SubAgentItem');

/** What the items of delegations repeat of their call. */
const ofDelegation = {
  delegation_id: z.string().openapi({ description: "The unit's" }),
  session_key: z.string().nullable(),
  origin_ui_session_id: z.string().nullable(),
  origin_session_id: z.string(),
  parent_session_id: z.string(),
  goals: z.array(z.string()).openapi({ description: 'Of the whole call' }),
  context: z.string().nullable(),
  toolsets: z.array(z.string()).nullable(),
  role: z.string().nullable(),
  model: z.string().nullable(),
  results: z.array(taskResultOut),
  group: z.string().nullable(),
  dispatched_at: instant,
  completed_at: instant,
  display_text: z.string().openapi({ description: 'For a person to read' }),
};

const ofOnlyTask = z.object({
  goal: z.string(),
  summary: z.string().nullable(),
  error: z.string().nullable(),
  api_calls: z.int(),
  exit_reason: z.string(),
  ...stallFields,
});

const delegationItemOut = z
  .object({
    ...common,
    ...ofDelegation,
    type: z.literal('async_delegation'),
    is_batch: z.literal(true),
    total_duration_seconds: z.number(),
    display_kind: z.literal('async_delegation_complete'),
    ...ofOnlyTask.partial().shape,
  })
  .openapi('DelegationItem');

const taskFailedItemOut = z
  .object({
    ...common,
    ...ofDelegation,
    type: z.literal('task_failed'),
    ...ofOnlyTask.shape,
    display_kind: z.literal('task_failed'),
  })
  .openapi('TaskFailedItem');

/** An item as its parent reads it. */
export const itemOut = z
  .discriminatedUnion('type', [subAgentItemOut, delegationItemOut, taskFailedItemOut])
  .openapi('Item');

/** The item's JSON at this moment. */
export function renderItem(item: ItemRow, now: number): z.output<typeof itemOut> {
  const said = saidOf(item);
  const shared = {
    id: itemId(item.seq),
    status: item.status,
    text: textOf(item, said, now),
    follows: item.followsSeq === null ? null : itemId(item.followsSeq),
    revision: item.revision,
    disposition: item.disposition === 'note' ? ('note' as const) : ('turn' as const),
    human_input: false as const,
    delivered_at: instantOut(item.deliveredAt),
    delivery_count: item.deliveryCount,
    traceparent: item.traceparent,
  };
  if (said !== null) {
    return { ...said, ...shared, display_text: displayText(said) } as z.output<typeof itemOut>;
  }
  const child = item.childSessionId;
  return {
    ...shared,
    type: 'sub_agent',
    work_id: item.workId,
    task_id: child,
    handle_id: child,
    conversation_id: child,
    tool_name: item.agent,
    agent: item.agent,
    title: item.title,
    output: item.output,
    recovered: item.recovered,
    response_id: item.responseId,
    created_by: item.createdBy,
  };
}

type Said = DelegationItem | TaskFailedItem;

/** What an item of a delegation says; null: it is the item of a sub-agent. */
function saidOf(item: ItemRow): Said | null {
  if (item.type === 'sub_agent') return null;
  return withOrigin(
    item.details as unknown as DelegationDetails | TaskFailedDetails,
    {
      session_key: item.sessionKey,
      origin_ui_session_id: item.originUiSessionId,
      origin_session_id: item.originSessionId,
      parent_session_id: item.parentSessionId,
      goals: item.goals,
      context: item.context,
      toolsets: item.toolsets,
      role: item.role,
      model: item.model,
    } as DelegationOrigin,
  );
}

/** The items as a model reads them: a block each, or the line that says there are none. */
export function renderItemsText(items: readonly ItemRow[], now: number): string {
  return items.length === 0
    ? EMPTY_INBOX
    : items.map((item) => textOf(item, saidOf(item), now)).join('\n\n');
}

function textOf(item: ItemRow, said: Said | null, now: number): string {
  if (said !== null) {
    const moment = { dispatchedAt: Date.parse(said.dispatched_at), now };
    return said.type === 'async_delegation'
      ? delegationText(said, moment)
      : taskFailedText(said, moment);
  }
  return subAgentText({
    child: item.childSessionId ?? '',
    agent: item.agent,
    title: item.title,
    status: item.status,
    output: item.output,
    parent: item.sessionId,
    id: itemId(item.seq),
  });
}
