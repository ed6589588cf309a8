import { conflict, notFound } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import { clearCurrentWork, deleteLiveWork, lockChildOfWork, selectWork } from '../store/work.ts';

/**
 * Takes back a dispatch whose launch failed: the entry is gone, and a report that comes all the same
 * belongs to no turn. Refuses work that has ended.
 */
export async function withdrawWork(
  resources: Resources,
  of: { tenantId: string; workId: string },
): Promise<void> {
  await resources.database.transaction(async (tx) => {
    const childId = await lockChildOfWork(tx, of);
    if (childId === null) throw notFound(`Work ${of.workId}`);
    if (await deleteLiveWork(tx, of)) {
      await clearCurrentWork(tx, { ...of, childId });
      return;
    }
    if ((await selectWork(tx, of)) === null) throw notFound(`Work ${of.workId}`);
    throw conflict('work_ended', `Work ${of.workId} has ended.`);
  });
}
