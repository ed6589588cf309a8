import type { Resources } from '../resources.ts';
import {
  deleteClosingInterrupts,
  selectClosingInterruptsOf,
  selectOldClosingInterrupts,
  type ClosingInterrupt,
} from '../store/closing-interrupts.ts';
import { GRACE_MS, interruptChildren } from './interrupt-children.ts';

const AT_A_TIME = 500;
/** Whoever has closed a session stops its work at once; older than this it is left over. */
const LEFT_OVER_AFTER_MS = 5_000;

/** Stops the work that the closing of this session has noted. */
export async function stopWorkOfClosed(
  resources: Resources,
  of: { tenantId: string; sessionId: string },
): Promise<void> {
  for (;;) {
    const some = await resources.database.run((db) =>
      selectClosingInterruptsOf(db, { ...of, limit: AT_A_TIME }),
    );
    await stop(resources, some);
    if (some.length < AT_A_TIME) return;
  }
}

/** Finishes what a process that died had begun: one bounded pass; true if there may be more. */
export async function sweepClosed(resources: Resources): Promise<boolean> {
  const closedBefore = resources.clock.now() - LEFT_OVER_AFTER_MS;
  const some = await resources.database.run((db) =>
    selectOldClosingInterrupts(db, { closedBefore, limit: AT_A_TIME }),
  );
  await stop(resources, some);
  return some.length === AT_A_TIME;
}

async function stop(resources: Resources, some: readonly ClosingInterrupt[]): Promise<void> {
  if (some.length === 0) return;
  await interruptChildren(resources, some, { by: 'session_closed', graceMs: GRACE_MS });
  await resources.database.run((db) => deleteClosingInterrupts(db, some));
}
