import type { SessionStatus } from './session.ts';

/* What those are told who watch a session: how it differs from what was seen of it last. */

/** So many characters of an error's message are told; the session and its entry have it whole. */
export const TOLD_ERROR_MAX = 4_000;

/** A session as a look finds it, as far as its watchers are told of it. */
export interface SeenSession {
  status: SessionStatus;
  backgroundTaskCount: number;
  blockedOn: string | null;
  errorCode: string | null;
  errorMessage: string | null;
  /** The session in whose inbox its items lie, by which it is told: the last one of its chain. */
  tipId: string;
  /** How often that one was told of its inbox, and what last. */
  announcements: number;
  told: { notice: string; pending: number; itemId: string | null } | null;
  /** No turn has followed what was told last, and the inbox was not emptied since. */
  wakePending: boolean;
  /** Its newest children, each with a fingerprint of all that is shown of it. */
  children: ReadonlyMap<string, string>;
}

export interface SeenChanges {
  statusChanged: boolean;
  /** A new announcement; of several between two looks, the last. */
  wake: SeenSession['told'];
  createdChildren: string[];
  updatedChildren: string[];
}

/** How the session has changed between two looks. */
export function changesBetween(before: SeenSession, after: SeenSession): SeenChanges {
  const created: string[] = [];
  const updated: string[] = [];
  for (const [id, fingerprint] of after.children) {
    const former = before.children.get(id);
    if (former === undefined) created.push(id);
    else if (former !== fingerprint) updated.push(id);
  }
  return {
    statusChanged:
      before.status !== after.status ||
      before.backgroundTaskCount !== after.backgroundTaskCount ||
      before.blockedOn !== after.blockedOn ||
      before.errorCode !== after.errorCode ||
      before.errorMessage !== after.errorMessage,
    wake: isToldAnew(before, after) ? after.told : null,
    createdChildren: created,
    updatedChildren: updated,
  };
}

/** Where the session goes on as another one since, what that was told before is told if it holds. */
function isToldAnew(before: SeenSession, after: SeenSession): boolean {
  if (after.tipId !== before.tipId) return after.wakePending;
  return after.announcements !== before.announcements;
}
