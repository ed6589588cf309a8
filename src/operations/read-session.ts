import { notFound, Refusal } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import {
  selectSession,
  selectShownSession,
  type SessionKey,
  type ShownSession,
} from '../store/sessions.ts';
import { deliverParkedOfChild } from './deliver-parked.ts';
import { lookUpSession } from './look-up-session.ts';

export type { ShownSession };

/** The session with what is shown of it; looked up upstream if it is not known. Refuses with 404. */
export async function readSession(resources: Resources, key: SessionKey): Promise<ShownSession> {
  const show = () => resources.database.run((db) => selectShownSession(db, key));
  const known = await show();
  if (known) return known;
  await requireSession(resources, key);
  const learned = await show();
  if (learned) return learned;
  throw notFound('The session');
}

/**
 * Makes sure that the session is known, if need be from upstream. Refuses with 404 where there is
 * none, and with 503 where upstream cannot say; a deleted one stays deleted whatever upstream says.
 */
export async function requireSession(resources: Resources, key: SessionKey): Promise<void> {
  const row = await resources.database.run((db) => selectSession(db, key));
  if (row !== null && row.describedAt !== null) return;
  const answer =
    row !== null && row.deletedAt !== null ? 'absent' : await lookUpSession(resources, key);
  switch (answer) {
    case 'stored':
      await deliverParkedOfChild(resources, { tenantId: key.tenantId, childId: key.sessionId });
      return;
    case 'absent':
      throw notFound('The session');
    case 'unavailable':
      throw new Refusal('unavailable', 'The session is not known here, and upstream cannot say.');
  }
}
