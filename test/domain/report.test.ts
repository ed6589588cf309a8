import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { INTERRUPTED_OUTPUT } from '../../src/domain/item-text.ts';
import { isBlank } from '../../src/domain/text.ts';
import { decide } from '../../src/domain/decide.ts';
import { FAILED_WITHOUT_TEXT } from '../../src/domain/result-output.ts';
import type {
  DecideContext,
  Decision,
  Report,
  ReportState,
  UpstreamText,
} from '../../src/domain/report.ts';
import { outcomeOf } from '../../src/domain/report-outcome.ts';
import {
  aContext,
  anInbox,
  aParked,
  aReport,
  aSession,
  aState,
  aWork,
  deliveredWork,
  digest,
  NOW,
} from './situations.ts';

interface Situation {
  said?: Partial<Report>;
  state?: Partial<ReportState>;
  context?: Partial<DecideContext>;
}

function decideOn({ said, state, context }: Situation): Decision {
  return decide(aReport(said), aState(state), aContext(context));
}

function delivered(situation: Situation): Extract<Decision, { kind: 'deliver' }> {
  return ofKind('deliver', decideOn(situation));
}

function parked(situation: Situation): Extract<Decision, { kind: 'park' }> {
  return ofKind('park', decideOn(situation));
}

function ofKind<K extends Decision['kind']>(kind: K, decision: Decision) {
  expect(decision.kind).toBe(kind);
  return decision as Extract<Decision, { kind: K }>;
}

/** The status and output that the parent gets to read. */
function shown(situation: Situation): [status: string, output: string] {
  const { item } = delivered(situation);
  return [item?.status ?? 'no item', item?.output ?? ''];
}

/** What becomes of the report, and why. */
function fate(situation: Situation): string {
  const decision = decideOn(situation);
  return decision.kind === 'park' ? decision.park.reason : decision.kind;
}

const UNKNOWN = { session: aSession({ described: false, parentSessionId: null }), work: null };
const NO_PARENT = { parentSessionId: null };

describe('what becomes of a terminal report', () => {
  /*
   * By descending precedence: each situation has its own fault and, as far as they go together, all
   * those below it.
   */
  const faults: [what: string, situation: Situation, becomes: string][] = [
    [
      'names the work of another child',
      {
        said: { workId: 'work-9' },
        state: {
          named: aWork({ workId: 'work-9', childSessionId: 'other' }),
          session: aSession({ deleted: true }),
          inbox: null,
        },
      },
      'refuse_work_id',
    ],
    [
      'is of a deleted session',
      {
        state: {
          session: aSession({ deleted: true, described: false, ...NO_PARENT }),
          inbox: null,
        },
      },
      'parent_gone',
    ],
    [
      'is of a session that upstream does not know',
      { said: { upstreamSession: 'absent' }, state: { ...UNKNOWN, inbox: null } },
      'not_found',
    ],
    [
      'is of a session of which upstream cannot tell',
      { said: { upstreamSession: 'unavailable' }, state: { ...UNKNOWN, inbox: null } },
      'snapshot_unavailable',
    ],
    [
      'is of a session of which upstream can be asked',
      { state: { ...UNKNOWN, inbox: null }, context: { upstream: true } },
      'look_up_session',
    ],
    [
      'is of a session that was only named, without an upstream',
      { state: { ...UNKNOWN, inbox: null } },
      'unknown_session',
    ],
    [
      'is of a session of which not even the name was known',
      { state: { session: null, work: null, inbox: null } },
      'unknown_session',
    ],
    [
      'is of a session that is its own parent',
      { state: { session: aSession({ parentSessionId: 'child', subAgentName: 'x' }) } },
      'not_a_subagent',
    ],
    [
      'is of a session described without parent and sub_agent_name',
      { state: { session: aSession({ ...NO_PARENT, agentName: 'x' }), work: null, inbox: null } },
      'not_a_subagent',
    ],
    [
      'is of a sub-agent whose parent is not known',
      {
        state: { session: aSession({ ...NO_PARENT, subAgentName: 'x' }), work: null, inbox: null },
      },
      'missing_work_entry',
    ],
    [
      'is of a turn delivered before, its parent deleted',
      { state: { work: deliveredWork('one'), inbox: anInbox({ deleted: true, open: false }) } },
      'already_delivered',
    ],
    [
      'needs its text looked up first',
      { context: { upstream: true }, state: { inbox: anInbox({ open: false }) } },
      'look_up_text',
    ],
    [
      'is for a parent that was deleted',
      {
        said: { upstreamText: { kind: 'unavailable' } },
        state: { inbox: anInbox({ deleted: true, open: false, room: 0 }), parked: aParked() },
      },
      'parent_gone',
    ],
    [
      'is for a parent that was never heard of',
      {
        said: { upstreamText: { kind: 'unavailable' } },
        state: { inbox: null, parked: aParked() },
      },
      'missing_parent_inbox',
    ],
    [
      'is for an inbox that is not open',
      {
        said: { upstreamText: { kind: 'unavailable' } },
        state: { inbox: anInbox({ open: false, room: 0 }), parked: aParked() },
      },
      'missing_parent_inbox',
    ],
    [
      'is for an inbox that is full',
      {
        said: { upstreamText: { kind: 'unavailable' } },
        state: { inbox: anInbox({ room: 0 }), parked: aParked() },
      },
      'inbox_full',
    ],
    [
      'is for an inbox that is more than full',
      { state: { inbox: anInbox({ room: -3 }), parked: aParked() } },
      'inbox_full',
    ],
    [
      'has a text that could not be looked up',
      { said: { upstreamText: { kind: 'unavailable' } }, state: { parked: aParked() } },
      'output_unavailable',
    ],
    [
      'has one parked before it',
      { said: { output: 'two' }, state: { parked: aParked() } },
      'deliver_parked_first',
    ],
    [
      'has one parked before it that has just been tried',
      { said: { output: 'two', parkedStays: true }, state: { parked: aParked() } },
      'output_unavailable',
    ],
    ['has nothing against it', {}, 'deliver'],
    [
      'has only a dead letter before it',
      { state: { parked: aParked({ state: 'dead' }) } },
      'deliver',
    ],
    ['takes the last room', { state: { inbox: anInbox({ room: 1 }) } }, 'deliver'],
  ];

  test.each(faults)('that %s', (_what, situation, becomes) => {
    expect(fate(situation)).toBe(becomes);
  });

  test('a named child is one whatever its name is spelled like', () => {
    const state = { session: aSession({ parentSessionId: '__proto__' }), work: null };
    const said = { sessionId: 'constructor' };
    expect(delivered({ said, state }).item?.childSessionId).toBe('constructor');
  });

  test.each<[what: string, said: Partial<Report>, state: Partial<ReportState>]>([
    ['a work_id never heard of', { workId: 'nobody knows' }, {}],
    ['the current work_id', { workId: 'work-1' }, {}],
    ['a response_id never heard of', { responseId: 'r1' }, {}],
    [
      'an id of the current turn',
      { responseId: 'r1' },
      { response: { workId: 'work-1', delivered: false } },
    ],
  ])('it is of the current turn with %s', (_what, said, state) => {
    expect(delivered({ said, state }).work.workId).toBe('work-1');
  });
});

describe('a rebuilt entry', () => {
  test.each<[agentName: string | null, subAgentName: string | null, agent: string, title: string]>([
    ['coder', 'reviewer', 'reviewer', 'reviewer'],
    ['coder', null, 'coder', ''],
    [null, null, 'sub-agent', ''],
  ])('of agent %s, sub-agent %s is named %s and %s', (agentName, subAgentName, agent, title) => {
    const session = aSession({ agentName, subAgentName });
    const { work, item, session: change } = delivered({ state: { session, work: null } });
    expect(item).toMatchObject({ agent, title, recovered: true, workId: 'work-rebuilt' });
    expect(work).toMatchObject({ parentSessionId: 'parent', recovered: true, endedAt: NOW });
    expect(change?.currentWorkId).toBe('work-rebuilt');
  });

  test('is not made where there is one: the dispatched names are kept', () => {
    const session = aSession({ agentName: 'x', subAgentName: 'y', currentWorkId: 'work-1' });
    const { item } = delivered({ state: { session } });
    expect(item).toMatchObject({ agent: 'coder', title: 'tests', recovered: false });
  });

  test('goes into the inbox at the end of its parent’s chain', () => {
    const inbox = anInbox({ sessionId: 'continued' });
    expect(delivered({ state: { inbox, work: null } }).item?.sessionId).toBe('continued');
  });
});

describe('the status of what is delivered', () => {
  test.each<[said: Partial<Report>, work: 'running' | 'stalling' | 'cancelling', status: string]>([
    [{ status: 'idle' }, 'running', 'completed'],
    [{ status: 'failed' }, 'running', 'failed'],
    [{ status: 'idle', outcome: 'failed' }, 'running', 'failed'],
    [{ status: 'idle', outcome: 'cancelled' }, 'running', 'cancelled'],
    [{ status: 'idle', outcome: 'interrupted' }, 'running', 'interrupted'],
    [{ status: 'failed', outcome: 'completed' }, 'running', 'completed'],
    [{ status: 'idle' }, 'stalling', 'completed'],
    [{ status: 'failed' }, 'stalling', 'failed'],
    [{ status: 'idle' }, 'cancelling', 'cancelled'],
    [{ status: 'failed' }, 'cancelling', 'cancelled'],
    [{ status: 'idle', outcome: 'completed' }, 'cancelling', 'completed'],
    [{ status: 'failed', outcome: 'completed' }, 'cancelling', 'completed'],
    [{ status: 'idle', outcome: 'interrupted' }, 'cancelling', 'cancelled'],
  ])('of %j while the work is %s is %s', (said, work, status) => {
    const situation = {
      said: { ...said, output: 'one' },
      state: { work: aWork({ status: work }) },
    };
    expect(shown(situation)).toEqual([status, 'one']);
    expect(delivered(situation).work.status).toBe(status);
  });
});

describe('the output of a failure', () => {
  test.each<[what: string, output: string | null, shows: string]>([
    ['is its text', 'boom', 'boom'],
    ['is the default if absent', null, FAILED_WITHOUT_TEXT],
    ['is the default if empty', '', FAILED_WITHOUT_TEXT],
    ['is white space as it is', ' \n', ' \n'],
    ['may look like one of our lines', INTERRUPTED_OUTPUT, INTERRUPTED_OUTPUT],
  ])('%s', (_what, output, shows) => {
    expect(shown({ said: { status: 'failed', output } })).toEqual(['failed', shows]);
  });

  test('is never looked up, kept texts and upstream or not', () => {
    const situation = {
      said: { status: 'failed' as const },
      state: { text: { text: 'kept', responseId: null, fresh: true } },
      context: { upstream: true },
    };
    expect(shown(situation)).toEqual(['failed', FAILED_WITHOUT_TEXT]);
  });

  test('is nothing if it is cancelled without text', () => {
    const state = { work: aWork({ status: 'cancelling' }) };
    expect(shown({ said: { status: 'failed' }, state })).toEqual(['cancelled', '']);
  });
});

const kept = (text: string, responseId: string | null = null) => ({
  text: { text, responseId, fresh: true },
});
const found = (text: string, messageId: string | null = 'm1'): UpstreamText => ({
  kind: 'found',
  text,
  messageId,
});
const lookedUp = (upstreamText: UpstreamText, sessionSet = {}) => ({
  said: { upstreamText },
  state: { session: aSession({ currentWorkId: 'work-1', ...sessionSet }) },
  context: { upstream: true },
});

describe('the output of an idle', () => {
  test.each<[what: string, situation: Situation, output: string]>([
    ['its own text', { said: { output: 'own' } }, 'own'],
    ['its own text, kept ones or not', { said: { output: 'own' }, state: kept('kept') }, 'own'],
    [
      'its own text, upstream or not',
      { said: { output: 'own' }, context: { upstream: true } },
      'own',
    ],
    [
      'U+FEFF, which is no white space',
      { said: { output: '\ufeff' }, state: kept('kept') },
      '\ufeff',
    ],
    ['the kept text if it has none', { state: kept('kept') }, 'kept'],
    ['the kept text if it is empty', { said: { output: '' }, state: kept('kept') }, 'kept'],
    [
      'the kept text if it is blank, as Python has it',
      { said: { output: ' \u001f\u0085' }, state: kept('kept') },
      'kept',
    ],
    ['the kept text, whole', { state: kept(' kept\n\n') }, ' kept\n\n'],
    [
      'the kept text before upstream’s',
      { state: kept('kept'), context: { upstream: true } },
      'kept',
    ],
    [
      'the kept text of its own id',
      { said: { responseId: 'r1' }, state: kept('kept', 'r1') },
      'kept',
    ],
    ['the kept text without an id', { said: { responseId: 'r1' }, state: kept('kept') }, 'kept'],
    ['the kept text of some id if it has none', { state: kept('kept', 'r1') }, 'kept'],
    [
      'nothing of a text of another id',
      { said: { responseId: 'r1' }, state: kept('kept', 'r2') },
      '',
    ],
    ['nothing of a blank kept text', { state: kept(' ') }, ''],
    ['nothing where there is none', {}, ''],
    ['upstream’s text', lookedUp(found('said')), 'said'],
    [
      'upstream’s text after another message',
      lookedUp(found('said'), { upstreamMessageId: 'm0' }),
      'said',
    ],
    [
      'upstream’s text without an id',
      lookedUp(found('said', null), { upstreamMessageId: 'm1' }),
      'said',
    ],
    [
      'nothing of the message delivered before',
      lookedUp(found('said'), { upstreamMessageId: 'm1' }),
      '',
    ],
    ['nothing where upstream has none', lookedUp({ kind: 'none' }), ''],
  ])('is %s', (_what, situation, output) => {
    expect(shown(situation)).toEqual(['completed', output]);
  });

  test('is asked of upstream, for its turn', () => {
    const said = { responseId: 'r1' };
    expect(decideOn({ said, context: { upstream: true } })).toEqual({
      kind: 'look_up_text',
      responseId: 'r1',
    });
  });

  test('is asked of upstream where the kept text is of another id', () => {
    const said = { responseId: 'r1' };
    const situation = { said, state: kept('kept', 'r2'), context: { upstream: true } };
    expect(fate(situation)).toBe('look_up_text');
  });

  test('of upstream is remembered by its id, and that of a kept text forgets no id', () => {
    expect(delivered(lookedUp(found('said'))).session?.upstreamMessageId).toBe('m1');
    const session = aSession({ currentWorkId: 'work-1', upstreamMessageId: 'm1' });
    const change = delivered({ state: { session, ...kept('kept') } }).session;
    expect(change?.upstreamMessageId).toBe('m1');
  });

  test('that cannot be looked up is unavailable, not empty, and parked without a text', () => {
    const { park } = parked(lookedUp({ kind: 'unavailable' }));
    expect(park).toMatchObject({ reason: 'output_unavailable', output: null });
  });

  test('that cannot be looked up is never taken for one delivered without text', () => {
    const ran = aSession({ ranSinceResult: true });
    for (const work of [
      deliveredWork('', { awaitsText: true }),
      deliveredWork('', { provisional: true }),
    ]) {
      const said = { upstreamText: { kind: 'unavailable' as const } };
      const state = { work, session: ran };
      expect(fate({ said, state, context: { upstream: true } })).toBe('output_unavailable');
    }
  });

  test('of an earlier turn is nothing that was written since', () => {
    const named = deliveredWork('', { workId: 'work-0', awaitsText: true });
    const said = { workId: 'work-0' };
    const state = { named, ...kept('kept') };
    for (const upstream of [false, true]) {
      expect(fate({ said, state, context: { upstream } })).toBe('already_delivered');
    }
  });

  test('leaves kept text to no later turn, whether it used it or not', () => {
    expect(delivered({ state: kept('kept') }).usesText).toBe(true);
    expect(delivered({ said: { output: 'own' }, state: kept('kept') }).usesText).toBe(true);
    expect(delivered({ said: { status: 'failed' }, state: kept('kept') }).usesText).toBe(true);
    expect(delivered({}).usesText).toBe(false);
  });

  test('awaits text that comes late, unless it has some', () => {
    expect(delivered({}).work.awaitsText).toBe(true);
    expect(delivered({ said: { output: 'own' } }).work.awaitsText).toBe(false);
    expect(delivered({ said: { status: 'failed', output: ' ' } }).work.awaitsText).toBe(false);
    expect(delivered({ said: { outcome: 'cancelled' } }).work.awaitsText).toBe(false);
  });

  test('is its own wherever it has one, whatever else there is', () => {
    const upstream = fc.constantFrom<(UpstreamText | null)[]>(
      null,
      { kind: 'none' },
      { kind: 'unavailable' },
      found('said'),
    );
    const output = fc.string({ unit: 'binary', minLength: 1 }).filter((one) => !isBlank(one));
    fc.assert(
      fc.property(output, fc.string(), upstream, (own, text, upstreamText) => {
        const said = { output: own, upstreamText };
        const situation = { said, state: kept(text), context: { upstream: true } };
        expect(shown(situation)).toEqual(['completed', own]);
      }),
    );
  });
});

describe('what is delivered', () => {
  test('is an item of its turn, and the tombstone with it', () => {
    const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
    const { item, work, session } = delivered({
      said: { output: 'one', responseId: 'r1', traceparent },
      state: { work: aWork({ createdBy: 'ada' }) },
      context: { itemSeq: 7 },
    });
    expect(item).toMatchObject({
      sessionId: 'parent',
      seq: 7,
      source: 'work:work-1:1',
      type: 'sub_agent',
      workId: 'work-1',
      childSessionId: 'child',
      followsSeq: null,
      revision: 1,
      responseId: 'r1',
      createdBy: 'ada',
      traceparent,
      deliveredAt: NOW,
    });
    expect(work).toMatchObject({
      status: 'completed',
      endedAt: NOW,
      revision: 1,
      lastItemSeq: 7,
      resultDigest: digest('completed', 'one'),
      resultResponseId: 'r1',
      provisional: false,
    });
    expect(session).toMatchObject({ status: 'idle', ranSinceResult: false });
  });

  test('follows the former item as the next revision of the same work', () => {
    const session = aSession({ ranSinceResult: true });
    const work = deliveredWork('one', { revision: 2, lastItemSeq: 5 });
    const { item } = delivered({ said: { output: 'two' }, state: { work, session } });
    expect(item).toMatchObject({
      source: 'work:work-1:3',
      workId: 'work-1',
      followsSeq: 5,
      revision: 3,
    });
  });

  test('has the id that a running announced', () => {
    const session = aSession({ responseId: 'r1' });
    const response = { workId: 'work-1', delivered: false };
    expect(delivered({ state: { session, response } }).item?.responseId).toBe('r1');
  });

  test('has the id of its session, of whose turn nothing is known, unless it names another', () => {
    const session = aSession({ responseId: 'r1' });
    const named = aWork({ workId: 'work-0', status: 'unknown' });
    expect(delivered({ state: { session } }).item?.responseId).toBe('r1');
    const ofNamed = delivered({ said: { workId: 'work-0' }, state: { session, named } });
    expect(ofNamed.item).toMatchObject({ workId: 'work-0', responseId: null });
  });

  test('of an earlier turn leaves the current one and its text as they are', () => {
    const session = aSession({ currentWorkId: 'work-1', ranSinceResult: true, lastReport: 'x' });
    const named = aWork({ workId: 'work-0', status: 'unknown' });
    const text = { text: 'kept', responseId: null, fresh: true };
    const said = { workId: 'work-0', output: 'late' };
    const decision = delivered({ said, state: { session, named, text } });
    expect(decision.usesText).toBe(false);
    expect(decision.session).toMatchObject({ currentWorkId: 'work-1', ranSinceResult: true });
  });

  test('has no id of an earlier turn', () => {
    const session = aSession({ responseId: 'r0' });
    const response = { workId: 'work-0', delivered: false };
    const situation = { said: { workId: 'work-1' }, state: { session, response } };
    expect(delivered(situation).item?.responseId).toBeNull();
  });

  test('goes only into an open inbox with room, whatever is reported and known', () => {
    const inbox = fc.option(
      fc.record({
        deleted: fc.boolean(),
        open: fc.boolean(),
        room: fc.integer({ min: -1, max: 2 }),
      }),
    );
    const works = fc.constantFrom(
      null,
      aWork(),
      aWork({ status: 'unknown' }),
      deliveredWork('one'),
      deliveredWork('one', { provisional: true }),
    );
    const status = fc.constantFrom('idle' as const, 'failed' as const);
    const output = fc.constantFrom(null, 'one', 'two');
    fc.assert(
      fc.property(inbox, works, status, output, fc.boolean(), (set, work, said, text, ran) => {
        const state = {
          inbox: set && anInbox(set),
          work,
          session: aSession({ ranSinceResult: ran }),
        };
        const decision = decideOn({ said: { status: said, output: text }, state });
        if (decision.kind === 'deliver') {
          expect(set?.open && !set.deleted && set.room > 0).toBe(true);
        }
      }),
    );
  });

  test('is the same whenever the same is known, and nothing known is changed by deciding', () => {
    const situation = { said: { output: 'one' }, state: { parked: aParked({ state: 'dead' }) } };
    const state = aState(situation.state);
    const before = structuredClone(state);
    const once = decide(aReport(situation.said), state, aContext());
    expect(state).toEqual(before);
    expect(decide(aReport(situation.said), state, aContext())).toEqual(once);
  });
});

describe('a sign of life', () => {
  const launching = { work: aWork({ status: 'launching' }) };

  test.each(['running', 'waiting'] as const)('%s moves launching work to running', (status) => {
    const decision = ofKind('status', decideOn({ said: { status }, state: launching }));
    expect(decision.work).toMatchObject({ workId: 'work-1', status: 'running', endedAt: null });
  });

  test.each(['running', 'cancelling', 'stalling', 'completed', 'cancelled', 'unknown'] as const)(
    'leaves work alone that is %s',
    (status) => {
      const state = { work: aWork({ status }) };
      expect(ofKind('status', decideOn({ said: { status: 'running' }, state })).work).toBeNull();
    },
  );

  test('writes nothing where it changes nothing', () => {
    const said = { status: 'running' as const, responseId: 'r1', fingerprint: 'same' };
    const session = aSession({ responseId: 'r1', lastReport: 'same', ranSinceResult: true });
    const response = { workId: 'work-1', delivered: false };
    expect(decideOn({ said, state: { session, response } })).toEqual({
      kind: 'status',
      session: null,
      work: null,
      announces: null,
    });
  });

  test.each<[what: string, state: Partial<ReportState>]>([
    ['was only named', UNKNOWN],
    ['was never named', { session: null, work: null }],
    ['was deleted', { session: aSession({ deleted: true }) }],
  ])('stores nothing of a session that %s', (_what, state) => {
    const said = { status: 'running' as const, responseId: 'r1' };
    expect(decideOn({ said, state, context: { upstream: true } })).toEqual({
      kind: 'status',
      session: null,
      work: null,
      announces: null,
    });
  });

  test('announces an id never heard of as its turn’s', () => {
    const said = { status: 'running' as const, responseId: 'r1' };
    expect(ofKind('status', decideOn({ said })).announces).toBe('r1');
    const response = { workId: 'work-0', delivered: true };
    expect(ofKind('status', decideOn({ said, state: { response } })).announces).toBeNull();
    expect(ofKind('status', decideOn({ said, state: { work: null } })).announces).toBeNull();
  });

  test('marks that the child ran, if it does; waiting alone does not', () => {
    const work = deliveredWork('one');
    const after = (status: 'running' | 'waiting') =>
      ofKind('status', decideOn({ said: { status }, state: { work } })).session;
    expect(after('running')?.ranSinceResult).toBe(true);
    expect(after('waiting')?.ranSinceResult).toBe(false);
  });

  test('leaves the id of an earlier turn behind, and keeps that of its own', () => {
    const said = { status: 'running' as const };
    const session = aSession({ responseId: 'r0' });
    const after = (workId: string) =>
      ofKind(
        'status',
        decideOn({ said, state: { session, response: { workId, delivered: false } } }),
      ).session?.responseId;
    expect(after('work-0')).toBeNull();
    expect(after('work-1')).toBe('r0');
  });
});

describe('a report that cannot be confirmed', () => {
  const closed = { inbox: anInbox({ open: false }) };

  test('is stored, text and all', () => {
    const said = { output: 'one', responseId: 'r1', outcome: 'completed' as const };
    expect(parked({ said, state: closed }).park).toEqual({
      replaces: null,
      takesContent: true,
      state: 'parked',
      turn: 1,
      parentSessionId: 'parent',
      reason: 'missing_parent_inbox',
      status: 'idle',
      outcome: 'completed',
      output: 'one',
      responseId: 'r1',
      workId: 'work-1',
      afterRunning: false,
      tries: 1,
    });
  });

  test.each<[what: string, state: Partial<ReportState>]>([
    ['the inbox is closed', closed],
    ['the session is not known', UNKNOWN],
    [
      'the parent is not known',
      { session: aSession({ parentSessionId: null, subAgentName: 'x' }), work: null },
    ],
  ])('is stored with the text kept for it, which no other gets, where %s', (_what, set) => {
    const state = { ...set, text: { text: 'kept', responseId: null, fresh: true } };
    const { park, usesText } = parked({ state });
    expect(park.output).toBe('kept');
    expect(usesText).toBe(true);
  });

  test('has its text looked up when it arrives', () => {
    const said = { upstreamText: { kind: 'found' as const, messageId: 'm1', text: 'said' } };
    const context = { upstream: true };
    expect(parked({ said, state: closed, context }).park.output).toBe('said');
  });

  test.each<[what: string, tries: number, parentParked: boolean, answer: string, seconds: number]>([
    ['at its first try', 0, false, 'not_confirmed', 1],
    ['at its 11th try', 10, false, 'not_confirmed', 300],
    ['at its 12th try', 11, false, 'parked', 300],
    ['from then on', 40, false, 'parked', 300],
    ['at once where another for its parent has got that far', 0, true, 'parked', 1],
  ])('is answered, %s', (_what, tries, parentParked, answer, seconds) => {
    const former = tries === 0 ? null : aParked({ tries });
    const decision = parked({ state: { ...closed, parked: former, parentParked } });
    expect(decision.answer).toBe(answer);
    expect(outcomeOf(decision)).toEqual({
      outcome: answer,
      workId: 'work-1',
      itemId: null,
      reason: 'missing_parent_inbox',
      retryAfterSeconds: seconds,
    });
  });

  test('counts the tries of its child, also those of another turn', () => {
    const state = { ...closed, parked: aParked({ tries: 11, workId: 'work-0' }) };
    const decision = parked({ state });
    expect(decision.park).toMatchObject({ replaces: null, turn: 2, tries: 12 });
    expect(decision.answer).toBe('parked');
  });

  test('is not found, at its 12th try as well, of a session that upstream does not know', () => {
    const said = { upstreamSession: 'absent' as const };
    for (const former of [null, aParked({ workId: null, tries: 20 })]) {
      expect(parked({ said, state: { ...UNKNOWN, parked: former } }).answer).toBe('not_found');
    }
  });

  test.each<[what: string, said: Partial<Report>, former: Parameters<typeof aParked>[0]]>([
    ['it is the same once more', { output: 'one' }, {}],
    ['it has other text', { output: 'two' }, {}],
    ['it is a completion after a failure', { output: 'two' }, { status: 'failed' }],
    ['it is a completion without text after a failure', {}, { status: 'failed' }],
    ['it is a failure after a failure', { status: 'failed', output: 'two' }, { status: 'failed' }],
    ['its id is known only now', { output: 'two', responseId: 'r1' }, {}],
    ['its id is another', { output: 'two', responseId: 'r2' }, { responseId: 'r1' }],
  ])('takes the place of the parked one of its turn where %s', (_what, said, former) => {
    const { park } = parked({ said, state: { ...closed, parked: aParked(former) } });
    expect(park).toMatchObject({ takesContent: true, turn: 1, tries: 2 });
    expect(park.replaces?.id).toBe('parked-1');
  });

  test.each<[what: string, said: Partial<Report>, former?: Parameters<typeof aParked>[0]]>([
    ['a failure', { status: 'failed', output: 'hook status idle rejected' }],
    ['an idle that says it failed', { outcome: 'failed', output: 'two' }],
    ['a try for which no text is found', {}],
    ['a failure without text after one', { status: 'failed' }, { status: 'failed' }],
  ])('only counts as a try of what is parked where it is %s', (_what, said, former = {}) => {
    const { park } = parked({ said, state: { ...closed, parked: aParked(former) } });
    expect(park).toMatchObject({ takesContent: false, turn: 1, tries: 2 });
    expect(park.replaces?.id).toBe('parked-1');
  });

  test('lies beside the parked one where the child ran in between, whatever its id', () => {
    for (const responseId of ['r1', 'r2', null]) {
      const former = aParked({ responseId: 'r1' });
      const session = aSession({ ranSinceResult: true });
      const { park } = parked({
        said: { responseId },
        state: { ...closed, parked: former, session },
      });
      expect(park).toMatchObject({ replaces: null, takesContent: true, turn: 2 });
      expect(park.afterRunning).toBe(true);
    }
  });

  test('settles the session as if it were delivered, but for being locked at the next try', () => {
    const session = aSession({ ranSinceResult: true, lastReport: 'x', backgroundTaskCount: 2 });
    expect(parked({ state: { ...closed, session } }).session).toMatchObject({
      status: 'idle',
      ranSinceResult: false,
      lastReport: null,
      backgroundTaskCount: 2,
    });
    for (const unknown of [UNKNOWN, { session: null, work: null }]) {
      const decision = parked({ state: unknown });
      expect(decision.session).toBeNull();
      expect(decision.park.afterRunning).toBe(false);
    }
  });

  test('of an earlier turn leaves it open that the child has run in this one', () => {
    const named = aWork({ workId: 'work-0', status: 'unknown' });
    const session = aSession({ ranSinceResult: true, lastReport: 'x' });
    const decision = parked({ said: { workId: 'work-0' }, state: { ...closed, named, session } });
    expect(decision.park).toMatchObject({ workId: 'work-0', afterRunning: false });
    expect(decision.session?.ranSinceResult).toBe(true);
  });
});

const origin = (set = {}) => ({
  kind: 'parked' as const,
  id: 'parked-1',
  afterRunning: false,
  tries: 1,
  ...set,
});

describe('a parked report that the service delivers', () => {
  test.each<[what: string, former: ReportState['parked']]>([
    ['is gone', null],
    ['is dead by now', aParked({ state: 'dead' })],
    ['has been tried since', aParked({ tries: 2 })],
  ])('is left to others where it %s', (_what, former) => {
    const decision = decideOn({ said: { origin: origin() }, state: { parked: former } });
    expect(decision.kind).toBe('settled_elsewhere');
  });

  test('is delivered without showing anything of the session as it is now', () => {
    const session = aSession({ ranSinceResult: true, lastReport: 'x', currentWorkId: 'work-1' });
    const said = { output: 'one', origin: origin() };
    const decision = delivered({ said, state: { session, parked: aParked() } });
    const { upstreamMessageId, lastReport, status } = session;
    expect(decision.session).toMatchObject({ upstreamMessageId, lastReport, status });
  });

  test('that has to stay is no further try', () => {
    const state = { parked: aParked({ tries: 5 }), inbox: anInbox({ open: false }) };
    const { park } = parked({ said: { origin: origin({ tries: 5 }) }, state });
    expect(park).toMatchObject({ tries: 5, turn: 1 });
    expect(park.replaces?.id).toBe('parked-1');
  });

  test.each([true, false])('follows a delivered one if the child ran before it: %s', (ran) => {
    const said = { output: 'two', workId: 'work-1', origin: origin({ afterRunning: ran }) };
    const state = { work: deliveredWork('one'), parked: aParked() };
    expect(fate({ said, state })).toBe(ran ? 'deliver' : 'already_delivered');
  });

  test('does not take a text written after the child went on', () => {
    const said = { origin: origin() };
    const text = { text: 'kept', responseId: null, fresh: true };
    const after = (ranSinceResult: boolean) => {
      const session = aSession({ ranSinceResult });
      const { item, usesText } = delivered({ said, state: { session, text, parked: aParked() } });
      return [item?.output, usesText];
    };
    expect(after(false)).toEqual(['kept', true]);
    expect(after(true)).toEqual(['', false]);
  });

  test('becomes a dead letter where its session or parent was deleted', () => {
    const said = { output: 'one', origin: origin() };
    const sessionGone = { session: aSession({ deleted: true, described: false }), work: null };
    for (const gone of [sessionGone, { inbox: anInbox({ deleted: true }) }]) {
      const decision = decideOn({ said, state: { ...gone, parked: aParked() } });
      const { park } = ofKind('parent_gone', decision);
      expect(park).toMatchObject({ state: 'dead', reason: 'parent_gone', output: 'one', tries: 1 });
      expect(park.replaces?.id).toBe('parked-1');
    }
  });
});

describe('a report without a parent to go to', () => {
  test('of a deleted session is a dead letter, and nothing of the session is written', () => {
    const session = aSession({ deleted: true });
    const decision = ofKind(
      'parent_gone',
      decideOn({ said: { output: 'one' }, state: { session, work: null } }),
    );
    expect(decision.park).toMatchObject({ state: 'dead', output: 'one', tries: 1 });
    expect(decision.session).toBeNull();
    expect(outcomeOf(decision)).toMatchObject({ outcome: 'parent_gone', reason: null });
  });

  test('is one dead letter, however often it comes', () => {
    const state = { inbox: anInbox({ deleted: true }), parked: aParked({ state: 'dead' }) };
    const decision = ofKind('parent_gone', decideOn({ said: { output: 'two' }, state }));
    expect(decision.park).toMatchObject({ turn: 1, takesContent: true });
    expect(decision.park.replaces?.id).toBe('parked-1');
  });

  test('of a top-level session shows its status and nothing else', () => {
    const session = aSession({ parentSessionId: null });
    const decision = ofKind(
      'not_a_subagent',
      decideOn({
        said: { status: 'failed', output: 'boom' },
        state: { session, work: null, inbox: null },
      }),
    );
    expect(decision.session).toMatchObject({ status: 'failed', errorMessage: 'boom' });
  });
});

describe('the session after its terminal report', () => {
  const gaveUp = { status: 'failed' as const, output: 'hook status idle rejected' };
  const idle = aSession({ status: 'idle', backgroundTaskCount: 2, lastReport: 'former' });

  test.each<[what: string, state: Partial<ReportState>]>([
    ['delivered', { work: deliveredWork('one') }],
    ['parked', { parked: aParked(), inbox: anInbox({ open: false }) }],
  ])('shows no failure that follows its completion, %s', (_what, state) => {
    const decision = decideOn({ said: gaveUp, state: { ...state, session: idle } });
    expect('session' in decision && decision.session).toMatchObject({
      status: 'idle',
      errorMessage: null,
      backgroundTaskCount: 0,
    });
  });

  test.each<[what: string, state: Partial<ReportState>]>([
    [
      'the child ran in between',
      { work: deliveredWork('one'), session: aSession({ ranSinceResult: true }) },
    ],
    ['nothing was delivered yet', { work: aWork() }],
    ['what was delivered is a failure', { work: deliveredWork('x', { status: 'failed' }) }],
    ['what is parked is a failure', { parked: aParked({ status: 'failed' }), inbox: null }],
  ])('shows a failure where %s', (_what, state) => {
    const decision = decideOn({ said: gaveUp, state });
    expect('session' in decision && decision.session).toMatchObject({
      status: 'failed',
      errorCode: 'turn_error',
      errorMessage: gaveUp.output,
    });
  });

  test('shows nothing of the end of an earlier turn', () => {
    const session = aSession({ status: 'running', responseId: 'r1' });
    const named = deliveredWork('one', { workId: 'work-0' });
    const said = { ...gaveUp, workId: 'work-0', fingerprint: 'late' };
    const decision = ofKind('already_delivered', decideOn({ said, state: { session, named } }));
    expect(decision.session).toMatchObject({
      status: 'running',
      responseId: 'r1',
      errorMessage: null,
      lastReport: 'late',
    });
  });

  test('is written once for a report that comes again and again', () => {
    const said = { output: 'one', fingerprint: 'same' };
    const session = aSession({ status: 'idle', lastReport: 'same', currentWorkId: 'work-1' });
    const state = { work: deliveredWork('one'), session };
    const decision = ofKind('already_delivered', decideOn({ said, state }));
    expect(decision).toMatchObject({ session: null, late: null });
    expect(outcomeOf(decision)).toEqual({
      outcome: 'already_delivered',
      workId: 'work-1',
      itemId: 'item_00000000000001',
      reason: null,
      retryAfterSeconds: null,
    });
  });
});

const interrupt = (set: Partial<Report> = {}): Partial<Report> => ({
  workId: 'work-1',
  origin: { kind: 'interrupt', by: 'interrupted', graceMs: 10_000 },
  ...set,
});

describe('an interrupt', () => {
  test.each(['launching', 'running', 'stalling'] as const)(
    'asks work that is %s to stop',
    (was) => {
      const state = { work: aWork({ status: was }), inbox: anInbox({ open: false }) };
      const decision = ofKind('interrupt', decideOn({ said: interrupt(), state }));
      expect(decision.work).toMatchObject({
        workId: 'work-1',
        status: 'cancelling',
        endedAt: null,
        interrupt: { reason: 'interrupted', at: NOW, graceMs: 10_000 },
      });
      expect(decision.session).toBeNull();
    },
  );

  test('makes the entry that is missing', () => {
    const session = aSession({ subAgentName: 'reviewer' });
    const said = interrupt({ workId: null });
    const decision = ofKind('interrupt', decideOn({ said, state: { session, work: null } }));
    expect(decision.work).toMatchObject({ agent: 'reviewer', recovered: true, revision: 0 });
    expect(decision.session?.currentWorkId).toBe(decision.work.workId);
  });

  test.each<[what: string, state: Partial<ReportState>, becomes: string]>([
    ['a session that is not known', UNKNOWN, 'not_known'],
    ['a session never named', { session: null, work: null }, 'not_known'],
    ['a deleted session', { session: aSession({ deleted: true }) }, 'not_known'],
    ['work that is another by now', { work: aWork({ workId: 'work-2' }) }, 'settled_elsewhere'],
    ['a turn that was delivered', { work: deliveredWork('one') }, 'already_delivered'],
    ['a turn that was stopped', { work: aWork({ status: 'cancelled' }) }, 'already_delivered'],
    ['a turn that is to stop already', { work: aWork({ status: 'cancelling' }) }, 'status'],
  ])('changes nothing of %s', (_what, state, becomes) => {
    const decision = decideOn({ said: interrupt(), state });
    expect(decision.kind).toBe(becomes);
    if (decision.kind === 'status') expect(decision.work).toBeNull();
  });

  test.each([
    ['a top-level session', aSession({ parentSessionId: null })],
    ['its own parent', aSession({ parentSessionId: 'child' })],
    ['a sub-agent of no known parent', aSession({ parentSessionId: null, subAgentName: 'x' })],
  ])('concerns no turn of %s', (_what, session) => {
    const decision = decideOn({
      said: interrupt({ workId: null }),
      state: { session, work: null },
    });
    expect(decision.kind).toBe('not_a_subagent');
  });
});
