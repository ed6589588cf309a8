import { codePoints, isBlank } from './text.ts';

/** Names, and ids other than those of sessions, are at most so long: every index has room for one. */
export const NAME_MAX = 512;

/** True for what is no longer than a name may be, in code points. */
export function fitsName(text: string): boolean {
  return codePoints(text) <= NAME_MAX;
}

/** Titles and paths are at most so long: a page of them is still a small answer. */
export const TITLE_MAX = 4_096;

/** True for what is no longer than a title may be, in code points. */
export function fitsTitle(text: string): boolean {
  return codePoints(text) <= TITLE_MAX;
}

/** Clients write an empty or a blank name where there is none. */
export function nameOrNull(name: string | null | undefined): string | null {
  return name == null || isBlank(name) ? null : name;
}
