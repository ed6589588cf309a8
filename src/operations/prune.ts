import type { Resources } from '../resources.ts';
import { deleteOldCalls } from '../store/delegations.ts';
import { deleteOldKeys } from '../store/idempotency-keys.ts';
import { deleteOldAckedItems } from '../store/items.ts';
import { buryOldParked, deleteOldDead } from '../store/parked-reports.ts';
import { deleteLostRunners } from '../store/runners.ts';
import { deleteOldMarkers } from '../store/sessions.ts';
import { deleteOldTombstones } from '../store/work.ts';

/** So many rows of a table are removed in one statement: short locks, small transactions. */
const ROWS_PER_PASS = 1000;

/** Where a pass goes on, null in it: that table is through; null: from the beginning. */
export type PruneCursor = { calls: CallPlace | null; tombstones: WorkPlace | null } | null;

interface CallPlace {
  tenantId: string;
  delegationId: string;
}

interface WorkPlace {
  tenantId: string;
  workId: string;
}

/**
 * One bounded pass over each table that keeps what is settled: removes what is older than its
 * retention. Never touches unread items, live work, calls that have not ended or of which an item is
 * there, or the newest entry of a session that lives. Answers where the next pass goes on, and
 * whether there is more to do at once.
 */
export async function prune(
  resources: Resources,
  cursor: PruneCursor,
): Promise<{ cursor: PruneCursor; more: boolean }> {
  const now = resources.clock.now();
  const { policy, database } = resources;
  const limit = ROWS_PER_PASS;
  const counts = [
    await database.run((db) =>
      deleteOldAckedItems(db, { ackedBefore: now - policy.ackedItemRetentionMs, limit }),
    ),
    await database.run((db) =>
      buryOldParked(db, { parkedBefore: now - policy.parkedRetentionMs, now, limit }),
    ),
    await database.run((db) =>
      deleteOldDead(db, { deadBefore: now - policy.deadLetterRetentionMs, limit }),
    ),
    await database.run((db) =>
      deleteOldKeys(db, { createdBefore: now - policy.idempotencyRetentionMs, limit }),
    ),
    await database.run((db) =>
      deleteOldMarkers(db, { deletedBefore: now - policy.deadLetterRetentionMs, limit }),
    ),
    await database.run((db) =>
      deleteLostRunners(db, { lostBefore: now - policy.tombstoneRetentionMs, limit }),
    ),
  ];
  const endedBefore = now - policy.tombstoneRetentionMs;
  const goesOn = { endedBefore, limit };
  const [calls, tombstones] = [
    cursor !== null && cursor.calls === null
      ? null
      : await database.run((db) =>
          deleteOldCalls(db, { after: cursor && cursor.calls, ...goesOn }),
        ),
    cursor !== null && cursor.tombstones === null
      ? null
      : await database.run((db) =>
          deleteOldTombstones(db, { after: cursor && cursor.tombstones, ...goesOn }),
        ),
  ];
  const next = calls === null && tombstones === null ? null : { calls, tombstones };
  return { cursor: next, more: next !== null || counts.includes(limit) };
}
