import { setTimeout as pause } from 'node:timers/promises';
import { interruptedResult, type Interruption } from '../domain/task-end.ts';
import { INTERRUPTED_OUTPUT, STOPPED_OUTPUT } from '../domain/item-text.ts';
import { notFound } from '../domain/refusal.ts';
import type { ReportOrigin } from '../domain/report.ts';
import { outcomeOf, type ReportOutcome } from '../domain/report-outcome.ts';
import type { Resources } from '../resources.ts';
import { selectCall } from '../store/delegations.ts';
import {
  selectLiveTasks,
  selectLiveTasksOfParent,
  selectLiveTurnOfSession,
  type LiveTurn,
} from '../store/live-tasks.ts';
import { inboxesOf } from './ack-items.ts';
import { ingestReport } from './ingest-report.ts';
import { GRACE_MS, interruptChildren } from './interrupt-children.ts';
import { ownReport } from './own-report.ts';
import { requireSession } from './read-session.ts';
import { isPassing } from './unavailable.ts';

/*
 * Turns that are asked to stop, or are ended in the place of their children. Both are reports of the
 * service itself: the ingest decides them under the child's lock, like those of a forwarder.
 */

/** So many are handed to the ingest at a time, which fills a batch of it. */
const TURNS_AT_A_TIME = 128;

interface Session {
  tenantId: string;
  sessionId: string;
}

/** Asks the session's turn to stop within the grace. Refuses a session that is not known. */
export async function interruptTurn(
  resources: Resources,
  session: Session,
  graceMs: number,
): Promise<ReportOutcome> {
  await requireSession(resources, session);
  const origin: ReportOrigin = { kind: 'interrupt', by: 'interrupted', graceMs };
  const report = ownReport({ ...session, workId: null }, origin, INTERRUPTED_OUTPUT);
  return outcomeOf(await ingestReport(resources, report));
}

/** Ends the session's turn at once, as cancelled. Refuses a session that is not known. */
export async function stopTurn(resources: Resources, session: Session): Promise<ReportOutcome> {
  await requireSession(resources, session);
  const turn = await resources.database.run((db) => selectLiveTurnOfSession(db, session));
  const soFar = { apiCalls: turn?.apiCalls ?? null, model: turn?.model ?? null };
  const task = interruptedResult({ ...soFar, by: 'stopped' });
  const origin: ReportOrigin = { kind: 'end', as: 'cancelled', task };
  const report = ownReport({ ...session, workId: turn?.workId ?? null }, origin, STOPPED_OUTPUT);
  return outcomeOf(await ingestReport(resources, report));
}

/** Asks the live children of a call, or of one of its units, to stop; answers how many. */
export async function interruptDelegation(
  resources: Resources,
  of: { tenantId: string; id: string },
  by: { by: Interruption; graceMs: number },
): Promise<number> {
  const turns = await resources.database.run(async (db) => {
    if ((await selectCall(db, of)) === null) throw notFound(`Delegation ${of.id}`);
    return await selectLiveTasks(db, of);
  });
  return await interruptChildren(resources, turns, by);
}

/** A client that has gone asks no second time, so an outage is waited out, for so long. */
const OUTAGE_MS = 60_000;
const PAUSE_MS = 1_000;

/** The same where the client that waited for the call has gone. */
export async function interruptForGone(
  resources: Resources,
  of: { tenantId: string; id: string },
): Promise<void> {
  const giveUpAt = performance.now() + OUTAGE_MS;
  for (;;) {
    try {
      await interruptDelegation(resources, of, { by: 'client_gone', graceMs: GRACE_MS });
      return;
    } catch (error) {
      if (!isPassing(error) || performance.now() > giveUpAt) throw error;
    }
    // A service that stops does not wait for it.
    await pause(PAUSE_MS, undefined, { ref: false });
  }
}

/** The same for all calls of the session and the others of its chain. */
export async function interruptDelegationsOf(
  resources: Resources,
  session: Session,
  by: { by: Interruption; graceMs: number },
): Promise<number> {
  const [tipId] = await inboxesOf(resources, session);
  const of = { tenantId: session.tenantId, tipId };
  const turns = await resources.database.run((db) => selectLiveTasksOfParent(db, of));
  return await interruptChildren(resources, turns, by);
}

/**
 * Ends these tasks as interrupted for their units, whatever the inbox that the units are for: nobody
 * will be there to report them later. Those that have ended meanwhile stay as they are.
 */
export async function endTasks(
  resources: Resources,
  turns: readonly LiveTurn[],
  by: Interruption,
): Promise<void> {
  for (let at = 0; at < turns.length; at += TURNS_AT_A_TIME) {
    const some = turns.slice(at, at + TURNS_AT_A_TIME);
    await Promise.all(some.map((turn) => endTask(resources, turn, by)));
  }
}

/** The same for one task; says whether it was ended by this. */
export async function endTask(
  resources: Resources,
  { tenantId, workId, childSessionId, apiCalls, model }: LiveTurn,
  by: Interruption,
): Promise<boolean> {
  const task = interruptedResult({ apiCalls, model, by });
  const origin: ReportOrigin = { kind: 'end', as: 'interrupted', task, final: true };
  const of = { tenantId, sessionId: childSessionId, workId };
  const decision = await ingestReport(resources, ownReport(of, origin, INTERRUPTED_OUTPUT));
  return decision.kind === 'deliver';
}
