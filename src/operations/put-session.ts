import { describeSession, type SnapshotPatch } from '../domain/snapshot.ts';
import type { Resources } from '../resources.ts';
import type { SessionKey } from '../store/sessions.ts';
import { announceDelivered } from './announce.ts';
import { deliverParkedForParent, deliverParkedOfChild } from './deliver-parked.ts';
import { readSession, type ShownSession } from './read-session.ts';
import { writeSnapshot, type SnapshotWritten } from './write-snapshot.ts';

export interface PutSession extends SessionKey {
  patch: SnapshotPatch;
}

/**
 * Creates or updates the session as the patch says, and delivers what has waited for it before it
 * answers. Safe to repeat: what says nothing new writes and locks nothing.
 */
export async function putSession(
  resources: Resources,
  put: PutSession,
): Promise<{ created: boolean; shown: ShownSession }> {
  const written = await writeSnapshot(resources, { ...put, decide: describeSession });
  await deliverWhatWaited(resources, put, written);
  return {
    created: written.kind === 'create' || written.kind === 'recreate',
    shown: await readSession(resources, put),
  };
}

async function deliverWhatWaited(
  resources: Resources,
  { tenantId, sessionId }: SessionKey,
  { isKnownAnew, openedInbox, moved }: SnapshotWritten,
): Promise<void> {
  if (moved) {
    const ids = new Set([sessionId, moved.fromId, moved.toId]);
    announceDelivered(
      resources,
      [...ids].map((id) => ({ tenantId, sessionId: id })),
    );
  }
  if (isKnownAnew) await deliverParkedOfChild(resources, { tenantId, childId: sessionId });
  const parentIds = [moved?.fromId, openedInbox].filter((id) => id != null);
  for (const parentId of new Set(parentIds)) {
    await deliverParkedForParent(resources, { tenantId, parentId });
  }
}
