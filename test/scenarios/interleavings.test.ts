import * as fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { freshId, path } from '../support/delivery.ts';
import { startService, type TestService } from '../support/service.ts';
import { inboxOf, inShort, status } from '../support/steps.ts';

/*
 * Two parents with two children each, and whatever may happen to them in any order, beside a model
 * of what must become of it. One child of each parent names its turns by response_id, the other
 * does not. A failure prints the seed and the shortest history; SEED=… and RUNS=… repeat it.
 */

const database = useDatabase();
const RUNS = Number(process.env['RUNS'] ?? (process.env['LONG'] ? 500 : 25));
const SEED = Number(process.env['SEED'] ?? Date.now() % 2 ** 31);
const PARENTS = 2;
const CHILDREN = 4;

let service: TestService;
beforeAll(async () => {
  service = await startService(database);
});
afterAll(async () => await service.stop());

type Command =
  | { do: 'dispatch' | 'running' | 'describe' | 'delete child'; child: number }
  /** A new result, which arrives so many times at once. */
  | { do: 'report'; child: number; failed: boolean; times: number }
  /** What was reported last, once more. */
  | { do: 'again'; child: number }
  | { do: 'read'; parent: number; drain: boolean; max: number }
  | { do: 'ack' | 'open' | 'close' | 'delete parent'; parent: number }
  | { do: 'restart' };

const child = fc.nat(CHILDREN - 1);
const parent = fc.nat(PARENTS - 1);
const command: fc.Arbitrary<Command> = fc.oneof(
  { weight: 5, arbitrary: fc.record({ do: fc.constant('dispatch' as const), child }) },
  { weight: 5, arbitrary: fc.record({ do: fc.constant('running' as const), child }) },
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constant('report' as const),
      child,
      failed: fc.oneof({ weight: 3, arbitrary: fc.constant(false) }, fc.boolean()),
      times: fc.oneof({ weight: 4, arbitrary: fc.constant(1) }, fc.integer({ min: 2, max: 6 })),
    }),
  },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('again' as const), child }) },
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant('read' as const),
      parent,
      drain: fc.boolean(),
      max: fc.integer({ min: 1, max: 5 }),
    }),
  },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('ack' as const), parent }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('open' as const), parent }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('close' as const), parent }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('delete child' as const), child }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('delete parent' as const), parent }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('describe' as const), child }) },
  { weight: 1, arbitrary: fc.constant({ do: 'restart' as const }) },
);

// ---- the model

interface Result {
  failed: boolean;
  text: string;
  responseId: string | null;
}

interface Turn {
  state: 'launching' | 'running' | 'ended';
  last: Result | null;
  /** The last result of the turn before. */
  former: Result | null;
  /** What was delivered may have been a repeat of it. */
  provisional: boolean;
}

interface Child {
  id: string;
  isNamed: boolean;
  isThere: boolean;
  turn: Turn | null;
  ran: boolean;
  /** The number of the run, by which a named child names it. */
  run: number;
  parked: { result: Result; afterRunning: boolean }[];
  deliveredIds: Set<string>;
  sent: Result | null;
}

interface Parent {
  id: string;
  isThere: boolean;
  inbox: 'never' | 'open' | 'closed';
  /** What its inbox must hold, by child, each in its order. */
  items: Map<string, string[]>;
  leased: Set<string>;
  acked: Set<string>;
}

class Model {
  readonly parents: Parent[] = Array.from({ length: PARENTS }, () => ({
    id: freshId('parent'),
    ...newParent(),
  }));
  readonly children: Child[] = Array.from({ length: CHILDREN }, (_, n) => ({
    id: freshId('child'),
    isNamed: n % 2 === 0,
    sent: null,
    ...newChild(),
  }));
  private texts = 0;

  childAt(n: number): Child {
    return at(this.children, n);
  }

  parentAt(n: number): Parent {
    return at(this.parents, n);
  }

  parentOf(c: Child): Parent {
    return this.parentAt(Math.floor(this.children.indexOf(c) / (CHILDREN / PARENTS)));
  }

  childrenOf(p: Parent): Child[] {
    return this.children.filter((c) => this.parentOf(c) === p);
  }

  newResult(c: Child, failed: boolean): Result {
    this.texts += 1;
    return { failed, text: `result ${this.texts}`, responseId: c.isNamed ? `run ${c.run}` : null };
  }

  /** What becomes of a dispatch: its status. */
  dispatch(c: Child): number {
    const p = this.parentOf(c);
    if (!p.isThere || !c.isThere) return 404;
    if (c.turn !== null && c.turn.state !== 'ended') return 409;
    if (c.parked.length > 0 && p.inbox === 'closed') return 409;
    if (p.inbox === 'never') this.open(p);
    // What was parked may have been the first result, which made the entry.
    c.turn = { state: 'launching', last: null, former: c.turn?.last ?? null, provisional: false };
    c.ran = false;
    c.run += 1;
    return 201;
  }

  running(c: Child): void {
    if (!c.isThere) return;
    if (c.turn?.state === 'launching') c.turn.state = 'running';
    if (!c.ran && (c.turn === null || c.turn.state === 'ended' || c.parked.length > 0)) c.run += 1;
    c.ran = true;
  }

  report(c: Child, result: Result): 'delivered' | 'already_delivered' | 'parked' | 'parent_gone' {
    if (!c.isThere) return 'parent_gone';
    const p = this.parentOf(c);
    const waits = c.parked.at(-1);
    const { responseId } = result;
    const isOfDelivered =
      responseId !== null &&
      c.deliveredIds.has(responseId) &&
      waits?.result.responseId !== responseId;
    const isAnotherTry = waits !== undefined && !c.ran && !isOfDelivered;
    if (!isAnotherTry && !this.isNew(c, result, c.ran)) return 'already_delivered';
    if (isAnotherTry && c.turn?.state === 'ended' && same(c.turn.last, result)) {
      return 'already_delivered';
    }
    if (p.inbox === 'open') {
      this.deliver(c, result);
      c.ran = false;
      return 'delivered';
    }
    if (!isAnotherTry) c.parked.push({ result, afterRunning: c.ran });
    else if (waits.result.failed || !result.failed) waits.result = result;
    c.ran = false;
    return 'parked';
  }

  /** Whether the result says more than what was delivered of its turn. */
  isNew(c: Child, result: Result, ran: boolean): boolean {
    const { turn } = c;
    const isLast = turn?.state === 'ended' && turn.last?.responseId === result.responseId;
    if (result.responseId !== null && c.deliveredIds.has(result.responseId) && !isLast) {
      return false;
    }
    if (turn === null || turn.state !== 'ended') return true;
    if (turn.provisional) return !same(turn.last, result);
    if (!ran) return false;
    if (result.responseId !== null && !isLast) return true;
    return !same(turn.last, result) && !(result.failed && turn.last?.failed === false);
  }

  deliver(c: Child, result: Result): void {
    const p = this.parentOf(c);
    const turn = c.turn ?? { state: 'running', last: null, former: null, provisional: false };
    c.turn = turn;
    turn.provisional =
      turn.state === 'launching' && result.responseId === null && same(turn.former, result);
    turn.state = 'ended';
    turn.last = result;
    if (result.responseId !== null) c.deliveredIds.add(result.responseId);
    p.items.set(c.id, [...(p.items.get(c.id) ?? []), result.text]);
  }

  open(p: Parent): void {
    p.inbox = 'open';
    for (const c of this.childrenOf(p)) {
      for (const { result, afterRunning } of c.parked) {
        if (this.isNew(c, result, afterRunning)) this.deliver(c, result);
      }
      c.parked = [];
    }
  }

  deleteChild(c: Child): void {
    Object.assign(c, newChild(), { isThere: false });
  }

  deleteParent(p: Parent): void {
    for (const c of this.childrenOf(p)) this.deleteChild(c);
    Object.assign(p, newParent(), { isThere: false });
  }

  describe(c: Child): void {
    const p = this.parentOf(c);
    p.isThere = true;
    c.isThere = true;
  }
}

function newChild() {
  return {
    isThere: true,
    turn: null as Turn | null,
    ran: false,
    run: 0,
    parked: [] as Child['parked'],
    deliveredIds: new Set<string>(),
  };
}

function newParent() {
  return {
    isThere: true,
    inbox: 'never' as Parent['inbox'],
    items: new Map<string, string[]>(),
    leased: new Set<string>(),
    acked: new Set<string>(),
  };
}

function same(a: Result | null, b: Result): boolean {
  return a !== null && a.failed === b.failed && a.text === b.text;
}

function at<T>(list: readonly T[], n: number): T {
  const found = list[n];
  if (found === undefined) throw new Error(`there is no number ${n}`);
  return found;
}

// ---- the service beside it

async function perform(model: Model, step: Command): Promise<void> {
  if (step.do === 'restart') {
    await service.stop();
    service = await startService(database);
    return;
  }
  if ('parent' in step) return await performOnParent(model, step);
  const c = model.childAt(step.child);
  const p = model.parentOf(c);
  switch (step.do) {
    case 'dispatch': {
      const expected = model.dispatch(c);
      const body = { child_session_id: c.id };
      const answer = await service.request('POST', `${path(p.id)}/work`, body);
      expect(answer.status).toBe(expected);
      return;
    }
    case 'running': {
      model.running(c);
      const data = { status: 'running', ...(c.isNamed ? { response_id: `run ${c.run}` } : {}) };
      const answer = await status({ service, parent: p.id, child: c.id }, data);
      expect(inShort(answer)).toBe('204');
      return;
    }
    case 'describe': {
      model.describe(c);
      await describeBoth(p, c);
      return;
    }
    case 'delete child': {
      model.deleteChild(c);
      expect((await service.request('DELETE', path(c.id))).status).toBe(204);
      return;
    }
    case 'report':
    case 'again': {
      const result = step.do === 'report' ? model.newResult(c, step.failed) : c.sent;
      if (result === null) return;
      c.sent = result;
      await report(model, c, result, step.do === 'report' ? step.times : 1);
    }
  }
}

async function report(model: Model, c: Child, result: Result, times: number): Promise<void> {
  const { failed, text, responseId } = result;
  const data = {
    status: failed ? 'failed' : 'idle',
    output: text,
    ...(responseId === null ? {} : { response_id: responseId }),
  };
  const expected = Array.from({ length: times }, () => model.report(c, result)).toSorted();
  const to = { service, parent: model.parentOf(c).id, child: c.id };
  const answers = await Promise.all(Array.from({ length: times }, () => status(to, data)));
  const outcomes = answers.map(({ headers }) =>
    headers['delivery-outcome'] === 'not_confirmed' ? 'parked' : headers['delivery-outcome'],
  );
  expect(outcomes.map(String).toSorted()).toEqual(expected);
}

async function performOnParent(
  model: Model,
  step: Extract<Command, { parent: number }>,
): Promise<void> {
  const p = model.parentAt(step.parent);
  const inbox = `${path(p.id)}/inbox`;
  switch (step.do) {
    case 'open': {
      if (p.isThere) model.open(p);
      expect((await service.request('PUT', inbox)).status).toBe(p.isThere ? 200 : 404);
      return;
    }
    case 'close': {
      if (p.isThere) p.inbox = 'closed';
      expect((await service.request('DELETE', inbox)).status).toBe(p.isThere ? 204 : 404);
      return;
    }
    case 'delete parent': {
      model.deleteParent(p);
      expect((await service.request('DELETE', path(p.id))).status).toBe(204);
      return;
    }
    case 'ack': {
      const ids = [...p.leased];
      const answer = await service.request('POST', `${inbox}/ack`, { item_ids: ids });
      expect(answer.status).toBe(p.isThere ? 200 : 404);
      if (!p.isThere) return;
      expect(answer.body).toEqual({ acked: ids, already_acked: [], unknown: [] });
      for (const id of ids) p.acked.add(id);
      p.leased.clear();
      return;
    }
    case 'read': {
      const { drain, max } = step;
      if (p.isThere && p.inbox === 'never') model.open(p);
      const answer = await service.request('POST', `${inbox}/read`, { drain, max });
      expect(answer.status).toBe(p.isThere ? 200 : 404);
      if (!p.isThere) return;
      const there = [...p.items.values()].flat().length - p.acked.size - p.leased.size;
      const ids: string[] = answer.body.items.map((item: { id: string }) => item.id);
      expect(ids).toHaveLength(Math.min(there, max));
      expect(answer.body.remaining).toBe(there - ids.length);
      for (const id of ids) {
        expect(p.acked.has(id) || p.leased.has(id)).toBe(false);
        (drain ? p.acked : p.leased).add(id);
      }
    }
  }
}

async function describeBoth(p: Parent, c: Child): Promise<void> {
  await service.request('PUT', path(p.id), { title: 'parent' });
  const body = { parent_session_id: p.id, sub_agent_name: 'x' };
  expect((await service.request('PUT', path(c.id), body)).status).toBeLessThan(300);
}

/** Inboxes hold what the model says, once each, and the ledger says the same. */
async function compare(model: Model): Promise<void> {
  for (const p of model.parents) {
    const items = await inboxOf({ service, parent: p.id, child: '' });
    const byChild = new Map<string, string[]>();
    for (const item of items) {
      const of = String(item['conversation_id']);
      byChild.set(of, [...(byChild.get(of) ?? []), String(item['output'])]);
    }
    expect(byChild).toEqual(p.items);
  }
  const ids = model.children.map((c) => c.id);
  const parentIds = model.parents.map((p) => p.id);
  const disagreeing = await database.sql`
    select w.work_id, w.revision, count(i.seq)::int as items
    from work w left join items i on i.tenant_id = w.tenant_id and i.work_id = w.work_id
    where w.child_session_id = any(${ids})
    group by w.tenant_id, w.work_id, w.revision, w.last_item_seq
    having w.revision <> count(i.seq) or w.last_item_seq is distinct from max(i.seq)
      or count(i.seq) <> count(distinct i.revision)`;
  expect(disagreeing).toEqual([]);
  const besideOpen = await database.sql`
    select k.id from parked_reports k
    join sessions s on s.tenant_id = k.tenant_id and s.id = k.child_session_id
    join sessions p on p.tenant_id = s.tenant_id and p.id = s.parent_session_id
    where k.state = 'parked' and p.id = any(${parentIds})
      and p.inbox_opened_at is not null and p.inbox_closed_at is null`;
  expect(besideOpen).toEqual([]);
}

describe('whatever happens in whatever order', () => {
  test(`one item a turn, none lost, inbox and ledger agree (SEED=${SEED})`, async () => {
    const histories = fc.array(command, { minLength: 10, maxLength: 60 });
    const property = fc.asyncProperty(histories, async (history) => {
      const model = new Model();
      for (const c of model.children) await describeBoth(model.parentOf(c), c);
      for (const step of history) await perform(model, step);
      await compare(model);
      // And nothing is left behind: what waits comes when it can.
      for (const p of model.parents) {
        if (!p.isThere) continue;
        model.open(p);
        await service.request('PUT', `${path(p.id)}/inbox`);
      }
      await compare(model);
    });
    await fc.assert(property, { seed: SEED, numRuns: RUNS, endOnFailure: false });
  }, 600_000);
});
