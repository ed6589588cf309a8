import { describeSession, type SnapshotPatch } from '../domain/snapshot.ts';
import type { Resources } from '../resources.ts';
import { selectShownSession, type SessionKey, type ShownSession } from '../store/sessions.ts';
import { announceChanged, announceDelivered } from './announce.ts';
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
  const mayHaveWaited = await deliverWhatWaited(resources, put, written);
  const now = mayHaveWaited
    ? await resources.database.run((db) => selectShownSession(db, put))
    : null;
  // It may have been deleted meanwhile.
  const shown = now ?? written.shown;
  if (shown === null) throw new Error('what a client describes is known');
  return { created: written.kind === 'create' || written.kind === 'recreate', shown };
}

/** Answers whether there may have been something. */
async function deliverWhatWaited(
  resources: Resources,
  { tenantId, sessionId }: SessionKey,
  { kind, shown, isKnownAnew, openedInbox, moved }: SnapshotWritten,
): Promise<boolean> {
  if (moved) {
    const ids = new Set([sessionId, moved.fromId, moved.toId]);
    announceDelivered(
      resources,
      [...ids].map((id) => ({ tenantId, sessionId: id })),
    );
    resources.wakes.submit([{ kind: 'look', tenantId, sessionId: moved.toId }]);
  }
  if (kind !== 'unchanged') {
    const ids = [sessionId, shown?.session.parentSessionId].filter((id) => id != null);
    announceChanged(
      resources,
      ids.map((id) => ({ tenantId, sessionId: id })),
    );
  }
  const waits = isKnownAnew && shown?.hasParked === true;
  if (waits) await deliverParkedOfChild(resources, { tenantId, childId: sessionId });
  const parentIds = [moved?.fromId, openedInbox].filter((id) => id != null);
  for (const parentId of new Set(parentIds)) {
    await deliverParkedForParent(resources, { tenantId, parentId });
  }
  return waits || parentIds.length > 0;
}
