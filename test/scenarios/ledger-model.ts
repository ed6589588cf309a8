/*
 * What a parent may expect of its delegations, said as plainly as can be: the time is looked at once
 * a second, and each clock is a start and a length. Times are in seconds.
 */

export interface Terms {
  stall: { idle: number; inTool: number; grace: number } | null;
  childTimeout: number | null;
  deadline: number;
  runner: string | null;
}

export type Status =
  | 'launching'
  | 'running'
  | 'cancelling'
  | 'stalling'
  | 'completed'
  | 'interrupted'
  | 'stalled'
  | 'timeout'
  | 'unknown';

export interface Beat {
  apiCalls: number;
  tool: string | null;
}

export interface Task {
  child: string;
  workId: string;
  unitId: string;
  terms: Terms;
  status: Status;
  summary: string | null;
  createdAt: number;
  beat: Beat | null;
  progressed: boolean;
  progressAt: number;
  interruptedAt: number;
  grace: number;
}

/** What one item of a unit says of its tasks. */
export type Shown = { status: Status; summary: string | null }[];

export interface Model {
  now: number;
  /** Nothing was seen before. */
  watchedSince: number;
  tasks: Task[];
  leases: Map<string, { renewedAt: number; length: number; lost: boolean }>;
  /** The items of each unit, in order. */
  items: Map<string, Shown[]>;
}

export function newModel(now: number): Model {
  return { now, watchedSince: now, tasks: [], leases: new Map(), items: new Map() };
}

function isLive({ status }: Task): boolean {
  return ['launching', 'running', 'cancelling', 'stalling'].includes(status);
}

/** A change of what the beats say is progress; the first one starts the stall clock. */
export function beats(model: Model, task: Task, beat: Beat): void {
  if (!isLive(task)) return;
  if (task.status === 'launching') task.status = 'running';
  const isNews = task.beat?.apiCalls !== beat.apiCalls || task.beat.tool !== beat.tool;
  if (isNews) Object.assign(task, { progressed: task.beat !== null, progressAt: model.now });
  task.beat = beat;
}

/** Says whether the report is delivered. */
export function reports(model: Model, task: Task, summary: string): boolean {
  if (isLive(task)) {
    end(model, task, task.status === 'cancelling' ? 'interrupted' : 'completed', summary);
    return true;
  }
  if (task.status !== 'unknown') return false;
  task.status = 'completed';
  task.summary = summary;
  if (model.items.has(task.unitId)) deliver(model, task.unitId);
  return true;
}

export function isInterrupted(model: Model, task: Task, grace: number): void {
  if (!isLive(task) || task.status === 'cancelling') return;
  Object.assign(task, { status: 'cancelling', interruptedAt: model.now, grace });
}

export function renews(model: Model, runner: string, length: number): void {
  model.leases.set(runner, { renewedAt: model.now, length, lost: false });
}

/** The service looks at all clocks. */
export function look(model: Model): void {
  for (const task of model.tasks.filter(isLive)) judge(model, task);
  for (const [runner, lease] of model.leases) {
    if (lease.lost || !isOver(model, lease.renewedAt, lease.length)) continue;
    lease.lost = true;
    for (const task of model.tasks) {
      if (task.terms.runner === runner && isLive(task)) end(model, task, 'unknown', null);
    }
  }
}

/** Somebody was away, or the clock was set: all clocks begin anew. */
export function resume(model: Model, now: number): void {
  Object.assign(model, { now, watchedSince: now });
  look(model);
}

function judge(model: Model, task: Task): void {
  const { terms, status, beat } = task;
  if (isOver(model, task.createdAt, terms.deadline)) return end(model, task, 'timeout', null);
  const alive = task.progressed ? task.progressAt : task.createdAt;
  if (
    terms.childTimeout !== null &&
    status !== 'cancelling' &&
    isOver(model, alive, terms.childTimeout)
  ) {
    return end(model, task, 'timeout', null);
  }
  if (status === 'cancelling' || status === 'stalling') {
    if (!isOver(model, task.interruptedAt, task.grace)) return;
    return end(model, task, status === 'cancelling' ? 'interrupted' : 'stalled', null);
  }
  if (terms.stall === null || beat === null) return;
  const allowed = beat.tool === null ? terms.stall.idle : terms.stall.inTool;
  if (!isOver(model, task.progressAt, allowed)) return;
  Object.assign(task, {
    status: 'stalling',
    interruptedAt: model.now,
    grace: terms.stall.grace,
  });
}

/** A start that lies ahead was written before the clock was set back. */
function isOver({ now, watchedSince }: Model, start: number, length: number): boolean {
  const seenSince = start > now ? watchedSince : Math.max(start, watchedSince);
  return seenSince + length <= now;
}

function end(model: Model, task: Task, status: Status, summary: string | null): void {
  Object.assign(task, { status, summary });
  const siblings = model.tasks.filter(({ unitId }) => unitId === task.unitId);
  if (!siblings.some(isLive)) deliver(model, task.unitId);
}

function deliver(model: Model, unitId: string): void {
  const shown = model.tasks
    .filter((task) => task.unitId === unitId)
    .map(({ status, summary }) => ({ status, summary }));
  model.items.set(unitId, [...(model.items.get(unitId) ?? []), shown]);
}
