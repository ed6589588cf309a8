import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createInboxRoom } from '../../src/operations/inbox-room.ts';

const inbox = { tenantId: 'default', sessionId: 'parent', moves: 0 };
const MAX = 100_000;

describe('an inbox is counted', () => {
  test('until it is known to have room', () => {
    const room = createInboxRoom(MAX);
    expect(room.known()).toEqual([]);
    room.counted(inbox, 10);
    expect(room.known()).toEqual([inbox]);
  });

  test.each([
    ['it is nearly full', MAX, MAX - 1_000],
    ['it is full', MAX, MAX],
    ['it may hold only a few', 1_000, 0],
  ])('each time where %s', (_, max, pending) => {
    const room = createInboxRoom(max);
    room.counted(inbox, pending);
    expect(room.known()).toEqual([]);
  });

  test('again when it was counted to be nearly full meanwhile', () => {
    const room = createInboxRoom(MAX);
    room.counted(inbox, 0);
    room.counted({ ...inbox, moves: 1 }, MAX - 1);
    expect(room.known()).toEqual([]);
  });

  test('again when few remain of the share that the count was good for', () => {
    const room = createInboxRoom(MAX);
    room.counted(inbox, 0);
    for (let n = 0; n < MAX / 16; n += 1) room.delivered(inbox);
    expect(room.known()).toEqual([]);
  });
});

test('sixteen replicas never overfill an inbox together, whatever they deliver and read, and whatever moves in', () => {
  const steps = fc.array(
    fc.record({
      replica: fc.nat(15),
      moves: fc.oneof({ weight: 5, arbitrary: fc.constant(0) }, fc.nat(20_000)),
      delivers: fc.nat(400),
      reads: fc.nat(200),
    }),
    { maxLength: 300 },
  );
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 20_000 }), steps, (max, history) => {
      const replicas = Array.from({ length: 16 }, () => createInboxRoom(max));
      let pending = 0;
      let moves = 0;
      for (const { replica, moves: moved, delivers, reads } of history) {
        pending = Math.max(0, pending - reads) + moved;
        if (moved > 0) moves += 1;
        const room = replicas[replica];
        for (let n = 0; n < delivers; n += 1) {
          if (room?.known()[0]?.moves !== moves) {
            room?.counted({ ...inbox, moves }, pending);
            if (pending >= max) break;
          }
          expect(pending).toBeLessThan(max);
          room?.delivered(inbox);
          pending += 1;
        }
      }
    }),
  );
});

test('no more inboxes are remembered than a statement can be asked with', () => {
  const room = createInboxRoom(MAX);
  for (let n = 0; n < 2_000; n += 1) room.counted({ ...inbox, sessionId: `s${n}` }, 0);
  expect(room.known()).toHaveLength(512);
  expect(room.known().at(-1)).toEqual({ ...inbox, sessionId: 's1999' });
});
