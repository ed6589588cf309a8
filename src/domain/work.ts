/*
 * A work entry: one dispatch, one turn of the child. Live entries wait for their report; an ended
 * one is the tombstone by which repeats are recognised.
 *
 *   launching -> running         a report `running` or `waiting`, or the first heartbeat
 *   live      -> cancelling      an interrupt, until its grace is over
 *   live      -> stalling        no progress for the threshold, until its grace is over
 *   live      -> ended           the first terminal report, a stop, a clock, or a lost runner
 */

export const LIVE_STATUSES = ['launching', 'running', 'cancelling', 'stalling'] as const;
export const ENDED_STATUSES = [
  'completed',
  'failed',
  'cancelled',
  'interrupted',
  'stalled',
  'timeout',
  'error',
  'unknown',
] as const;

export type LiveStatus = (typeof LIVE_STATUSES)[number];
export type EndedStatus = (typeof ENDED_STATUSES)[number];
export type WorkStatus = LiveStatus | EndedStatus;

/** What a terminal report may say of itself. */
export const OUTCOMES = ['completed', 'failed', 'cancelled', 'interrupted'] as const;
export type Outcome = (typeof OUTCOMES)[number];

/** True until the entry has ended. */
export function isLive(status: WorkStatus): status is LiveStatus {
  return (LIVE_STATUSES as readonly string[]).includes(status);
}

/** True for ends after which a result of the child adds nothing to the inbox. */
export function isClosedToResults(status: WorkStatus): boolean {
  return ['cancelled', 'interrupted', 'stalled', 'timeout'].includes(status);
}

/** The names by which the child's work is shown, taken from its snapshot. */
export function labelFromSnapshot(snapshot: {
  agentName: string | null;
  subAgentName: string | null;
}): { agent: string; title: string } {
  return {
    agent: snapshot.subAgentName ?? snapshot.agentName ?? 'sub-agent',
    title: snapshot.subAgentName ?? '',
  };
}
