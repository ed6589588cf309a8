import type { TaskResult } from './delegation.ts';

/* How much of its children's text a unit's item holds. What is cut is whole at the work entry. */

/** How much text a unit's item holds, in UTF-8 bytes. */
export interface TextBudget {
  /** Of one summary, or one error. */
  each: number;
  /** Of all of them. */
  together: number;
}

/** 256 KiB and 32 MiB: 1,000 results then stay far below what one row and one answer can hold. */
const TEXT_BUDGET: TextBudget = { each: 256 * 1024, together: 32 * 1024 * 1024 };

/** So many characters of a text are all that need be loaded: what is cut is still seen to be so. */
export const LOADED_MAX = TEXT_BUDGET.each + 1;

/**
 * The results with their summaries cut to the budget, never within a code point. What is short stays
 * whole: if all are too much together, the longest give way first. Errors are child's output as well,
 * and are cut likewise.
 */
export function cutSummaries(
  results: readonly TaskResult[],
  budget: TextBudget = TEXT_BUDGET,
): TaskResult[] {
  const sizes = results.flatMap(({ summary, error }) =>
    [summary, error].map((text) => utf8Bytes(text ?? '', budget.each)),
  );
  const limit = Math.min(budget.each, commonLimit(sizes, budget.together));
  return results.map((result) => cutTo(limit, result));
}

/** The greatest limit with which the sizes add up to no more than the total. */
function commonLimit(sizes: number[], total: number): number {
  let left = total;
  const rising = sizes.toSorted((a, b) => a - b);
  for (const [place, size] of rising.entries()) {
    const share = Math.floor(left / (rising.length - place));
    if (size > share) return share;
    left -= size;
  }
  return Infinity;
}

function cutTo(limit: number, result: TaskResult): TaskResult {
  const summary = result.summary === null ? null : firstUtf8Bytes(result.summary, limit);
  const error = result.error === null ? null : firstUtf8Bytes(result.error, limit);
  const cut: TaskResult = { ...result, summary, error };
  if (summary?.length !== result.summary?.length) cut.summary_truncated = true;
  if (error?.length !== result.error?.length) cut.error_truncated = true;
  return cut;
}

/** How many bytes the text has, counted up to `max`. */
function utf8Bytes(text: string, max: number): number {
  if (text.length >= max) return max;
  let bytes = 0;
  for (let at = 0; at < text.length && bytes < max;) {
    const size = utf8Size(text.codePointAt(at) ?? 0);
    bytes += size;
    at += unitsOf(size);
  }
  return Math.min(bytes, max);
}

/** As many code points as have no more than `max` bytes. */
function firstUtf8Bytes(text: string, max: number): string {
  if (text.length * 3 <= max) return text;
  let bytes = 0;
  for (let at = 0; at < text.length;) {
    const size = utf8Size(text.codePointAt(at) ?? 0);
    bytes += size;
    if (bytes > max) return text.slice(0, at);
    at += unitsOf(size);
  }
  return text;
}

function utf8Size(codePoint: number): number {
  if (codePoint < 0x80) return 1;
  if (codePoint < 0x800) return 2;
  return codePoint < 0x10000 ? 3 : 4;
}

/** Only what takes four bytes takes two units of a string. */
function unitsOf(utf8: number): number {
  return utf8 === 4 ? 2 : 1;
}
