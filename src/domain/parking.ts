import type { SessionStatus } from './session.ts';
import type { EndedStatus } from './work.ts';

/*
 * Terminal reports that cannot be delivered yet are kept, one a turn, and delivered by the service
 * itself once they can be.
 */

/** Why a report could not be confirmed, in the order in which one is named. */
export type ParkReason =
  | 'snapshot_unavailable'
  | 'unknown_session'
  | 'not_found'
  | 'missing_work_entry'
  | 'missing_parent_inbox'
  | 'inbox_full'
  | 'output_unavailable'
  | 'parent_gone';

/** The reasons for which nothing could be stored. */
export type UnstoredReason = 'overloaded' | 'storage_unavailable';

export interface ParkedState {
  id: string;
  turn: number;
  state: 'parked' | 'dead';
  status: 'idle' | 'failed';
  outcome: EndedStatus | null;
  responseId: string | null;
  workId: string | null;
  tries: number;
}

export const PARK_DETAILS: Record<Exclude<ParkReason, 'parent_gone'> | UnstoredReason, string> = {
  overloaded: 'The service is taking in as many reports as it can; nothing was stored.',
  storage_unavailable: 'The database cannot be reached or written; nothing was stored.',
  snapshot_unavailable:
    'The session is not known here and its snapshot could not be read upstream.',
  unknown_session: 'The session is not known here.',
  not_found: 'Upstream says that there is no such session.',
  missing_work_entry:
    'Sub-agent terminal status arrived, but the session names no parent whose inbox it could be delivered to.',
  missing_parent_inbox:
    'Sub-agent terminal status arrived, but the inbox of the parent session is not open.',
  inbox_full: 'The inbox of the parent session holds as many unread items as it may.',
  output_unavailable: 'The text of the result could not be looked up upstream.',
};

/**
 * True if a report that arrives now speaks of the turn of the parked one, as it would of that of a
 * delivered one: whatever its response_id, as long as nothing has run between.
 */
export function sameTurnAsParked(
  parked: ParkedState,
  workId: string | null,
  ranSince: boolean,
): boolean {
  return !ranSince && parked.workId === workId;
}

/**
 * True if the report takes the parked one's place: the later one does, but a good result never
 * yields to a failure (a forwarder that gives up reports one).
 */
export function supersedes(
  status: SessionStatus,
  outcome: EndedStatus | null,
  parked: ParkedState,
): boolean {
  return !(isCompleted(parked.status, parked.outcome) && !isCompleted(status, outcome));
}

/** True if the report says that its turn was completed. */
export function isCompleted(status: SessionStatus, outcome: EndedStatus | null): boolean {
  return outcome === null ? status === 'idle' : outcome === 'completed';
}

/** Seconds after which to try again: doubling with the tries, 1 to 300. */
export function retryAfterSeconds(tries: number): number {
  return Math.min(300, 2 ** Math.min(Math.max(tries - 1, 0), 9));
}
