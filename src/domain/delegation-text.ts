import { recordedOfLost, type TaskResult } from './delegation.ts';
import type { DelegationItem, TaskFailedItem } from './delegation-item.ts';
import { isFailure } from './task-end.ts';
import {
  codePoints,
  firstCodePoints,
  foldWhiteSpace,
  isBlank,
  quoteName,
  quoteText,
  trimEnd,
} from './text.ts';

/*
 * What a parent reads when a delegation has ended. It may have forgotten by then why it asked, so
 * the block says all that is needed to use the results. Everything a client or a child wrote is
 * quoted: it cannot pose as a block of the service.
 */

/** When the unit was dispatched, and now, in milliseconds. */
export interface Moment {
  dispatchedAt: number;
  now: number;
}

/** The block for the item of an ended unit. */
export function delegationText(item: DelegationItem, moment: Moment): string {
  return [
    `[ASYNC DELEGATION COMPLETE — ${quoteName(item.delegation_id)}]`,
    'You dispatched this delegation earlier and went on meanwhile; the conversation may have moved',
    'on since. What you need to use its results stands below.',
    ...siblingUnits(item),
    '',
    dispatched(item, moment),
    ...(item.goal === undefined ? [] : [`Goal: ${quoteText(item.goal)}`]),
    ...circumstances(item),
    `Total: ${seconds(item.total_duration_seconds)}, status ${item.status}`,
    ...lostRunner(item),
    ...rejectedModel(item),
    ...inOrder(item.results).flatMap((result) => ['', ...taskBlock(item, result)]),
  ].join('\n');
}

/** The block for the early item of a failed task. */
export function taskFailedText(item: TaskFailedItem, moment: Moment): string {
  const [result] = item.results;
  return [
    `[ASYNC DELEGATION TASK FAILED — ${quoteName(item.delegation_id)}]`,
    'One task of a delegation that you dispatched earlier has failed. Its siblings go on; the item with',
    'all results still comes when the last of them has ended. This notice settles nothing.',
    '',
    dispatched(item, moment),
    taskHeader(item, result),
    `Goal: ${quoteText(item.goal)}`,
    ...failure({ ...result, error: shortened(result) }),
  ].join('\n');
}

function inOrder(results: readonly TaskResult[]): TaskResult[] {
  return results.toSorted((a, b) => a.task_index - b.task_index);
}

function siblingUnits({ group, results, goals }: DelegationItem): string[] {
  if (results.length >= goals.length) return [];
  const unit = group === null ? 'This part' : `Group "${quoteName(group)}"`;
  return [
    `${unit} holds ${results.length} of the ${counted(goals.length, 'task')} of the call; the others report separately.`,
  ];
}

type Item = DelegationItem | TaskFailedItem;

function dispatched(item: Item, { dispatchedAt, now }: Moment): string {
  return `Dispatched: ${quoteName(item.dispatched_at)} (${ageInWords(now - dispatchedAt)})`;
}

function circumstances({ context, toolsets, role, model }: DelegationItem): string[] {
  const lines: string[] = [];
  if (context !== null && !isBlank(context)) lines.push(`Context: ${quoteText(context)}`);
  if (toolsets !== null && toolsets.length > 0) {
    lines.push(`Toolsets: ${toolsets.map(quoteName).join(', ')}`);
  }
  if (role !== null && role !== '') lines.push(`Role: ${quoteName(role)}`);
  if (model !== null && model !== '') lines.push(`Model: ${quoteName(model)}`);
  return lines;
}

function lostRunner({ results }: DelegationItem): string[] {
  const recorded = recordedOfLost(results);
  return recorded === null ? [] : [recorded];
}

const MODEL_NOT_FOUND = [
  'not a valid model',
  'model not found',
  'model_not_found',
  'unknown model',
  'no such model',
];

function rejectedModel({ model, results }: DelegationItem): string[] {
  if (model === null || isBlank(model)) return [];
  if (!results.some((result) => rejects(result, model))) return [];
  return [
    '',
    `SUBAGENT MODEL REJECTED: the provider does not know the model ${quoteName(model)}.`,
    'Such tasks end before they have done any work. Set `delegation.model` to a model that the provider',
    'offers, then dispatch them again.',
  ];
}

/** Both in one task: one task's model and another's error are no rejection of the model. */
function rejects({ error, summary }: TaskResult, model: string): boolean {
  const said = `${error ?? ''}\n${summary ?? ''}`.toLowerCase();
  return (
    MODEL_NOT_FOUND.some((phrase) => said.includes(phrase)) && said.includes(model.toLowerCase())
  );
}

function taskBlock(item: DelegationItem, result: TaskResult): string[] {
  const goal = item.goals[result.task_index] ?? '';
  return [
    taskHeader(item, result),
    ...(item.goal === undefined ? [`Goal: ${quoteText(goal)}`] : []),
    ...(hitLimit(result) ? [LIMIT_NOTE] : []),
    ...(isFailure(result.status) ? failure(result) : success(result)),
    ...cutNote(result),
  ];
}

const LIMIT_NOTE =
  'TRUNCATED: it hit its limit (max_iterations) before it was done. The work may be incomplete: verify it, or dispatch the rest again.';

function taskHeader({ goals }: Item, result: TaskResult): string {
  const place = `TASK ${result.task_index + 1}/${goals.length}`;
  const calls = counted(result.api_calls, 'API call');
  return `${icon(result)} ${place} — ${result.status}, ${calls}, ${seconds(result.duration_seconds)}`;
}

function icon(result: TaskResult): string {
  if (hitLimit(result)) return '⚠';
  return isFailure(result.status) ? '✗' : '✓';
}

function hitLimit({ truncated, exit_reason }: TaskResult): boolean {
  return truncated || exit_reason === 'max_iterations';
}

function success({ summary, error }: TaskResult): string[] {
  const result =
    summary === null || isBlank(summary)
      ? ['It completed without a summary.']
      : ['Result:', quoteText(summary)];
  return error === null || isBlank(error) ? result : [...result, `It noted: ${quoteText(error)}`];
}

function failure({ status, summary, error }: TaskResult): string[] {
  const opening =
    status === 'interrupted'
      ? 'It was interrupted before it had finished'
      : `It did not complete (${status})`;
  const why = error === null || isBlank(error) ? `${opening}.` : `${opening}: ${quoteText(error)}`;
  return summary === null || isBlank(summary)
    ? [why]
    : [why, 'Partial output:', quoteText(summary)];
}

function cutNote(result: TaskResult): string[] {
  if (!result.summary_truncated && !result.error_truncated) return [];
  return [`[the text above is cut; whole: GET /v1/work/${result.work_id}]`];
}

/** As much of an error as an early notice shows, in code points. */
const NOTICE_ERROR_SHOWN = 400;

function shortened({ error, work_id }: TaskResult): string | null {
  if (error === null || codePoints(error) <= NOTICE_ERROR_SHOWN) return error;
  const kept = trimEnd(firstCodePoints(error, NOTICE_ERROR_SHOWN));
  return `${kept}\n...[whole: GET /v1/work/${work_id}]`;
}

/** How long ago something was, in one unit; a clock that was set back makes it just now. */
export function ageInWords(ageMs: number): string {
  const passed = AGES.find(({ ms }) => ageMs >= ms);
  return passed === undefined
    ? 'just now'
    : `${counted(Math.floor(ageMs / passed.ms), passed.unit)} ago`;
}

const AGES = [
  { unit: 'day', ms: 86_400_000 },
  { unit: 'hour', ms: 3_600_000 },
  { unit: 'minute', ms: 60_000 },
  { unit: 'second', ms: 1000 },
];

function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`;
}

function seconds(duration: number): string {
  return `${Math.round(duration * 10) / 10} s`;
}

/** The longest text on a card, in code points. */
export const DISPLAY_TEXT_MAX = 2000;

/** Where one task's goal and result are cut on a card, in code points. */
const DISPLAY_PART = 160;

/** The text of the card that a person sees: one line for the whole, one for each task. */
export function displayText(item: Item): string {
  const lines = [headline(item)];
  let length = codePoints(headline(item));
  for (const [place, result] of inOrder(item.results).entries()) {
    const line = taskLine(item, result);
    length += codePoints(line) + 1;
    if (length > DISPLAY_TEXT_MAX - MORE_MAX) {
      lines.push(`… and ${item.results.length - place} more`);
      break;
    }
    lines.push(line);
  }
  return lines.join('\n');
}

/** Room for the line that says how many more tasks there are. */
const MORE_MAX = 40;

function headline(item: Item): string {
  const id = quoteName(item.delegation_id);
  switch (item.type) {
    case 'async_delegation': {
      const done = item.results.filter(({ status }) => !isFailure(status)).length;
      return `Delegation ${id} finished (${item.status}): ${done} of ${counted(item.results.length, 'task')} completed`;
    }
    case 'task_failed':
      return `A task of delegation ${id} failed (${item.status}); the others go on`;
  }
}

function taskLine({ goals }: Item, result: TaskResult): string {
  const failed = isFailure(result.status);
  const said = failed ? (result.error ?? result.summary) : result.summary;
  const label = hitLimit(result) && !failed ? 'incomplete' : result.status;
  const shown = preview(said ?? '');
  const goal = preview(goals[result.task_index] ?? '');
  return `${icon(result)} ${goal} (${label})${shown === '' ? '' : `: ${shown}`}`;
}

/** The start of a text on one line. White space is folded after a first cut: texts may be large. */
function preview(text: string): string {
  const start = firstCodePoints(text, DISPLAY_PART * 4);
  const folded = foldWhiteSpace(start);
  const kept = firstCodePoints(folded, DISPLAY_PART);
  const whole = start === text && kept === folded;
  return quoteName(whole ? kept : `${trimEnd(kept)}…`);
}
