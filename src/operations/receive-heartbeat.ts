import { dueAfterFirstHeartbeat, isProgress, stopReason } from '../domain/liveness.ts';
import { notFound } from '../domain/refusal.ts';
import { isLive, type WorkStatus } from '../domain/work.ts';
import type { Resources } from '../resources.ts';
import type { Queryable } from '../store/database.ts';
import {
  putBeat,
  selectBeatenSession,
  setRunner,
  startClock,
  type BeatenSession,
  type BeatRow,
} from '../store/heartbeats.ts';

export interface Heartbeat {
  tenantId: string;
  sessionId: string;
  apiCalls: number | null;
  currentTool: string | null;
  lastActivityAt: string | null;
  /** null: it does not say. */
  runnerId: string | null;
}

export interface HeartbeatAnswer {
  workId: string | null;
  status: WorkStatus | null;
  /** Why the child is to be stopped; null: it is not. */
  stopReason: string | null;
}

type CurrentWork = NonNullable<BeatenSession['work']>;

/**
 * Takes note that the child lives, and says whether it is to be stopped. A beat that tells nothing
 * new writes nothing. Refuses sessions that are not known.
 */
export async function receiveHeartbeat(
  resources: Resources,
  heartbeat: Heartbeat,
): Promise<HeartbeatAnswer> {
  const now = resources.clock.now();
  return await resources.attention.guard(async () => {
    const session = await resources.database.run((db) => selectBeatenSession(db, heartbeat));
    if (session?.deleted) return { workId: null, status: null, stopReason: 'session_deleted' };
    if (!session?.described) throw notFound('The session');
    await keepRunner(resources, heartbeat, session);
    const { work } = session;
    if (work === null) return { workId: null, status: null, stopReason: null };
    if (isLive(work.status)) await keepBeat(resources, heartbeat, session, work, now);
    const status = work.status === 'launching' ? 'running' : work.status;
    return { workId: work.workId, status, stopReason: stopReason(work) };
  });
}

async function keepRunner(
  resources: Resources,
  { tenantId, sessionId, runnerId }: Heartbeat,
  session: BeatenSession,
): Promise<void> {
  if (runnerId === null || runnerId === session.runnerId) return;
  await resources.database.run((db) => setRunner(db, { tenantId, sessionId, runnerId }));
}

/** Keeps the beat if it tells anything. */
async function keepBeat(
  resources: Resources,
  { tenantId, sessionId, apiCalls, currentTool, lastActivityAt }: Heartbeat,
  { newest }: BeatenSession,
  work: CurrentWork,
  now: number,
): Promise<void> {
  const said = { apiCalls, currentTool, lastActivityAt };
  const row = { ...said, tenantId, sessionId, workId: work.workId, now };
  if (newest?.workId === work.workId) {
    if (!isProgress(newest, said)) return;
    const { isFirst } = await resources.database.run((db) => putBeat(db, row));
    if (!isFirst) return;
  }
  // With the first beat, so that no clock is started without its bound.
  await resources.database.transaction(async (tx) => await putFirstBeat(tx, row, work));
}

async function putFirstBeat(
  tx: Queryable,
  row: BeatRow & { tenantId: string; sessionId: string; now: number },
  work: CurrentWork,
): Promise<void> {
  const dueAt = dueOfFirstBeat(work, row.now);
  await startClock(tx, { tenantId: row.tenantId, workId: work.workId, dueAt });
  await putBeat(tx, row);
}

/** A child that was asked to stop has its bound already, and no stall clock. */
function dueOfFirstBeat(work: CurrentWork, now: number): number | null {
  const { status, createdAt, deadlineMs, childTimeoutMs, stall } = work;
  if (status !== 'launching' && status !== 'running') return null;
  const asked = { interruptedAt: null, graceMs: null, stalled: null };
  return dueAfterFirstHeartbeat(
    { status, createdAt, deadlineMs, childTimeoutMs, stall, ...asked },
    now,
  );
}
