import type { Resources } from '../resources.ts';
import { setInboxClosed } from '../store/inboxes.ts';
import { withLockedInbox } from './open-inbox.ts';

/**
 * Closes the session's inbox, that of the last session of its chain: nothing is delivered to it
 * until it is opened again, and what lies in it can be read. Harmless again.
 */
export async function closeInbox(
  resources: Resources,
  of: { tenantId: string; sessionId: string },
): Promise<void> {
  const now = resources.clock.now();
  await withLockedInbox(resources, of, async (tx, { sessionId }) => {
    await setInboxClosed(tx, { tenantId: of.tenantId, sessionId, now });
  });
}
