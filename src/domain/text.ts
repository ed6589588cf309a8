/*
 * What forwarders and models print, made fit for a line of text. Lengths are code points; white
 * space is what Python's `str.isspace` calls so, which is what today's clients were written against.
 */

const SPACE =
  '\\t-\\r\\u001c-\\u0020\\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000';
const NOT_SPACE = new RegExp(`[^${SPACE}]`, 'u');
const SPACES = new RegExp(`[${SPACE}]+`, 'gu');
const LINE_BREAK = '\\n\\r\\u000b\\u000c\\u0085\\u2028\\u2029';
const LINE_BREAKS = new RegExp(`[${LINE_BREAK}]+`, 'gu');
const OWN_BLOCK = new RegExp(String.raw`(^|[${LINE_BREAK}])(\[System:)`, 'gu');

/** True if there is nothing in it but white space. */
export function isBlank(text: string): boolean {
  return !NOT_SPACE.test(text);
}

/** The text without white space at its end. */
export function trimEnd(text: string): string {
  let end = text.length;
  while (end > 0 && isBlank(text.charAt(end - 1))) end -= 1;
  return text.slice(0, end);
}

/** The text on one line: runs of white space become one space, none at the ends. */
export function foldWhiteSpace(text: string): string {
  return text.replaceAll(SPACES, ' ').trim();
}

/** Text that PostgreSQL can store: NUL and lone surrogates become U+FFFD, all else is kept. */
export function storable(text: string): string {
  const wellFormed = text.isWellFormed() ? text : text.toWellFormed();
  return wellFormed.includes('\0') ? wellFormed.replaceAll('\0', '\ufffd') : wellFormed;
}

/** How many code points the text has. */
export function codePoints(text: string): number {
  let pairs = 0;
  for (let i = 0; i + 1 < text.length; i += 1) {
    if (isHighSurrogate(text.charCodeAt(i))) {
      pairs += 1;
      i += 1;
    }
  }
  return text.length - pairs;
}

/** The first `count` code points; never half a surrogate pair. */
export function firstCodePoints(text: string, count: number): string {
  if (text.length <= count) return text;
  let end = 0;
  for (let taken = 0; taken < count && end < text.length; taken += 1) {
    end += isHighSurrogate(text.charCodeAt(end)) && end + 1 < text.length ? 2 : 1;
  }
  return text.slice(0, end);
}

function isHighSurrogate(unit: number): boolean {
  return unit >= 0xd800 && unit <= 0xdbff;
}

/** A name set into a text: its line breaks become spaces, and it cannot pose as one of our blocks. */
export function quoteName(name: string): string {
  return quoteText(name.replaceAll(LINE_BREAKS, ' '));
}

/** A text set into another: a line that opens with `[System:` is written `\[System:`. */
export function quoteText(text: string): string {
  return text.replaceAll(OWN_BLOCK, String.raw`$1\$2`);
}
