import { stopReason } from '../domain/liveness.ts';
import type { Resources } from '../resources.ts';
import { renewLease, selectStoppableOfRunner } from '../store/runners.ts';

/** A runner that has its lease renews it far more often than that, so it has been told by then. */
const ENDED_SHOWN_MS = 10 * 60_000;
const INTERRUPTS_MAX = 10_000;

export interface Interrupt {
  sessionId: string;
  workId: string;
  reason: string;
}

/** Grants the runner a lease from now on, and tells which of its children are to be stopped. */
export async function renewRunnerLease(
  resources: Resources,
  lease: { tenantId: string; runnerId: string; leaseMs: number },
): Promise<Interrupt[]> {
  const now = resources.clock.now();
  return await resources.attention.guard(async () => {
    await resources.database.run((db) => renewLease(db, { ...lease, now }));
    const page = { ...lease, endedSince: now - ENDED_SHOWN_MS, limit: INTERRUPTS_MAX };
    const children = await resources.database.run((db) => selectStoppableOfRunner(db, page));
    return children.flatMap(({ sessionId, workId, ...work }) => {
      const reason = stopReason(work);
      return reason === null ? [] : [{ sessionId, workId, reason }];
    });
  });
}
