import * as fc from 'fast-check';
import { describe, expect, it, test } from 'vitest';
import { isSessionId } from '../../src/domain/session-id.ts';
import {
  describeFromUpstream,
  describeSession,
  linkAfter,
  NOTHING_SAID,
  patchFromUpstream,
  type KnownSession,
  type Snapshot,
  type SnapshotDecision,
  type SnapshotPatch,
} from '../../src/domain/snapshot.ts';

const ID = 'conv_c';
const unrelated = { parentDescends: false, chainReturns: false, inboxOpen: false };

function session(overrides: Partial<KnownSession> = {}): KnownSession {
  return { ...NOTHING_SAID, described: true, deleted: false, ...overrides };
}

function decide(patch: SnapshotPatch, known: Partial<KnownSession> = {}, kin = unrelated) {
  return describeSession(ID, patch, session(known), kin);
}

function refusalOf(decision: SnapshotDecision) {
  if (decision.kind !== 'refuse') throw new Error(`not refused: ${decision.kind}`);
  return decision.refusal;
}

describe('what a client says of a session', () => {
  it('makes a stub known', () => {
    expect(decide({ title: 't' }, { described: false })).toEqual({
      kind: 'create',
      snapshot: { ...NOTHING_SAID, title: 't' },
      opensInbox: false,
    });
  });

  it('makes a stub known even if it says nothing', () => {
    expect(decide({}, { described: false }).kind).toBe('create');
  });

  it('keeps what it leaves out and clears what it says is null', () => {
    const known = { title: 'old', workspace: '/w', maxConcurrent: 3 };
    expect(decide({ title: 'new', workspace: null }, known)).toMatchObject({
      kind: 'update',
      snapshot: { title: 'new', workspace: null, maxConcurrent: 3 },
    });
  });

  it('begins anew after a deletion: nothing that it leaves out is kept', () => {
    const left = { deleted: true, described: false, continuedAs: 'conv_next' };
    expect(decide({ title: 'new' }, left)).toEqual({
      kind: 'recreate',
      snapshot: { ...NOTHING_SAID, title: 'new' },
      opensInbox: false,
    });
  });

  it('may give a session that begins anew another parent', () => {
    const left = { deleted: true, described: false };
    expect(decide({ parentSessionId: 'conv_q' }, left).kind).toBe('recreate');
  });

  test.each<[string, SnapshotPatch, Partial<KnownSession>]>([
    ['nothing', {}, { title: 't' }],
    ['the same', { title: 't' }, { title: 't' }],
    ['null where nothing is', { title: null, parentSessionId: null, channel: null }, {}],
    ['the same parent', { parentSessionId: 'conv_p' }, { parentSessionId: 'conv_p' }],
    ['the same channel', { channel: { kind: 'cli' } }, { channel: { kind: 'cli' } }],
    ['an empty name where there is none', { agentName: '', subAgentName: '' }, {}],
  ])('writes nothing when it says %s', (_, patch, known) => {
    expect(decide(patch, known)).toEqual({ kind: 'unchanged' });
  });

  test.each<[string, SnapshotPatch, Partial<KnownSession>]>([
    ['a channel of another kind', { channel: { kind: 'tui' } }, { channel: { kind: 'cli' } }],
    [
      'another member of a channel',
      { channel: { kind: 'cli', async_delivery: true } },
      { channel: { kind: 'cli' } },
    ],
    ['no channel any more', { channel: null }, { channel: { kind: 'cli' } }],
    ['a limit', { maxConcurrent: 1 }, {}],
    ['an empty title, which is a title', { title: '' }, {}],
  ])('writes when it says %s', (_, patch, known) => {
    expect(decide(patch, known).kind).toBe('update');
  });

  it('opens an inbox that is not open, and writes nothing if it is', () => {
    expect(decide({ opensInbox: true })).toMatchObject({ kind: 'update', opensInbox: true });
    const open = { ...unrelated, inboxOpen: true };
    expect(decide({ opensInbox: true }, {}, open)).toEqual({ kind: 'unchanged' });
  });
});

describe('a parent', () => {
  it('can be set later', () => {
    expect(decide({ parentSessionId: 'conv_p' })).toMatchObject({
      kind: 'update',
      snapshot: { parentSessionId: 'conv_p' },
    });
  });

  test.each([['conv_other'], [null], [ID]])('once set cannot become %s', (parentSessionId) => {
    const refusal = refusalOf(decide({ parentSessionId }, { parentSessionId: 'conv_p' }));
    expect(refusal).toMatchObject({ code: 'conflict', details: { reason: 'parent_mismatch' } });
  });

  it('may be the session itself, which is then top-level', () => {
    const kin = { ...unrelated, parentDescends: true };
    expect(decide({ parentSessionId: ID }, {}, kin).kind).toBe('update');
  });

  it('is refused if it descends from the session', () => {
    const kin = { ...unrelated, parentDescends: true };
    const refusal = refusalOf(decide({ parentSessionId: 'conv_p' }, {}, kin));
    expect(refusal).toMatchObject({ code: 'invalid_input' });
    expect(refusal.details.errors).toMatchObject([{ path: 'parent_session_id' }]);
  });
});

describe('a continuation', () => {
  it('can be set, changed and cleared', () => {
    expect(decide({ continuedAs: 'conv_d' }).kind).toBe('update');
    expect(decide({ continuedAs: 'conv_e' }, { continuedAs: 'conv_d' }).kind).toBe('update');
    expect(decide({ continuedAs: null }, { continuedAs: 'conv_d' }).kind).toBe('update');
  });

  test.each<[string, SnapshotPatch, boolean]>([
    ['the session itself', { continuedAs: ID }, false],
    ['a session that leads back to it', { continuedAs: 'conv_d' }, true],
  ])('is refused as %s', (_, patch, chainReturns) => {
    const refusal = refusalOf(decide(patch, {}, { ...unrelated, chainReturns }));
    expect(refusal).toMatchObject({ code: 'invalid_input' });
    expect(refusal.details.errors).toMatchObject([{ path: 'continued_as' }]);
  });

  it('is gone when a deleted session begins anew', () => {
    const left = session({ deleted: true, described: false, continuedAs: 'conv_d' });
    expect(linkAfter({}, left)).toBeNull();
    expect(linkAfter({ continuedAs: 'conv_e' }, left)).toBe('conv_e');
    expect(linkAfter({}, session({ continuedAs: 'conv_d' }))).toBe('conv_d');
  });
});

describe('what upstream says of a session', () => {
  const stub = session({ described: false });

  it('makes a stub known', () => {
    const patch = { parentSessionId: 'conv_p', agentName: 'coder' };
    expect(describeFromUpstream(ID, patch, stub, unrelated)).toMatchObject({
      kind: 'create',
      snapshot: patch,
    });
  });

  it('never overrules what was said here', () => {
    const known = session({ title: 'ours', parentSessionId: 'conv_p' });
    const patch = { title: 'theirs', parentSessionId: 'conv_q' };
    expect(describeFromUpstream(ID, patch, known, unrelated)).toEqual({ kind: 'unchanged' });
  });

  it('does not bring back what was deleted here', () => {
    const deleted = session({ deleted: true, described: false });
    expect(describeFromUpstream(ID, {}, deleted, unrelated)).toEqual({ kind: 'unchanged' });
  });

  it('loses a parent that would close a cycle, and keeps the rest', () => {
    const kin = { ...unrelated, parentDescends: true };
    const patch = { parentSessionId: 'conv_p', title: 't' };
    expect(describeFromUpstream(ID, patch, stub, kin)).toMatchObject({
      kind: 'create',
      snapshot: { parentSessionId: null, title: 't' },
    });
  });

  it('loses a parent where there is another one already', () => {
    const adopted = session({ described: false, parentSessionId: 'conv_q' });
    const patch = { parentSessionId: 'conv_p' };
    expect(describeFromUpstream(ID, patch, adopted, unrelated)).toMatchObject({
      kind: 'create',
      snapshot: { parentSessionId: 'conv_q' },
    });
  });
});

describe("upstream's snapshot", () => {
  it('is read by the names that the contract has', () => {
    const body = {
      id: ID,
      parent_session_id: 'conv_p',
      agent_id: 'a1',
      agent_name: 'coder',
      sub_agent_name: 'reviewer',
      title: 'tool:name',
      workspace: '/w',
      runner_id: 'r1',
      continued_as: 'conv_d',
      status: 'running',
    };
    expect(patchFromUpstream(body)).toEqual({
      parentSessionId: 'conv_p',
      agentId: 'a1',
      agentName: 'coder',
      subAgentName: 'reviewer',
      title: 'tool:name',
      workspace: '/w',
      runnerId: 'r1',
    });
  });

  test.each([[null], [7], [''], ['.'], ['..'], ['a\u0007b'], ['x'.repeat(256)], [{ id: 'p' }]])(
    'names no parent with %j',
    (parent) => {
      expect(patchFromUpstream({ parent_session_id: parent }).parentSessionId).toBeUndefined();
    },
  );

  it('says nothing with values of wrong types, and nothing that cannot be stored', () => {
    const patch = patchFromUpstream({ title: ['t'], agent_id: 5, agent_name: 'a\0b\ud800' });
    expect(patch.title).toBeUndefined();
    expect(patch.agentId).toBeUndefined();
    expect(patch.agentName).toBe('a\ufffdb\ufffd');
  });

  test.each([
    ['agent_id', 'agentId', 512],
    ['agent_name', 'agentName', 512],
    ['sub_agent_name', 'subAgentName', 512],
    ['runner_id', 'runnerId', 512],
    ['title', 'title', 4_096],
    ['workspace', 'workspace', 4_096],
  ] as const)(
    'says nothing with a %s that is too long, and never a part of it',
    (from, to, max) => {
      expect(patchFromUpstream({ [from]: '😀'.repeat(max) })[to]).toBe('😀'.repeat(max));
      expect(patchFromUpstream({ [from]: '😀'.repeat(max + 1) })[to]).toBeUndefined();
    },
  );

  it('never makes the reader throw', () => {
    fc.assert(
      fc.property(fc.dictionary(fc.string(), fc.anything()), (body) => {
        patchFromUpstream(body);
      }),
    );
  });
});

describe('a session id', () => {
  test.each([['conv_1'], ['a:b/c@d#e%f'], ['__proto__'], ['😀'.repeat(255)], [' '], ['...']])(
    'may be %s',
    (id) => expect(isSessionId(id)).toBe(true),
  );

  test.each([[''], ['.'], ['..'], ['a\0'], ['a\u0085'], ['\ud800'], ['😀'.repeat(256)]])(
    'may not be %j',
    (id) => expect(isSessionId(id)).toBe(false),
  );
});

const maybe = <T>(value: fc.Arbitrary<T>) => fc.option(value, { nil: undefined });

describe('whatever is said, one thing after the other', () => {
  const id = fc.constantFrom('conv_a', 'conv_b', ID);
  const patches: fc.Arbitrary<SnapshotPatch> = fc.record({
    parentSessionId: maybe(fc.option(id)),
    title: maybe(fc.option(fc.string())),
    agentName: maybe(fc.option(fc.string())),
    maxConcurrent: maybe(fc.option(fc.integer({ min: 1, max: 9 }))),
    channel: maybe(fc.option(fc.record({ kind: fc.constantFrom('cli', 'cron') }))),
    continuedAs: maybe(fc.option(id)),
    opensInbox: fc.boolean(),
  });
  const kinds = fc.record({
    parentDescends: fc.boolean(),
    chainReturns: fc.boolean(),
    inboxOpen: fc.boolean(),
  });

  it('the same word said twice changes nothing the second time', () => {
    fc.assert(
      fc.property(patches, kinds, (patch, kin) => {
        const first = describeSession(ID, patch, session({ described: false }), kin);
        if (first.kind === 'refuse' || first.kind === 'unchanged') return;
        const known = session(first.snapshot);
        const again = describeSession(ID, patch, known, { ...kin, inboxOpen: true });
        expect(again).toEqual({ kind: 'unchanged' });
      }),
    );
  });

  it('a parent never changes, and no session goes on as itself', () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(patches, kinds), { maxLength: 12 }), (steps) => {
        let known = session({ described: false });
        for (const [patch, kin] of steps) {
          const decision = describeSession(ID, patch, known, kin);
          if (decision.kind === 'refuse' || decision.kind === 'unchanged') continue;
          const next: Snapshot = decision.snapshot;
          if (known.parentSessionId !== null) {
            expect(next.parentSessionId).toBe(known.parentSessionId);
          }
          expect(next.continuedAs).not.toBe(ID);
          expect(linkAfter(patch, known)).toBe(next.continuedAs);
          known = session(next);
        }
      }),
    );
  });
});
