import type { WorkState } from './report.ts';
import { isBlank } from './text.ts';
import { isClosedToResults, isLive, type EndedStatus } from './work.ts';

/*
 * Is a terminal report the first result of its turn, a repeat, or one that follows? This is where
 * "exactly once per turn" is decided; a unique key on the item's source backs it.
 */

/** The turn a report speaks of, and what is known of it. */
export interface Turn {
  /** null: no entry; it is rebuilt from the snapshot. */
  work: WorkState | null;
  /** Fingerprint of the last result that the child was delivered with, of whichever turn. */
  lastDigest: string | null;
  /** The child has reported `running` since the turn's last result. */
  ranSince: boolean;
  /** A result that follows the last one is parked, and the report may be another try of it. */
  repeatsParked: boolean;
  /** Whether the report's response_id is known as one of this turn's, and delivered already. */
  response: { delivered: boolean } | null;
}

export interface Result {
  status: EndedStatus;
  output: string;
  responseId: string | null;
  /** null: its text could not be looked up, so it equals no other. */
  digest: string | null;
  /** The report names its turn, by work_id or response_id. */
  named: boolean;
}

export type Verdict =
  /** The turn's first result. */
  | { kind: 'first' }
  /** Delivered, but it may be a repeat of the turn before: a different one will follow it. */
  | { kind: 'provisional' }
  /** The child went on by itself, or was thought lost: a new item of the same turn. */
  | { kind: 'follow_up' }
  /** Delivered before. */
  | { kind: 'repeat' }
  /** It came after the turn was stopped: kept on the entry, not delivered. */
  | { kind: 'late' };

/** Which of these the result is. */
export function judgeResult(turn: Turn, result: Result): Verdict {
  const { work } = turn;
  if (work === null) return { kind: 'first' };
  if (isLive(work.status)) {
    return mayRepeatFormerTurn(turn, work, result) ? { kind: 'provisional' } : { kind: 'first' };
  }
  if (work.status === 'unknown') return { kind: 'follow_up' };
  if (isClosedToResults(work.status)) return { kind: 'late' };
  return followsOn(turn, work, result) ? { kind: 'follow_up' } : { kind: 'repeat' };
}

/** False where no text that the report may have could make it more than a repeat. */
export function mayAddSomething(turn: Turn): boolean {
  const { work } = turn;
  if (work === null || isLive(work.status)) return true;
  return (
    turn.ranSince ||
    turn.repeatsParked ||
    work.provisional ||
    work.awaitsText ||
    work.status === 'unknown' ||
    isClosedToResults(work.status)
  );
}

function mayRepeatFormerTurn({ lastDigest }: Turn, work: WorkState, result: Result): boolean {
  return (
    work.status === 'launching' &&
    !result.named &&
    lastDigest !== null &&
    lastDigest === result.digest
  );
}

function followsOn(turn: Turn, work: WorkState, result: Result): boolean {
  const named = namesTurn(turn, work, result.responseId);
  if (named === 'delivered') return false;
  const differs = work.resultDigest !== result.digest;
  if (work.provisional) return differs && (turn.ranSince || !isFoundEmpty(result));
  if (turn.repeatsParked) return differs;
  if (!turn.ranSince) {
    return work.awaitsText && result.status === 'completed' && !isBlank(result.output);
  }
  if (named === 'another') return true;
  if (named === 'same' && isFoundEmpty(result)) return false;
  return differs && !(work.status === 'completed' && result.status === 'failed');
}

/** Nothing was found for an idle without text: as likely the last one again, whose text is used. */
function isFoundEmpty({ digest, output }: Result): boolean {
  return digest !== null && isBlank(output);
}

/** Whose turn the response_id names, as against that of the last result. */
function namesTurn(
  turn: Turn,
  work: WorkState,
  responseId: string | null,
): 'another' | 'delivered' | 'same' | 'unsaid' {
  if (responseId === null) return 'unsaid';
  if (responseId === work.resultResponseId) return 'same';
  if (turn.response?.delivered) return 'delivered';
  return turn.response !== null || work.resultResponseId !== null ? 'another' : 'unsaid';
}
