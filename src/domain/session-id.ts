import { codePoints } from './text.ts';

/** Session ids are at most so long, in code points. */
export const SESSION_ID_MAX = 255;

// eslint-disable-next-line no-control-regex -- control characters are what it looks for
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/;

/** True for an id that a session may have. */
export function isSessionId(id: string): boolean {
  if (id === '' || id === '.' || id === '..') return false;
  return id.isWellFormed() && !CONTROL.test(id) && codePoints(id) <= SESSION_ID_MAX;
}
