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
 * text, and that is not known to be of another turn than `responseId`: by what the report says, or as
 * one of those `delivered` before. null: there is none.
 */
export function newestAssistantMessage(
  messages: readonly unknown[],
  responseId: string | null,
  delivered: ReadonlySet<string>,
): { id: string | null; text: string } | null {
  for (const message of messages) {
    if (typeof message !== 'object' || message === null) continue;
    const { id, type, role, is_meta, content } = message as Record<string, unknown>;
    const ofTurn = responseIdOf(message);
    const isOfOther = responseId === null ? delivered.has(ofTurn ?? '') : ofTurn !== responseId;
    const text = assistantText({ type, role, isMeta: is_meta, content });
    if (text === null || (ofTurn !== null && isOfOther)) continue;
    return { id: typeof id === 'string' || typeof id === 'number' ? String(id) : null, text };
  }
  return null;
}

/** The agent's ids of the turns that the messages are said to be of. */
export function responseIdsOf(messages: readonly unknown[]): string[] {
  return messages.map(responseIdOf).filter((id) => id !== null);
}

function responseIdOf(message: unknown): string | null {
  if (typeof message !== 'object' || message === null) return null;
  const { response_id: id } = message as { response_id?: unknown };
  return typeof id === 'string' ? id : null;
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
