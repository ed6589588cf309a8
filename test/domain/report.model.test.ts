import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { Report } from '../../src/domain/report.ts';
import type { ReportOutcome } from '../../src/domain/report-outcome.ts';
import { itemId } from '../../src/domain/item-id.ts';
import { isTerminal } from '../../src/domain/session.ts';
import { isLive } from '../../src/domain/work.ts';
import {
  aModel,
  current,
  dispatch,
  isParked,
  mark,
  post,
  redeliver,
  say,
  type Model,
} from './ingest-model.ts';

/*
 * Whole histories of one child, made up at random: whatever its forwarder repeats, forgets or mixes
 * up, and whatever happens to the parent's inbox meanwhile. fast-check prints the seed, and the
 * shortest history that breaks a promise.
 */

const RUNS = process.env['LONG'] ? 20_000 : 1_000;
const TIMEOUT_MS = 300_000;

type Said = Pick<Report, 'status' | 'output' | 'responseId' | 'outcome'>;

type Step =
  | { do: 'post'; said: Said }
  /** The forwarder sends the report before the last `back` ones once more. */
  | { do: 'duplicate'; back: number }
  | { do: 'say'; text: string; responseId: string | null }
  | { do: 'mark'; as: 'cancelling' | 'cancelled' | 'unknown' }
  | { do: 'upstream'; is: Model['upstream'] }
  | { do: 'dispatch' | 'open' | 'close' | 'redeliver' };

const someId = fc.option(fc.constantFrom('r1', 'r2', 'r3'));
const someText = fc.constantFrom('one', 'two', 'three');

const someSaid: fc.Arbitrary<Said> = fc.record({
  status: fc.constantFrom('running', 'waiting', 'idle', 'idle', 'idle', 'failed'),
  output: fc.oneof(someText, fc.constantFrom(null, '', ' ')),
  responseId: someId,
  outcome: fc.option(fc.constantFrom('completed', 'failed', 'cancelled', 'interrupted'), {
    freq: 8,
  }),
});

const someUpstream: fc.Arbitrary<Model['upstream']> = fc.oneof(
  fc.constantFrom(null, { kind: 'none' as const }, { kind: 'unavailable' as const }),
  fc.record({
    kind: fc.constant('found' as const),
    messageId: fc.constantFrom('m1', 'm2'),
    text: someText,
  }),
);

const someStep: fc.Arbitrary<Step> = fc.oneof(
  { weight: 8, arbitrary: fc.record({ do: fc.constant('post' as const), said: someSaid }) },
  {
    weight: 3,
    arbitrary: fc.record({ do: fc.constant('duplicate' as const), back: fc.nat({ max: 4 }) }),
  },
  { weight: 3, arbitrary: fc.constant({ do: 'dispatch' as const }) },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('say' as const), text: someText, responseId: someId }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constant('mark' as const),
      as: fc.constantFrom('cancelling', 'cancelled', 'unknown'),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('upstream' as const), is: someUpstream }) },
  {
    weight: 3,
    arbitrary: fc.record({ do: fc.constantFrom('open', 'close', 'redeliver') }),
  },
);

interface Answered {
  said: Said;
  answer: ReportOutcome;
}

/** Takes the step; answers the report that was sent in it, if any, and what was said to it. */
function take(model: Model, taken: Step, sent: Said[]): Answered | null {
  switch (taken.do) {
    case 'post':
      sent.push(taken.said);
      return { said: taken.said, answer: post(model, taken.said) };
    case 'duplicate': {
      const again = sent.at(-1 - taken.back);
      return again ? { said: again, answer: post(model, again) } : null;
    }
    case 'say':
      say(model, taken.text, taken.responseId);
      return null;
    case 'mark':
      mark(model, taken.as);
      return null;
    case 'upstream':
      model.upstream = taken.is;
      return null;
    case 'dispatch':
      dispatch(model);
      return null;
    case 'open':
      model.inbox.open = true;
      redeliver(model);
      return null;
    case 'close':
      model.inbox.open = false;
      return null;
    case 'redeliver':
      redeliver(model);
      return null;
  }
}

function expectEachSourceOnce({ items }: Model): void {
  const sources = items.map(({ source }) => source);
  expect(sources).toEqual([...new Set(sources)]);
}

/** Revisions count from 1, each item follows the one before, and the entry knows the last. */
function expectWholeChains({ items, work }: Model): void {
  for (const { workId, revision, lastItemSeq } of work.values()) {
    const chain = items.filter((item) => item.workId === workId);
    expect(chain.map((item) => item.revision)).toEqual(chain.map((_, at) => at + 1));
    expect(chain.map((item) => item.followsSeq)).toEqual([
      ...(chain.length > 0 ? [null] : []),
      ...chain.slice(0, -1).map((item) => item.seq),
    ]);
    expect({ revision, lastItemSeq }).toEqual({
      revision: chain.length,
      lastItemSeq: chain.at(-1)?.seq ?? null,
    });
  }
}

/** What was answered as delivered lies in the inbox, as the forwarder sent it. */
function expectDelivered({ items, inbox }: Model, { said, answer }: Answered): void {
  if (answer.outcome !== 'delivered') return;
  expect(inbox.open).toBe(true);
  const item = items.find(({ seq }) => itemId(seq) === answer.itemId);
  expect(item?.workId).toBe(answer.workId);
  if (said.output?.trim()) expect(item?.output).toBe(said.output);
}

/** Nothing is called delivered while it only waits, and nothing waits that was not told so. */
function expectHonest(before: Model, after: Model, { said, answer }: Answered): void {
  if (!isTerminal(said.status)) return;
  const isKept = after.parked.some(isParked);
  if (isWaiting(answer)) expect(isKept).toBe(true);
  if (answer.outcome === 'already_delivered') {
    const work = after.work.get(answer.workId ?? '');
    expect(work && !isLive(work.status)).toBe(true);
    expect(after.parked.length).toBeLessThanOrEqual(before.parked.length);
  }
}

/** Sent once more, the report adds nothing; at most it finds that what was parked can go. */
function expectRepeatAddsNothing(model: Model, { said, answer }: Answered): void {
  if (!isTerminal(said.status)) return;
  const copy = structuredClone(model);
  const again = post(copy, said);
  if (isWaiting(answer) && isWaiting(again)) {
    const parked = copy.parked.map(({ id, turn, state }) => ({ id, turn, state }));
    expect(model.parked).toMatchObject(parked);
  } else {
    expect(again.outcome).toBe('already_delivered');
  }
  const settled = model.parked.length - copy.parked.length;
  const added = copy.items.length - model.items.length;
  expect(added).toBeLessThanOrEqual(isWaiting(answer) ? settled : 0);
}

function isWaiting({ outcome }: ReportOutcome): boolean {
  return outcome === 'not_confirmed' || outcome === 'parked';
}

/** Each terminal report was delivered, found to be a repeat, buried, or is parked. */
function expectNothingVanished({ parked, fates }: Model, terminal: number): void {
  const waiting = parked.filter(isParked).flatMap(({ of }) => of);
  const settled = [...fates.keys()];
  const forwarded = [...new Set([...waiting, ...settled])].filter((of) => of.startsWith('report'));
  expect(forwarded).toHaveLength(terminal);
}

describe('whatever a forwarder sends and whatever becomes of the inbox', () => {
  test(
    'each turn has one first item, nothing accepted is lost, and a repeat adds nothing',
    () => {
      fc.assert(
        fc.property(fc.array(someStep, { maxLength: 30 }), (steps) => {
          const model = aModel();
          const sent: Said[] = [];
          let terminal = 0;
          for (const taken of steps) {
            const before = structuredClone(model);
            const answered = take(model, taken, sent);
            expectEachSourceOnce(model);
            expectWholeChains(model);
            if (answered === null) continue;
            if (isTerminal(answered.said.status)) terminal += 1;
            expectDelivered(model, answered);
            expectHonest(before, model, answered);
            expectNothingVanished(model, terminal);
            expectRepeatAddsNothing(model, answered);
          }
        }),
        { numRuns: RUNS },
      );
    },
    TIMEOUT_MS,
  );

  test(
    'once the inbox is open and upstream answers, nothing stays parked',
    () => {
      fc.assert(
        fc.property(fc.array(someStep, { maxLength: 30 }), (steps) => {
          const model = aModel();
          const sent: Said[] = [];
          for (const taken of steps) take(model, taken, sent);
          model.inbox.open = true;
          model.upstream = { kind: 'none' };
          expect(redeliver(model)).toBe(true);
          expect(model.parked.filter(isParked)).toEqual([]);
        }),
        { numRuns: RUNS },
      );
    },
    TIMEOUT_MS,
  );
});

/** One run of the child: what begins it, and how its end is reported. */
interface Run {
  begins: 'dispatch' | 'running';
  announces: boolean;
  named: boolean;
  ends: 'text' | 'kept text' | 'late text' | 'failure';
  retries: number;
  /** The forwarder gives up at last, and reports a failure. */
  givesUp: boolean;
  before: Interlude[];
  after: Interlude[];
}

type Interlude = (typeof INTERLUDES)[number] | 'former repeated';

const INTERLUDES = ['open', 'close', 'upstream', 'no upstream', 'old id'] as const;
const someRun: fc.Arbitrary<Run> = fc.record({
  begins: fc.constantFrom('dispatch', 'running'),
  announces: fc.boolean(),
  named: fc.boolean(),
  ends: fc.constantFrom('text', 'kept text', 'late text', 'failure'),
  retries: fc.nat({ max: 2 }),
  givesUp: fc.boolean(),
  before: fc.array(fc.constantFrom(...INTERLUDES, 'former repeated'), { maxLength: 3 }),
  after: fc.array(fc.constantFrom(...INTERLUDES), { maxLength: 3 }),
});

interface Story {
  model: Model;
  /** Reports that were delivered under an id. */
  named: Partial<Report>[];
  /** The last report, if it was delivered, has no id and a text of its own. */
  former: Partial<Report> | null;
  /** The outputs that the parent must have read in the end. */
  owed: string[];
  /** Outputs of reports without ids that were repeated after the next dispatch. */
  perhapsTwice: string[];
}

function interrupt(story: Story, by: Interlude): void {
  const { model, named, former } = story;
  switch (by) {
    case 'open':
    case 'close':
      model.inbox.open = by === 'open';
      if (model.inbox.open) redeliver(model);
      return;
    case 'upstream':
    case 'no upstream':
      model.upstream = { kind: by === 'upstream' ? 'none' : 'unavailable' };
      return;
    case 'old id': {
      const old = named[model.made % Math.max(named.length, 1)];
      const mayBeNew = old?.output === null && model.upstream?.kind === 'unavailable';
      if (old && !mayBeNew) post(model, old);
      return;
    }
    case 'former repeated':
      // Parked, it would hold its place against a failure of the turn.
      if (former === null || current(model)?.status !== 'launching' || !model.inbox.open) return;
      post(model, former);
      story.perhapsTwice.push(former.output ?? '');
  }
}

function tell(story: Story, chapter: Run, at: number): void {
  const { model } = story;
  const responseId = chapter.named ? `r${at}` : null;
  const announced = chapter.announces ? responseId : null;
  const isDispatched = chapter.begins === 'dispatch' && dispatch(model);
  if (!isDispatched || chapter.announces) {
    post(model, { status: 'running', responseId: announced });
  }
  for (const by of chapter.before) interrupt(story, by);

  const output = `output ${at}`;
  const isFirst = isDispatched || (current(model) === null && model.parked.length === 0);
  if (chapter.ends === 'kept text') say(model, output, responseId);
  const report: Partial<Report> = {
    status: chapter.ends === 'failure' ? 'failed' : 'idle',
    output: chapter.ends === 'text' || chapter.ends === 'failure' ? output : null,
    responseId,
  };
  const { outcome } = post(model, report);
  if (chapter.ends === 'late text' && outcome === 'delivered') say(model, output, responseId);

  for (let retry = 0; retry < chapter.retries; retry += 1) post(model, report);
  if (chapter.givesUp && chapter.ends !== 'failure')
    post(model, { status: 'failed', output: 'hook status idle rejected' });
  for (const by of chapter.after) interrupt(story, by);

  story.former = null;
  if (chapter.ends === 'late text' && outcome !== 'delivered') return;
  // A failure after a completion is not owed.
  if (chapter.ends === 'failure' && !isFirst) return;
  story.owed.push(output);
  if (outcome !== 'delivered') return;
  if (chapter.named) story.named.push(report);
  story.former = report.output !== null && !chapter.named ? report : null;
}

describe('a forwarder that retries, repeats itself and gives up', () => {
  test(
    'brings each run of its child to the parent, once',
    () => {
      fc.assert(
        fc.property(fc.array(someRun, { maxLength: 8 }), (runs) => {
          const story: Story = {
            model: aModel(),
            named: [],
            former: null,
            owed: [],
            perhapsTwice: [],
          };
          for (const [at, chapter] of runs.entries()) tell(story, chapter, at);
          story.model.inbox.open = true;
          story.model.upstream = { kind: 'none' };
          redeliver(story.model);
          const read = story.model.items.map(({ output }) => output);
          for (const output of story.owed) {
            const times = read.filter((one) => one === output).length;
            expect(times).toBeGreaterThan(0);
            if (!story.perhapsTwice.includes(output)) expect(times).toBe(1);
          }
        }),
        { numRuns: RUNS },
      );
    },
    TIMEOUT_MS,
  );
});
