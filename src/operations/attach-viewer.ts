import type { Resources } from '../resources.ts';
import { insertStubs } from '../store/sessions.ts';
import { insertViewer, reopenSession } from '../store/viewers.ts';
import { withLockedInbox } from './open-inbox.ts';

/** How long a viewer is there without being heard of. */
export const VIEWER_LEASE_MS = 60_000;

/**
 * Has somebody watch the session, that is the last one of its chain, for the time of a lease; a
 * close of it is taken back. A session never named becomes a stub; a deleted one is refused.
 */
export async function attachViewer(
  resources: Resources,
  of: { tenantId: string; sessionId: string },
): Promise<{ viewerId: string; leaseMs: number }> {
  const { tenantId } = of;
  const now = resources.clock.now();
  const viewerId = resources.ids.next('viewer');
  const stub = { tenantId, ids: [of.sessionId], now };
  await resources.database.run((db) => insertStubs(db, stub));
  await withLockedInbox(resources, of, async (tx, { sessionId }) => {
    await insertViewer(tx, { tenantId, sessionId, viewerId, now, leaseMs: VIEWER_LEASE_MS });
    await reopenSession(tx, { tenantId, sessionId });
  });
  return { viewerId, leaseMs: VIEWER_LEASE_MS };
}
