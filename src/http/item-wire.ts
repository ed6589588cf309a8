import { z } from '@hono/zod-openapi';
import { itemId } from '../domain/item-id.ts';
import { EMPTY_INBOX, subAgentText } from '../domain/item-text.ts';
import type { ItemRow } from '../operations/list-items.ts';
import { instant, instantOut } from './wire.ts';

/** An item as its parent reads it. */
export const itemOut = z
  .object({
    id: z.string(),
    type: z.literal('sub_agent'),
    work_id: z.string().nullable(),
    task_id: z.string().nullable(),
    handle_id: z.string().nullable(),
    conversation_id: z.string().nullable().openapi({ description: 'The child session' }),
    tool_name: z.string(),
    agent: z.string(),
    title: z.string(),
    status: z.string(),
    output: z.string().openapi({ description: 'Whole, however long' }),
    text: z.string().openapi({ description: 'For the model to read; a long output is cut' }),
    recovered: z.boolean(),
    follows: z.string().nullable().openapi({ description: 'The item that this one follows up' }),
    revision: z.int().min(1),
    disposition: z.enum(['note', 'turn']),
    human_input: z.literal(false),
    response_id: z.string().nullable(),
    created_by: z.string().nullable(),
    delivered_at: instant,
    delivery_count: z.int().min(0),
    traceparent: z.string().nullable(),
  })
  .openapi('Item');

/** The item's JSON. */
export function renderItem(item: ItemRow): z.output<typeof itemOut> {
  const child = item.childSessionId;
  return {
    id: itemId(item.seq),
    type: 'sub_agent',
    work_id: item.workId,
    task_id: child,
    handle_id: child,
    conversation_id: child,
    tool_name: item.agent,
    agent: item.agent,
    title: item.title,
    status: item.status,
    output: item.output,
    text: textOf(item),
    recovered: item.recovered,
    follows: item.followsSeq === null ? null : itemId(item.followsSeq),
    revision: item.revision,
    disposition: item.disposition === 'note' ? 'note' : 'turn',
    human_input: false,
    response_id: item.responseId,
    created_by: item.createdBy,
    delivered_at: instantOut(item.deliveredAt),
    delivery_count: item.deliveryCount,
    traceparent: item.traceparent,
  };
}

/** The items as a model reads them: a block each, or the line that says there are none. */
export function renderItemsText(items: readonly ItemRow[]): string {
  return items.length === 0 ? EMPTY_INBOX : items.map(textOf).join('\n\n');
}

function textOf(item: ItemRow): string {
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
