import { describeSession, type SnapshotPatch } from '../domain/snapshot.ts';
import type { Resources } from '../resources.ts';
import { selectShownSession, type SessionKey, type ShownSession } from '../store/sessions.ts';
import { announceDelivered } from './announce.ts';
import { deliverParkedForParent, deliverParkedOfChild } from './deliver-parked.ts';
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
  const created = written.kind === 'create' || written.kind === 'recreate';
  if (!(await deliverWhatWaited(resources, put, written))) return { created, shown: written.shown };
  const shown = await resources.database.run((db) => selectShownSession(db, put));
  return { created, shown: shown ?? written.shown };
}

/** Answers whether there may have been something. */
async function deliverWhatWaited(
  resources: Resources,
  { tenantId, sessionId }: SessionKey,
  { isKnownAnew, openedInbox, moved }: SnapshotWritten,
): Promise<boolean> {
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
  return isKnownAnew || parentIds.length > 0;
}
