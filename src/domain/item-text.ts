import { codePoints, firstCodePoints, isBlank, quoteName, quoteText, trimEnd } from './text.ts';

/** The longest output shown in a text, in code points; the item's `output` is always whole. */
export const OUTPUT_SHOWN = 12_000;

export const EMPTY_INBOX = 'Inbox is empty — no completed tasks.';

export const INTERRUPTED_OUTPUT = '[System: sub-agent interrupted]';
export const STOPPED_OUTPUT = '[System: sub-agent stopped]';

export interface SubAgentItem {
  child: string;
  agent: string;
  title: string;
  status: string;
  output: string;
  /** The session in whose inbox it lies, and its id there: where the whole text is found. */
  parent: string;
  id: string;
}

/** The block that a parent reads for one sub-agent's result. */
export function subAgentText(item: SubAgentItem): string {
  const opening = `[System: sub-agent task ${quoteName(item.child)} ${item.status} — ${target(item)}`;
  return `${opening}${result(item)}]`;
}

function target({ agent, title }: SubAgentItem): string {
  return title === '' ? quoteName(agent) : `${quoteName(agent)}:${quoteName(title)}`;
}

function result(item: SubAgentItem): string {
  switch (item.status) {
    case 'completed':
      return isBlank(item.output) ? ' produced no output' : ` returned: ${shown(item)}`;
    case 'failed':
      return ` error: ${shown(item)}`;
    case 'cancelled':
      return isOwnWords(item.output) ? ` partial output: ${shown(item)}` : '';
    default:
      return `: ${shown(item)}`;
  }
}

/** A cancelled child's own text, not the line that the service wrote in its place. */
function isOwnWords(output: string): boolean {
  return !isBlank(output) && output !== INTERRUPTED_OUTPUT && output !== STOPPED_OUTPUT;
}

function shown({ output, parent, id }: SubAgentItem): string {
  const length = output.length <= OUTPUT_SHOWN ? output.length : codePoints(output);
  if (length <= OUTPUT_SHOWN) return quoteText(output);
  const kept = quoteText(trimEnd(firstCodePoints(output, OUTPUT_SHOWN)));
  const whole = `/v1/sessions/${encodeURIComponent(parent)}/inbox/${id}`;
  return `${kept}\n...[truncated ${length - OUTPUT_SHOWN} chars]\n[whole text: GET ${whole}]`;
}
