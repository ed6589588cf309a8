import { sameTurnAsParked } from './parking.ts';
import type { Report, ReportedSession, ReportState, WorkState } from './report.ts';
import type { Turn } from './turn.ts';

/* Which turn a report speaks of, by the ids that it gives and those that were announced. */

/** The agent's id of the turn: the report's, else the one that a `running` of it announced. */
export function responseIdOf(report: Report, state: ReportState): string | null {
  if (report.responseId !== null || report.origin.kind !== 'forwarder') return report.responseId;
  const { response, named, session } = state;
  const isNewOfTurn =
    response === null
      ? named === null
      : response.workId === workOf(state)?.workId && !response.delivered;
  return isNewOfTurn ? (session?.responseId ?? null) : null;
}

/** A report that was parked has its entry's id whether it named it or not, so it names nothing. */
export function isNamedByWorkId({ workId, origin }: Report, { work }: Turn): boolean {
  return workId !== null && workId === work?.workId && origin.kind !== 'parked';
}

/** The entry of the turn that the report speaks of: the one it names, else the current one. */
export function workOf({ named, work }: ReportState): WorkState | null {
  return named ?? work;
}

/** The turn, with what bears on whether the report adds anything to it. */
export function turnOf(report: Report, state: ReportState, session: ReportedSession): Turn {
  const work = workOf(state);
  const response = state.response?.workId === work?.workId ? state.response : null;
  return {
    work,
    lastDigest: session.lastDigest,
    ranSince: ranSince(report, state, session),
    repeatsParked: repeatsParked(report, state, session),
    response,
  };
}

/** True if the child ran after the last result of the report's turn. */
function ranSince(report: Report, state: ReportState, session: ReportedSession): boolean {
  if (state.named !== null) return isAnnouncedOnly(state, state.named);
  if (report.origin.kind === 'parked') return report.origin.afterRunning;
  return session.ranSinceResult;
}

/** The child went on by itself in an earlier turn, under an id of which nothing was delivered. */
function isAnnouncedOnly({ response }: ReportState, named: WorkState): boolean {
  return response?.workId === named.workId && !response.delivered;
}

/** True for a report of the turn of which one is parked already. */
function repeatsParked(report: Report, state: ReportState, session: ReportedSession): boolean {
  const { parked } = state;
  if (parked?.state !== 'parked' || report.origin.kind === 'parked') return false;
  const workId = workOf(state)?.workId ?? null;
  const responseId = responseIdOf(report, state);
  const isOfDelivered = report.responseId !== null && state.response?.delivered === true;
  if (isOfDelivered && parked.responseId !== responseId) return false;
  return sameTurnAsParked(parked, workId, session.ranSinceResult);
}
