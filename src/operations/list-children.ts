import { invalid } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import {
  selectChildren,
  selectSession,
  type ShownChild,
  type SessionKey,
} from '../store/sessions.ts';
import { ANSWER_MAX_BYTES } from './read-inbox.ts';
import { requireSession } from './read-session.ts';

export type { ShownChild };

export interface ChildrenPage extends SessionKey {
  /** The id after which the page begins. */
  after: string | null;
  limit: number;
}

/** A page of the session's direct children, newest first; 404 if the session is not known. */
export async function listChildren(
  resources: Resources,
  page: ChildrenPage,
): Promise<{ children: ShownChild[]; hasMore: boolean }> {
  const { tenantId, sessionId, limit } = page;
  await requireSession(resources, page);
  const after = page.after === null ? null : await placeOf(resources, tenantId, page.after);
  const { rows, hasMore } = await resources.database.run((db) =>
    selectChildren(db, { tenantId, sessionId, after, limit, maxBytes: ANSWER_MAX_BYTES }),
  );
  return { children: rows, hasMore };
}

/** Where a session stands, or stood before it was deleted. */
async function placeOf(resources: Resources, tenantId: string, id: string) {
  const row = await resources.database.run((db) => selectSession(db, { tenantId, sessionId: id }));
  if (row === null) throw invalid('after', 'is no session of this list');
  return { createdAt: row.createdAt, id };
}
