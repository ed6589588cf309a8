import type { SessionStatus } from './session.ts';
import { firstCodePoints, foldWhiteSpace } from './text.ts';
import { isLive, type WorkStatus } from './work.ts';

/* How a child is shown in the list of its parent. */

/** As much of a message as a list shows, in code points. */
const PREVIEW = 150;

export type TaskStatus = 'in_progress' | 'completed' | 'failed' | 'cancelled';

/** What became of the child's current work; without any, only a failure shows. */
export function taskStatus(
  work: WorkStatus | null,
  session: { status: SessionStatus; errorCode: string | null },
): TaskStatus | null {
  if (work === null) {
    return session.status === 'failed' || session.errorCode !== null ? 'failed' : null;
  }
  if (isLive(work)) return 'in_progress';
  switch (work) {
    case 'completed':
      return 'completed';
    case 'cancelled':
    case 'interrupted':
      return 'cancelled';
    case 'failed':
    case 'stalled':
    case 'timeout':
    case 'error':
    case 'unknown':
      return 'failed';
  }
}

/**
 * The tool and the name that clients write into a title: `tool:name`, or `ui:agent:label` of a
 * child that a person started. A closed child's title ends with `:closed:` and its id.
 */
export function toolAndName(
  id: string,
  title: string | null,
): { tool: string | null; sessionName: string | null } {
  if (title === null) return { tool: null, sessionName: null };
  const suffix = `:closed:${id}`;
  const open = title.endsWith(suffix) ? title.slice(0, -suffix.length) : title;
  const [tool, rest] = splitAtColon(open);
  if (tool !== 'ui' || rest === null) return { tool, sessionName: rest };
  const [agent, label] = splitAtColon(rest);
  return label === null ? { tool, sessionName: rest } : { tool: agent, sessionName: label };
}

function splitAtColon(text: string): [string, string | null] {
  const at = text.indexOf(':');
  return at === -1 ? [text, null] : [text.slice(0, at), text.slice(at + 1)];
}

/** The start of a message on one line; null if there is nothing to see in it. */
export function messagePreview(text: string | null): string | null {
  const folded = text === null ? '' : foldWhiteSpace(text);
  return folded === '' ? null : firstCodePoints(folded, PREVIEW);
}
