import { hearAnnouncements, wakeWhereItemsAre } from '../operations/announce.ts';
import type { Resources } from '../resources.ts';
import { schedule, type Schedule } from './schedule.ts';

/** How late a reader wakes at most when the message to wake it was lost. */
const LOOK_INTERVAL_MS = 2_000;

/**
 * Wakes readers that wait here for what other replicas deliver: as soon as these say so, and for
 * what they could not say by a look at the inboxes. Rejects if it cannot listen at first.
 */
export async function startInboxListener(resources: Resources): Promise<Schedule> {
  const ears = await hearAnnouncements(resources);
  const looking = schedule(
    'look for what waits to be read',
    LOOK_INTERVAL_MS,
    async () => {
      await wakeWhereItemsAre(resources);
      return false;
    },
    resources.log,
  );
  return {
    stop: async () => {
      await Promise.all([looking.stop(), ears.stop()]);
    },
  };
}
