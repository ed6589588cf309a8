import type { Interruption } from '../domain/task-end.ts';
import type { Report } from '../domain/report.ts';
import type { Resources } from '../resources.ts';
import { ingestReport } from './ingest-report.ts';

/** How long a child that is asked to stop may take, unless somebody says otherwise. */
export const GRACE_MS = 10_000;

/** So many are in the ingest's queue at once. */
const AT_ONCE = 128;

export interface LiveChild {
  tenantId: string;
  childSessionId: string;
  workId: string;
}

/**
 * Asks the children to stop what they were dispatched for, each within the grace; safe to repeat.
 * Answers how many were asked: those whose work had not ended, and that were not asked before.
 */
export async function interruptChildren(
  resources: Resources,
  children: readonly LiveChild[],
  { by, graceMs }: { by: Interruption; graceMs: number },
): Promise<number> {
  let asked = 0;
  for (let at = 0; at < children.length; at += AT_ONCE) {
    const decisions = await Promise.all(
      children
        .slice(at, at + AT_ONCE)
        .map((child) => ingestReport(resources, interruptOf(child, { by, graceMs }))),
    );
    asked += decisions.filter(({ kind }) => kind === 'interrupt').length;
  }
  return asked;
}

function interruptOf(
  { tenantId, childSessionId, workId }: LiveChild,
  { by, graceMs }: { by: Interruption; graceMs: number },
): Report {
  return {
    tenantId,
    sessionId: childSessionId,
    status: 'idle',
    output: null,
    outcome: null,
    responseId: null,
    workId,
    backgroundTaskCount: null,
    blockedOn: null,
    reauthRequired: false,
    result: null,
    traceparent: null,
    fingerprint: `interrupt ${workId}`,
    origin: { kind: 'interrupt', by, graceMs },
    upstreamText: null,
    upstreamSession: null,
  };
}
