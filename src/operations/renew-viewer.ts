import { notFound } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import { renewViewer as renew, type ViewerOf } from '../store/viewers.ts';
import { VIEWER_LEASE_MS } from './attach-viewer.ts';

/** Begins the viewer's lease anew; refuses one that has run out: it must attach again. */
export async function renewViewer(
  resources: Resources,
  of: ViewerOf,
): Promise<{ viewerId: string; leaseMs: number }> {
  const now = resources.clock.now();
  const renewed = await resources.database.run((db) => renew(db, { ...of, now }));
  if (!renewed) throw notFound(`Viewer ${of.viewerId} of session ${of.sessionId}`);
  return { viewerId: of.viewerId, leaseMs: VIEWER_LEASE_MS };
}
