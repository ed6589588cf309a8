import { sweepLiveness } from '../../src/operations/sweep-liveness.ts';
import type { TestClock } from './clock.ts';
import { freshId, path } from './delivery.ts';
import type { TestService } from './service.ts';

type Client = Pick<TestService, 'request'>;

/** A call and its tasks, as the tests order it; durations in seconds, as on the wire. */
export interface Order {
  tasks?: number;
  /** Each task is a unit of its own; otherwise all are one. */
  independent?: boolean;
  stall?: { idle: number; inTool: number; grace: number } | null;
  childTimeout?: number;
  deadline?: number;
  /** On which the children are from the beginning. */
  runner?: string;
}

export interface OrderedTask {
  child: string;
  workId: string;
}

export interface Ordered {
  parent: string;
  delegationId: string;
  unitIds: string[];
  tasks: OrderedTask[];
}

/** Short clocks, so that a test need not step far. */
export const STALL = { idle: 10, inTool: 30, grace: 5 };

/** Has a parent of its own hand over tasks to new children. */
export async function order(service: Client, said: Order = {}): Promise<Ordered> {
  const { tasks: count = 1, stall = STALL } = said;
  const parent = freshId('parent');
  const answer = await service.request('POST', `${path(parent)}/delegations`, {
    tasks: Array.from({ length: count }, (_, at) => ({ goal: `goal ${at}` })),
    independent_completions: said.independent ?? false,
    child_timeout_seconds: said.childTimeout,
    deadline_seconds: said.deadline,
    stall: stall && {
      idle_seconds: stall.idle,
      in_tool_seconds: stall.inTool,
      grace_seconds: stall.grace,
    },
  });
  if (answer.status !== 202) throw new Error(`not dispatched: ${JSON.stringify(answer.body)}`);
  const { delegation_id: delegationId, units } = answer.body;
  const tasks: OrderedTask[] = answer.body.tasks.map(
    (task: { child_session_id: string; work_id: string }) => ({
      child: task.child_session_id,
      workId: task.work_id,
    }),
  );
  if (said.runner !== undefined) {
    for (const { child } of tasks) {
      await service.request('PUT', path(child), { runner_id: said.runner });
    }
  }
  const unitIds = units?.map((unit: { delegation_id: string }) => unit.delegation_id) ?? [
    delegationId,
  ];
  return { parent, delegationId, unitIds, tasks };
}

/** Lets time pass as a service sees it that sweeps all the while; `meanwhile` runs each second. */
export async function pass(
  services: TestService | readonly TestService[],
  clock: TestClock,
  seconds: number,
  meanwhile: (second: number) => Promise<unknown> = () => Promise.resolve(),
): Promise<void> {
  const all = 'request' in services ? [services] : services;
  for (let second = 1; second <= seconds; second += 1) {
    clock.advance(1000);
    await meanwhile(second);
    await Promise.all(all.map((service) => sweepAll(service)));
  }
}

/** Sweeps until nothing is left to do. */
export async function sweepAll(service: Pick<TestService, 'resources'>): Promise<void> {
  while (await sweepLiveness(service.resources));
}

/** A heartbeat of the child. */
export function beat(service: Client, child: string, said: Record<string, unknown> = {}) {
  return service.request('POST', `${path(child)}/heartbeat`, said);
}

/** Renews the runner's lease. */
export function renew(service: Client, runner: string, seconds?: number) {
  const body = seconds === undefined ? {} : { lease_seconds: seconds };
  return service.request('PUT', `/v1/runners/${encodeURIComponent(runner)}`, body);
}

/** All that is in the parent's inbox, acked or not, in order. */
export async function inboxOf(
  service: Client,
  { parent }: { parent: string },
  // oxlint-disable-next-line typescript/no-explicit-any
): Promise<any[]> {
  const answer = await service.request('GET', `${path(parent)}/inbox?state=all&limit=1000`);
  return answer.body.data;
}

/** The results in the only item that is in the parent's inbox. */
export async function resultsOf(
  service: Client,
  of: { parent: string },
  // oxlint-disable-next-line typescript/no-explicit-any
): Promise<any[]> {
  const items = await inboxOf(service, of);
  if (items.length !== 1) throw new Error(`${items.length} items instead of one`);
  return items[0].results;
}

/** What the work entry is at the moment. */
export async function statusOf(service: Client, workId: string): Promise<string> {
  return (await service.request('GET', `/v1/work/${workId}`)).body.status;
}
