import { detach, type EndReason } from '../domain/closing.ts';
import type { Resources } from '../resources.ts';
import { closeSession } from '../store/closing-interrupts.ts';
import { deleteExpiredViewers, deleteViewer, type ViewerOf } from '../store/viewers.ts';
import { stopWorkOfClosed } from './close-session.ts';
import { withLockedInbox } from './open-inbox.ts';
import { isPassing } from './unavailable.ts';

const EXPIRED_AT_A_TIME = 1_000;

/**
 * Has the viewer leave. As the last one, and with a reason, it closes the session: the session's
 * own work is asked to stop, before this resolves if nothing is in the way. Harmless for a viewer
 * that is not there, or no longer: its lease has run out, which closes nothing. Refuses a session
 * unknown or deleted.
 */
export async function detachViewer(
  resources: Resources,
  leaving: ViewerOf & { endReason: EndReason | null },
): Promise<void> {
  const { tenantId, viewerId, endReason } = leaving;
  const now = resources.clock.now();
  const closed = await withLockedInbox(resources, leaving, async (tx, { sessionId }) => {
    const { watched, left } = await deleteViewer(tx, { tenantId, sessionId, viewerId, now });
    const decision = detach({ viewersLeft: left, endReason });
    if (!watched || decision.kind === 'nothing') return null;
    await closeSession(tx, { tenantId, sessionId, reason: decision.reason, now });
    return { tenantId, sessionId };
  });
  if (closed === null) return;
  try {
    await stopWorkOfClosed(resources, closed);
  } catch (error) {
    // It is closed all the same, and the sweep goes on with what is left.
    if (!isPassing(error)) throw error;
    resources.log.warn({ err: error }, 'the work of a closed session is stopped later');
  }
}

/** Takes away viewers whose leases have run out: one bounded pass; true if there may be more. */
export async function sweepViewers(resources: Resources): Promise<boolean> {
  const now = resources.clock.now();
  const page = { now, limit: EXPIRED_AT_A_TIME };
  const found = await resources.database.run((db) => deleteExpiredViewers(db, page));
  return found === EXPIRED_AT_A_TIME;
}
