import { LIVENESS_INTERVAL_MS, sweepLiveness } from '../operations/sweep-liveness.ts';
import { sweepClosed } from '../operations/close-session.ts';
import { sweepViewers } from '../operations/detach-viewer.ts';
import { prune, type PruneCursor } from '../operations/prune.ts';
import { probeUpstream, sweepParked } from '../operations/sweep-parked.ts';
import { repeatWakes, sweepUntold } from '../operations/wake-parents.ts';
import type { Resources } from '../resources.ts';
import { schedule, type Schedule } from './schedule.ts';

/** How long after upstream answers again the reports that waited for it are delivered, at most. */
const PROBE_INTERVAL_MS = 2_000;
/** The backstop for parked reports that a crash left beside an open inbox. */
const SWEEP_INTERVAL_MS = 10_000;
/** How late a viewer who died is forgotten, and work that a crash left beside a closed session. */
const VIEWERS_INTERVAL_MS = 5_000;
/** How late a wake is repeated, and how often those are looked for whom a crash left untold. */
const WAKES_INTERVAL_MS = 2_000;
/** How late a webhook is called that this replica was not told of. */
const WEBHOOKS_INTERVAL_MS = 1_000;
const PRUNE_INTERVAL_MS = 60_000;

/** Starts all that is done by the clock; any number of replicas may run it at once. */
export function startWorkers(resources: Resources): Schedule {
  let probeAfter = '';
  let sweepAfter = '';
  let pruneCursor: PruneCursor = null;
  let untoldAfter: Parameters<typeof sweepUntold>[1] = null;
  const { log } = resources;
  const schedules = [
    schedule('sweep liveness', LIVENESS_INTERVAL_MS, () => sweepLiveness(resources), log),
    schedule(
      'probe upstream',
      PROBE_INTERVAL_MS,
      async () => {
        const pass = await probeUpstream(resources, probeAfter);
        probeAfter = pass.after;
        return pass.more;
      },
      log,
    ),
    schedule(
      'sweep parked',
      SWEEP_INTERVAL_MS,
      async () => {
        sweepAfter = await sweepParked(resources, sweepAfter);
        return false;
      },
      log,
    ),
    schedule('sweep viewers', VIEWERS_INTERVAL_MS, () => sweepViewers(resources), log),
    schedule('sweep closed', VIEWERS_INTERVAL_MS, () => sweepClosed(resources), log),
    schedule('repeat wakes', WAKES_INTERVAL_MS, () => repeatWakes(resources), log),
    schedule(
      'wake who was not told',
      WAKES_INTERVAL_MS,
      async () => {
        untoldAfter = await sweepUntold(resources, untoldAfter);
        return false;
      },
      log,
    ),
    schedule(
      'send webhooks',
      WEBHOOKS_INTERVAL_MS,
      async () => {
        await resources.webhooks.sendDue();
        return false;
      },
      log,
    ),
    schedule(
      'prune',
      PRUNE_INTERVAL_MS,
      async () => {
        const pass = await prune(resources, pruneCursor);
        pruneCursor = pass.cursor;
        return pass.more;
      },
      log,
    ),
  ];
  return {
    stop: async () => {
      await Promise.all(schedules.map((one) => one.stop()));
    },
  };
}
