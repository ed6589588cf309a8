import { describe, expect, test } from 'vitest';
import {
  decideDispatch,
  type DispatchedChild,
  type DispatchingParent,
} from '../../src/domain/dispatch.ts';
import { ENDED_STATUSES, LIVE_STATUSES } from '../../src/domain/work.ts';

const PARENT: DispatchingParent = { id: 'p', deleted: false, closed: false, inboxEverOpened: true };

const CHILD: DispatchedChild = {
  id: 'c',
  described: true,
  deleted: false,
  parentTip: 'p',
  agentName: 'coder',
  subAgentName: null,
  work: null,
  hasParked: false,
};

const STUB: Partial<DispatchedChild> = { described: false, parentTip: null, agentName: null };

function decide({
  parent = {},
  child = {},
  agent = null,
  title = null,
  parentDescends = false,
}: {
  parent?: Partial<DispatchingParent>;
  child?: Partial<DispatchedChild>;
  agent?: string | null;
  title?: string | null;
  parentDescends?: boolean;
}) {
  const names = { agent, title };
  return decideDispatch(names, { ...PARENT, ...parent }, { ...CHILD, ...child }, parentDescends);
}

const live = { status: 'running' as const };

describe('a dispatch', () => {
  test('to an idle child of the parent begins a turn', () => {
    expect(decide({})).toEqual({
      kind: 'dispatch',
      agent: 'coder',
      title: '',
      adoption: null,
      opensInbox: false,
    });
  });

  test('opens an inbox that was never opened', () => {
    const decision = decide({ parent: { inboxEverOpened: false } });
    expect(decision).toMatchObject({ kind: 'dispatch', opensInbox: true });
  });

  test.each([
    { child: {}, names: {}, shown: ['coder', ''] },
    { child: { subAgentName: 'reviewer' }, names: {}, shown: ['reviewer', 'reviewer'] },
    { child: { agentName: null }, names: {}, shown: ['sub-agent', ''] },
    { child: {}, names: { agent: 'x' }, shown: ['x', ''] },
    { child: { subAgentName: 'reviewer' }, names: { agent: 'x' }, shown: ['x', 'reviewer'] },
    { child: {}, names: { title: 'fix' }, shown: ['coder', 'fix'] },
    { child: { subAgentName: 'reviewer' }, names: { title: '' }, shown: ['reviewer', ''] },
    { child: STUB, names: { agent: 'x', title: 'fix' }, shown: ['x', 'fix'] },
    { child: STUB, names: {}, shown: ['sub-agent', ''] },
  ])('named $names to $child is shown as $shown', ({ child, names, shown }) => {
    expect(decide({ child, ...names })).toMatchObject({ agent: shown[0], title: shown[1] });
  });

  test('describes a stub, by the names that it says', () => {
    expect(decide({ child: STUB, agent: 'x' })).toMatchObject({
      adoption: { parentSessionId: 'p', names: { agent: 'x', title: null } },
    });
  });

  test('gives a child without a parent this one, and leaves its names', () => {
    expect(decide({ child: { parentTip: null }, agent: 'x' })).toMatchObject({
      agent: 'x',
      adoption: { parentSessionId: 'p', names: null },
    });
  });

  test.each([...ENDED_STATUSES])('follows work that is %s', (status) => {
    expect(decide({ child: { work: { status } } }).kind).toBe('dispatch');
  });
});

describe('a parked result of the child', () => {
  test('makes it busy', () => {
    expect(decide({ child: { hasParked: true } })).toMatchObject({
      kind: 'refuse',
      refusal: { details: { reason: 'child_busy' } },
    });
  });

  test.each([
    { what: 'its parent has no inbox yet', parent: { inboxEverOpened: false }, child: {} },
    { what: 'it is a stub', parent: {}, child: STUB },
    { what: 'it has no parent', parent: {}, child: { parentTip: null } },
  ])('is delivered first if $what', ({ parent, child }) => {
    const decision = decide({ parent, child: { ...child, hasParked: true } });
    expect(decision.kind).toBe('deliver_parked_first');
  });
});

describe('a dispatch is refused', () => {
  test.each([
    { why: 'the parent is deleted', given: { parent: { deleted: true } }, code: 'not_found' },
    { why: 'the child is deleted', given: { child: { deleted: true } }, code: 'not_found' },
    { why: 'the parent descends', given: { parentDescends: true }, code: 'invalid_input' },
  ])('with $code if $why', ({ given, code }) => {
    expect(decide(given)).toMatchObject({ kind: 'refuse', refusal: { code } });
  });

  test.each([
    ...LIVE_STATUSES.map((status) => ({
      why: `the child's work is ${status}`,
      given: { child: { work: { status } } },
      reason: 'child_busy',
    })),
    {
      why: 'the child has another parent',
      given: { child: { parentTip: 'q' } },
      reason: 'parent_mismatch',
    },
    {
      why: 'the child is its own parent',
      given: { child: { parentTip: 'c' } },
      reason: 'parent_mismatch',
    },
    { why: 'the parent is closed', given: { parent: { closed: true } }, reason: 'session_closed' },
    {
      why: "another parent's child works",
      given: { child: { parentTip: 'q', work: live }, parent: { closed: true } },
      reason: 'parent_mismatch',
    },
  ])('with $reason if $why', ({ given, reason }) => {
    expect(decide(given)).toMatchObject({
      kind: 'refuse',
      refusal: { code: 'conflict', details: { reason } },
    });
  });
});
