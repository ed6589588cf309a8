import { describe, expect, test } from 'vitest';
import { changesBetween, type SeenSession } from '../../src/domain/stream-changes.ts';

const seen = (change: Partial<SeenSession> = {}): SeenSession => ({
  status: 'idle',
  backgroundTaskCount: 0,
  blockedOn: null,
  errorCode: null,
  errorMessage: null,
  tipId: 'a',
  announcements: 0,
  told: null,
  wakePending: false,
  children: new Map(),
  ...change,
});
const told = { notice: 'one', pending: 1, itemId: 'item_1' };

describe('between two looks', () => {
  test('nothing has changed where nothing differs', () => {
    expect(changesBetween(seen(), seen())).toEqual({
      statusChanged: false,
      wake: null,
      createdChildren: [],
      updatedChildren: [],
    });
  });

  test.each([
    { status: 'running' },
    { backgroundTaskCount: 1 },
    { blockedOn: 'approval' },
    { errorCode: 'turn_error', errorMessage: 'broken' },
    { errorMessage: 'other' },
  ] satisfies Partial<SeenSession>[])('the status has changed by %j', (change) => {
    expect(changesBetween(seen(), seen(change)).statusChanged).toBe(true);
    expect(changesBetween(seen(change), seen()).statusChanged).toBe(true);
  });

  test('an announcement is told once, and of several the last', () => {
    const after = seen({ announcements: 3, told });
    expect(changesBetween(seen({ announcements: 1 }), after).wake).toBe(told);
    expect(changesBetween(after, seen({ announcements: 3, told })).wake).toBeNull();
  });

  test('the same notice told again is an announcement', () => {
    const [first, again] = [
      { announcements: 1, told },
      { announcements: 2, told },
    ].map(seen);
    expect(changesBetween(first ?? seen(), again ?? seen()).wake).toBe(told);
  });

  test('a session that goes on as another is told what that one was told, if it holds still', () => {
    const before = seen({ announcements: 1, told });
    const after = { tipId: 'b', announcements: 1, told };
    expect(changesBetween(before, seen({ ...after, wakePending: true })).wake).toBe(told);
    expect(changesBetween(before, seen({ ...after, announcements: 2 })).wake).toBeNull();
    expect(changesBetween(seen(), seen({ tipId: 'b' })).wake).toBeNull();
  });

  test('children come and change; those that are gone are not told of', () => {
    const before = seen({
      children: new Map([
        ['same', 'a'],
        ['other', 'a'],
        ['gone', 'a'],
      ]),
    });
    const after = seen({
      children: new Map([
        ['same', 'a'],
        ['other', 'b'],
        ['new', 'a'],
      ]),
    });
    expect(changesBetween(before, after)).toMatchObject({
      createdChildren: ['new'],
      updatedChildren: ['other'],
    });
  });
});
