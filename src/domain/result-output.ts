import type { DecideContext, Report, ReportState, WorkState } from './report.ts';
import { responseIdOf } from './reported-turn.ts';
import { contentOf, wordsOf } from './task-end.ts';
import { isBlank } from './text.ts';
import type { Turn } from './turn.ts';

/* The text of a result: the report's own, or the newest that the assistant said in its turn. */

/** What a failure says that says nothing. */
export const FAILED_WITHOUT_TEXT = 'Error: native sub-agent turn failed';

/** Where the text comes from, or why there is none yet. */
export type Resolved =
  /** The report's own text, or null where it has none and none is looked for. */
  | { kind: 'own'; output: string | null }
  | { kind: 'text'; output: string }
  | { kind: 'upstream'; output: string; messageId: string | null }
  | { kind: 'look_up'; output: null }
  | { kind: 'unavailable'; output: string };

/** The text of the result: an idle without one takes the newest assistant text of its turn. */
export function resolveOutput(
  report: Report,
  state: ReportState,
  turn: Turn,
  context: DecideContext,
): Resolved {
  const atHand = resolveAtHand(report, state);
  if (atHand !== null) return atHand;
  if (wordsOf(resultOf(report, turn.work)) !== null) return { kind: 'own', output: '' };
  // What upstream has is the newest turn's.
  if (state.named !== null) return { kind: 'own', output: '' };
  const found = report.upstreamText;
  if (found === null) {
    return context.upstream ? { kind: 'look_up', output: null } : { kind: 'own', output: '' };
  }
  if (found.kind === 'unavailable') return { kind: 'unavailable', output: '' };
  const isOld =
    found.kind === 'found' &&
    found.messageId !== null &&
    found.messageId === state.session?.upstreamMessageId;
  if (found.kind === 'none' || isOld) return { kind: 'own', output: '' };
  return { kind: 'upstream', output: found.text, messageId: found.messageId };
}

/** What the report says itself, or a text received here; null for an idle of which neither does. */
export function resolveAtHand(
  report: Report,
  state: ReportState,
): Extract<Resolved, { kind: 'own' | 'text' }> | null {
  if (report.status === 'failed') {
    return { kind: 'own', output: report.output === '' ? null : report.output };
  }
  if (report.output !== null && !isBlank(report.output)) {
    return { kind: 'own', output: report.output };
  }
  const { text } = state;
  if (!text?.fresh || isBlank(text.text) || isTextOfLaterRun(report, state)) return null;
  if (namesOther(text.responseId, responseIdOf(report, state))) return null;
  return { kind: 'text', output: text.text };
}

/** The text that the turn was delivered with, where an idle without text finds no newer one. */
export function textOnceMore(report: Report, state: ReportState): string | null {
  const { text, named } = state;
  const asks = report.status === 'idle' && isBlank(report.output ?? '') && named === null;
  if (!asks || text === null || text.fresh || isBlank(text.text)) return null;
  return namesOther(text.responseId, responseIdOf(report, state)) ? null : text.text;
}

/** The newest text is the newest run's: not that of an earlier turn, or of what has waited since. */
function isTextOfLaterRun({ origin }: Report, { named, session }: ReportState): boolean {
  return named !== null || (origin.kind === 'parked' && session?.ranSinceResult === true);
}

/** The text as far as it is here; null where the report has none. */
export function outputAtHand(report: Report, state: ReportState): string | null {
  return resolveAtHand(report, state)?.output ?? report.output;
}

function namesOther(a: string | null, b: string | null): boolean {
  return a !== null && b !== null && a !== b;
}

/** The child's own result, which counts for tasks only. */
export function resultOf({ result }: Report, work: WorkState | null): Report['result'] {
  return work?.task ? result : null;
}

/** Fingerprint of what a report comes to: equal ones are repeats. */
export function digestOf(
  report: Report,
  work: WorkState | null,
  { status, output }: { status: string; output: string },
  { digest }: DecideContext,
): string {
  return digest(status, output + contentOf(resultOf(report, work)));
}
