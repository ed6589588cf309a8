import { setMaxListeners } from 'node:events';
import { describe, expect, test } from 'vitest';
import { createInboxWaiters } from '../../src/operations/inbox-waiters.ts';

const stays = new AbortController().signal;
setMaxListeners(0, stays);
const HOUR_MS = 3_600_000;

/** Whether the promise has settled once everything that was due has happened. */
async function isSettled(promise: Promise<unknown>): Promise<boolean> {
  const pending = Symbol('pending');
  const turn = new Promise((resolve) => setImmediate(resolve, pending));
  return (await Promise.race([promise, turn])) !== pending;
}

describe('a waiting reader', () => {
  test('is woken for its inbox, and for no other', async () => {
    const waiters = createInboxWaiters();
    const waiter = waiters.register('t', 's');
    const wait = waiter.wait(HOUR_MS, stays);
    waiters.wake('t', 'other');
    waiters.wake('other', 's');
    expect(await isSettled(wait)).toBe(false);
    waiters.wake('t', 's');
    expect(await wait).toBe('woken');
    waiter.close();
  });

  test('does not miss what came between its look and its wait, and waits again after that', async () => {
    const waiters = createInboxWaiters();
    const waiter = waiters.register('t', 's');
    waiters.wake('t', 's');
    waiters.wake('t', 's');
    expect(await waiter.wait(HOUR_MS, stays)).toBe('woken');
    expect(await waiter.wait(1, stays)).toBe('time_up');
    waiter.close();
  });

  test('that leaves, or has left, waits no longer', async () => {
    const waiters = createInboxWaiters();
    const leaving = new AbortController();
    const waiter = waiters.register('t', 's');
    const wait = waiter.wait(HOUR_MS, leaving.signal);
    leaving.abort();
    expect(await wait).toBe('left');
    expect(await waiter.wait(HOUR_MS, leaving.signal)).toBe('left');
    waiter.close();
  });

  test('is released with all others, and those that come later too', async () => {
    const waiters = createInboxWaiters();
    const before = waiters.register('t', 's');
    const wait = before.wait(HOUR_MS, stays);
    waiters.release();
    expect(await wait).toBe('released');
    waiters.wake('t', 's');
    expect(await before.wait(HOUR_MS, stays)).toBe('released');
    const after = waiters.register('t', 's');
    expect(await after.wait(HOUR_MS, stays)).toBe('released');
    before.close();
    after.close();
  });
});

describe('the register', () => {
  test('knows who waits for what', () => {
    const waiters = createInboxWaiters();
    const readers = [
      waiters.register('t', 'a'),
      waiters.register('t', 'a'),
      waiters.register('t', '__proto__'),
    ];
    expect(waiters.count()).toBe(3);
    expect(waiters.waitedFor()).toEqual([
      { tenantId: 't', sessionId: 'a' },
      { tenantId: 't', sessionId: '__proto__' },
    ]);
    for (const reader of [...readers, ...readers]) reader.close();
    expect(waiters.count()).toBe(0);
    expect(waiters.waitedFor()).toEqual([]);
  });

  test('lets a hundred look at once, and the next as soon as one is done or has left', async () => {
    const waiters = createInboxWaiters();
    const leaving = new AbortController();
    const readers = Array.from({ length: 103 }, () => waiters.register('t', 's'));
    const waits = readers.map((reader, n) =>
      reader.wait(HOUR_MS, n === 101 ? leaving.signal : stays),
    );
    waiters.wake('t', 's');
    expect(await Promise.all(waits.slice(0, 100))).toEqual(Array(100).fill('woken'));
    const [next = Promise.reject(new Error()), leaver, last = Promise.reject(new Error())] =
      waits.slice(100);
    expect(await isSettled(next)).toBe(false);
    leaving.abort();
    expect(await leaver).toBe('left');

    readers[0]?.close();
    expect(await next).toBe('woken');
    expect(await isSettled(last)).toBe(false);
    const again = readers[1]?.wait(1, stays);
    expect(await last).toBe('woken');
    expect(await isSettled(Promise.resolve(again))).toBe(false);
    for (const reader of readers.slice(2)) reader.close();
    expect(await again).toBe('time_up');
  });
});
