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
  const shown = await show();
  if (shown) return shown;
  await learnSession(resources, key);
  const learned = await show();
  if (learned) return learned;
  throw notFound('The session');
}

/**
 * Makes sure that the session is known, if need be from upstream; refuses with 404 if there is no
 * such session, and with 503 if upstream cannot say.
 */
export async function requireSession(resources: Resources, key: SessionKey): Promise<void> {
  const row = await resources.database.run((db) => selectSession(db, key));
  const isKnown = row !== null && row.describedAt !== null;
  if (!isKnown) await learnSession(resources, key);
}

/** A deleted session is not asked for: it stays deleted whatever upstream says. */
async function learnSession(resources: Resources, key: SessionKey): Promise<void> {
  const row = await resources.database.run((db) => selectSession(db, key));
  if (row !== null && row.deletedAt !== null) throw notFound('The session');
  switch (await lookUpSession(resources, key)) {
    case 'stored':
      await deliverParkedOfChild(resources, {
        tenantId: key.tenantId,
        childId: key.sessionId,
      });
      return;
    case 'absent':
      throw notFound('The session');
    case 'unavailable':
      throw new Refusal('unavailable', 'The session is not known here, and upstream cannot say.');
  }
}
