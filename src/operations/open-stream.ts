import { notFound, Refusal } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import { selectInbox } from '../store/inboxes.ts';
import { insertStubs } from '../store/sessions.ts';
import { renewViewer } from './renew-viewer.ts';

/** So many streams are open on one replica at most; each costs some 50 KB (bench/streams.ts). */
const STREAMS_MAX = 10_000;

export interface Streamed {
  tenantId: string;
  sessionId: string;
  /** Whose lease the stream renews; null: nobody's. */
  viewerId: string | null;
}

/**
 * Makes sure that the session can be streamed: one never named becomes a stub, a deleted one is
 * refused, and so is a viewer whose lease has run out; that of the named one begins anew.
 */
export async function openStream(
  resources: Resources,
  of: Streamed,
  left: AbortSignal,
): Promise<void> {
  if (resources.streams.count() >= STREAMS_MAX) {
    throw new Refusal('unavailable', 'This replica has as many streams open as it can serve.');
  }
  const giveTurnBack = await resources.streams.takeTurn(left);
  try {
    if (!left.aborted) await lookUp(resources, of);
  } finally {
    giveTurnBack();
  }
}

async function lookUp(resources: Resources, of: Streamed): Promise<void> {
  const { tenantId, sessionId, viewerId } = of;
  const found = await resources.database.run((db) => selectInbox(db, of));
  if (found?.deleted) throw notFound(`Session ${sessionId}`);
  if (found === null) {
    const stub = { tenantId, ids: [sessionId], now: resources.clock.now() };
    await resources.database.run((db) => insertStubs(db, stub));
  }
  if (viewerId !== null) await renewViewer(resources, { tenantId, sessionId, viewerId });
}
