import { isBlank } from './text.ts';

/** A conversation item, as forwarders post it and as upstream lists it; nothing of it is certain. */
export interface ConversationItem {
  type: unknown;
  role: unknown;
  isMeta: unknown;
  content: unknown;
}

/**
 * The text that the assistant says in the item: its text blocks, joined by newlines. null for what
 * is no message of the assistant's own, or has no text.
 */
export function assistantText({ type, role, isMeta, content }: ConversationItem): string | null {
  const isMessage = type === undefined || type === null || type === 'message';
  if (!isMessage || role !== 'assistant' || isMeta === true) return null;
  const text = typeof content === 'string' ? content : blockTexts(content).join('\n');
  return isBlank(text) ? null : text;
}

/**
 * The first of the messages, newest first as upstream lists them, that the assistant wrote, that has
 * text, and that is not known to be of another turn than `responseId`. null: there is none.
 */
export function newestAssistantMessage(
  messages: readonly unknown[],
  responseId: string | null,
): { id: string | null; text: string } | null {
  for (const message of messages) {
    if (typeof message !== 'object' || message === null) continue;
    const { id, type, role, is_meta, content, response_id } = message as Record<string, unknown>;
    const isOfOther =
      responseId !== null && typeof response_id === 'string' && response_id !== responseId;
    const text = assistantText({ type, role, isMeta: is_meta, content });
    if (text !== null && !isOfOther) return { id: typeof id === 'string' ? id : null, text };
  }
  return null;
}

const TEXT_BLOCKS = new Set(['text', 'output_text']);

function blockTexts(content: unknown): string[] {
  if (!Array.isArray(content)) return [];
  return content.map(blockText).filter((text) => text !== null);
}

function blockText(block: unknown): string | null {
  if (typeof block !== 'object' || block === null) return null;
  const { type, text } = block as { type?: unknown; text?: unknown };
  return typeof type === 'string' && TEXT_BLOCKS.has(type) && typeof text === 'string'
    ? text
    : null;
}
