import { conflict, notFound } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import { retireTask } from '../store/delegations.ts';
import { selectLiveTask } from '../store/live-tasks.ts';
import { clearCurrentWork, deleteLiveWork, lockChildOfWork, selectWork } from '../store/work.ts';
import { endTask } from './cancel-turns.ts';

/**
 * Takes back a dispatch whose launch failed: the entry is gone, or has ended as interrupted for its
 * unit, and a report that comes all the same belongs to no turn. Refuses work that has ended.
 */
export async function withdrawWork(
  resources: Resources,
  of: { tenantId: string; workId: string },
): Promise<void> {
  const task = await resources.database.run((db) => selectLiveTask(db, of));
  const endedNow = task !== null && (await endTask(resources, task, 'withdrawn'));
  await resources.database.transaction(async (tx) => {
    const childId = await lockChildOfWork(tx, of);
    if (childId === null) throw notFound(`Work ${of.workId}`);
    const gone = endedNow ? await retireTask(tx, of) : await deleteLiveWork(tx, of);
    if (gone) {
      await clearCurrentWork(tx, { ...of, childId });
      return;
    }
    if ((await selectWork(tx, of)) === null) throw notFound(`Work ${of.workId}`);
    throw conflict('work_ended', `Work ${of.workId} has ended.`);
  });
}
