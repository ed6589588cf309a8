import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createInboxRoom } from '../../src/operations/inbox-room.ts';

const inbox = { tenantId: 'default', sessionId: 'parent' };
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

  test('again when few remain of the share that the count was good for', () => {
    const room = createInboxRoom(MAX);
    room.counted(inbox, 0);
    for (let n = 0; n < MAX / 16; n += 1) room.delivered(inbox);
    expect(room.known()).toEqual([]);
  });
});

test('sixteen replicas never overfill an inbox together, whatever they deliver and read', () => {
  const steps = fc.array(
    fc.record({ replica: fc.nat(15), delivers: fc.nat(400), reads: fc.nat(200) }),
    { maxLength: 300 },
  );
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 20_000 }), steps, (max, history) => {
      const replicas = Array.from({ length: 16 }, () => createInboxRoom(max));
      let pending = 0;
      for (const { replica, delivers, reads } of history) {
        pending = Math.max(0, pending - reads);
        const room = replicas[replica];
        for (let n = 0; n < delivers; n += 1) {
          if (room?.known().length === 0) {
            room.counted(inbox, pending);
            if (pending >= max) break;
          }
          room?.delivered(inbox);
          pending += 1;
        }
        expect(pending).toBeLessThanOrEqual(max);
      }
    }),
  );
});

test('no more inboxes are remembered than a statement can be asked with', () => {
  const room = createInboxRoom(MAX);
  for (let n = 0; n < 2_000; n += 1) room.counted({ tenantId: 'default', sessionId: `s${n}` }, 0);
  expect(room.known()).toHaveLength(512);
  expect(room.known().at(-1)).toEqual({ tenantId: 'default', sessionId: 's1999' });
});
