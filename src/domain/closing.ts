/*
 * Leaving a session for good closes it; looking away does not. Decided under the session's row lock,
 * so that a viewer who attached first is counted.
 */

/** What a viewer may say that leaves for good. */
export const END_REASONS = [
  'cli_close',
  'new_session',
  'tui_close',
  'tui_shutdown',
  'session_reset',
  'user_exit',
  'session_switch',
] as const;

/** Why a session was ended. */
export type EndReason = (typeof END_REASONS)[number];

/** What leaving does to the session. */
export type DetachDecision =
  /** The session is closed, and its own live work and delegations are interrupted. */
  { kind: 'close'; reason: EndReason } | { kind: 'nothing' };

/**
 * What becomes of a session that a viewer leaves. `viewersLeft` are those who still watch it after
 * that; a viewer whose lease ran out leaves without a reason.
 */
export function detach(leaving: {
  viewersLeft: number;
  endReason: EndReason | null;
}): DetachDecision {
  const { viewersLeft, endReason } = leaving;
  if (endReason === null || viewersLeft > 0) return { kind: 'nothing' };
  return { kind: 'close', reason: endReason };
}
