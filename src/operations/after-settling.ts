import type { Report } from '../domain/report.ts';
import { isTerminal } from '../domain/session.ts';
import type { LoadedReport } from '../store/report-load.ts';
import type { BatchWrites } from '../store/report-write.ts';
import type { InboxKey } from './inbox-waiters.ts';
import type { Settled } from './settle-reports.ts';
import type { ParentEvent } from './wake-parents.ts';

/* What a batch means to those who watch sessions and to parents that may be woken. */

/** The sessions whose own state the batch has changed, and their parents, who see them as children. */
export function changedSessions(
  reports: readonly Report[],
  loaded: readonly LoadedReport[],
  { sessions, insertedWork, updatedWork }: BatchWrites,
): InboxKey[] {
  const changed = new Set([
    ...sessions.map(({ tenantId, childId }) => `${tenantId}\0${childId}`),
    ...[...insertedWork, ...updatedWork].map(
      ({ tenantId, work }) => `${tenantId}\0${work.childSessionId}`,
    ),
  ]);
  return reports.flatMap(({ tenantId, sessionId }, at) => {
    if (!changed.has(`${tenantId}\0${sessionId}`)) return [];
    const parentId = loaded[at]?.state.session?.parentSessionId ?? null;
    const own = { tenantId, sessionId };
    return parentId === null ? [own] : [own, { tenantId, sessionId: parentId }];
  });
}

/** What bears on the parents' wakes. */
export function parentEvents(
  reports: readonly Report[],
  loaded: readonly LoadedReport[],
  settled: readonly Settled[],
  { items }: BatchWrites,
): ParentEvent[] {
  const turns = reports.flatMap((report, at): ParentEvent[] => {
    const row = loaded[at];
    const outcome = settled[at];
    if (row?.hasWake !== true || outcome?.kind !== 'decided') return [];
    const kind = turnOf(report, row, outcome);
    const { tenantId, sessionId } = report;
    return kind === null ? [] : [{ kind, tenantId, sessionId, seq: row.itemSeq }];
  });
  const delivered = items
    .filter(({ item }) => item.wakes && item.disposition === 'turn')
    .map(({ tenantId, item }) => ({
      kind: 'delivered' as const,
      tenantId,
      sessionId: item.sessionId,
    }));
  return [...turns, ...delivered];
}

/** Whether the session's own turn begins or has ended by this report. */
function turnOf(
  { origin, status }: Report,
  { state }: LoadedReport,
  { decision }: Extract<Settled, { kind: 'decided' }>,
): 'turn_started' | 'went_idle' | null {
  // The end of an earlier turn says nothing of the one that runs now.
  if (origin.kind !== 'forwarder' || state.named !== null) return null;
  if (isTerminal(status)) return isSettledNow(decision.kind) ? 'went_idle' : null;
  if (status !== 'running' || !('session' in decision) || decision.session === null) return null;
  const { session: before } = state;
  const { session: after } = decision;
  const begins = before?.status !== 'running' || before.responseId !== after.responseId;
  return begins ? 'turn_started' : null;
}

function isSettledNow(kind: Extract<Settled, { kind: 'decided' }>['decision']['kind']): boolean {
  return (
    kind === 'deliver' ||
    kind === 'already_delivered' ||
    kind === 'not_a_subagent' ||
    kind === 'park' ||
    kind === 'parent_gone' ||
    kind === 'status'
  );
}
