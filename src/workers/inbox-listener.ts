import { hearAnnouncements, wakeWhereItemsAre } from '../operations/announce.ts';
import type { Resources } from '../resources.ts';
import { schedule, type Schedule } from './schedule.ts';

/** How late a reader wakes, or a stream tells, at most when the message to do so was lost. */
const LOOK_INTERVAL_MS = 2_000;
/** How often a stream shows that it lives. */
const PING_INTERVAL_MS = 15_000;

/**
 * Wakes readers that wait here for what other replicas deliver, and tells streams what these change:
 * as soon as they say so, and what they could not say by looking. Rejects if it cannot listen at
 * first.
 */
export async function startInboxListener(resources: Resources): Promise<Schedule> {
  const { log, streams, policy } = resources;
  const ears = policy.notifications ? await hearAnnouncements(resources) : null;
  const schedules = [
    schedule(
      'look for what is new',
      LOOK_INTERVAL_MS,
      async () => {
        streams.hintAll();
        await wakeWhereItemsAre(resources);
        return false;
      },
      log,
    ),
    schedule(
      'keep streams alive',
      PING_INTERVAL_MS,
      async () => {
        await streams.ping();
        return false;
      },
      log,
    ),
  ];
  return {
    stop: async () => {
      await Promise.all([...schedules.map((one) => one.stop()), ears?.stop()]);
    },
  };
}
