import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  deliveryMode,
  isLocalChannel,
  notifyUnsupported,
  type DeclaredChannel,
  type GateRequest,
} from '../../src/domain/channel.ts';

const BACKGROUND = { mode: 'background', wakes: true };
const HISTORY = { mode: 'background', wakes: false };
const INLINE = { mode: 'inline', wakes: false };

function mode(call: Partial<GateRequest>) {
  return deliveryMode({ finite: undefined, requestChannel: null, sessionChannel: null, ...call });
}

const bySession = (sessionChannel: DeclaredChannel) => mode({ sessionChannel });
const byRequest = (requestChannel: DeclaredChannel) => mode({ requestChannel });

const KINDS = ['telegram', 'cli', 'api_server', 'one_shot', 'cron', 'kanban_worker'];
const flag = fc.constantFrom(true, false, undefined);
const channel = fc.record({
  kind: fc.constantFrom(...KINDS, undefined),
  async_delivery: flag,
  history_delivery: flag,
});
const channelOrNone = fc.option(channel, { nil: null });
const notFinite = fc.constantFrom(undefined, null, false, '0', 'false', 'true', '', 1, {}, []);

describe('a session that declares nothing', () => {
  it('is called back later (000.1, 000.4, 000.10)', () => {
    expect(mode({})).toEqual(BACKGROUND);
    expect(bySession({})).toEqual(BACKGROUND);
    expect(byRequest({})).toEqual(BACKGROUND);
  });

  it('is called back later at a local channel too (000.16)', () => {
    expect(bySession({ kind: 'cli' })).toEqual(BACKGROUND);
  });
});

describe('async_delivery', () => {
  it.each([bySession, byRequest])('true is background (000.2)', (declared) => {
    expect(declared({ kind: 'telegram', async_delivery: true })).toEqual(BACKGROUND);
  });

  it.each([bySession, byRequest])('false is inline (000.3)', (declared) => {
    expect(declared({ kind: 'telegram', async_delivery: false })).toEqual(INLINE);
  });

  it('of one request is not remembered for the next (000.6)', () => {
    const sessionChannel = { kind: 'telegram' };
    expect(mode({ sessionChannel, requestChannel: { async_delivery: false } })).toEqual(INLINE);
    expect(mode({ sessionChannel })).toEqual(BACKGROUND);
  });
});

describe('a kind that ends with its turn', () => {
  it.each(['one_shot', 'cron', 'kanban_worker'])(
    '%s gets its results inline, whatever else it says (000.5, 000.7, 000.9)',
    (kind) => {
      fc.assert(
        fc.property(channel, (said) => {
          expect(bySession({ ...said, kind })).toEqual(INLINE);
          expect(byRequest({ ...said, kind })).toEqual(INLINE);
          const amended = { ...said, kind: undefined };
          expect(mode({ sessionChannel: { kind }, requestChannel: amended })).toEqual(INLINE);
        }),
      );
    },
  );

  it.each(['constructor', '__proto__', 'CRON', 'cron ', ''])('is not the kind %j', (kind) => {
    expect(byRequest({ kind })).toEqual(BACKGROUND);
  });
});

describe('an api_server', () => {
  it('gets its results inline, whatever async_delivery says (000.11, 000.12)', () => {
    for (const async_delivery of [true, false, undefined]) {
      expect(bySession({ kind: 'api_server', async_delivery })).toEqual(INLINE);
      expect(byRequest({ kind: 'api_server', async_delivery })).toEqual(INLINE);
    }
  });

  it('that reads its history gets them in the background, without a wake', () => {
    for (const async_delivery of [true, false, undefined]) {
      const said = { kind: 'api_server', history_delivery: true, async_delivery };
      expect(byRequest(said)).toEqual(HISTORY);
    }
    const sessionChannel = { kind: 'api_server' };
    expect(mode({ sessionChannel, requestChannel: { history_delivery: true } })).toEqual(HISTORY);
  });

  it('must say in the request itself that it reads its history', () => {
    const sessionChannel = { kind: 'api_server', history_delivery: true };
    expect(mode({ sessionChannel })).toEqual(INLINE);
    expect(mode({ sessionChannel, requestChannel: { kind: 'api_server' } })).toEqual(INLINE);
    expect(mode({ sessionChannel, requestChannel: {} })).toEqual(INLINE);
  });

  it('is what one request comes by, not what its session is (000.13)', () => {
    const sessionChannel = { kind: 'telegram' };
    expect(mode({ sessionChannel, requestChannel: { kind: 'api_server' } })).toEqual(INLINE);
    expect(mode({ sessionChannel })).toEqual(BACKGROUND);
  });

  it('is told to poll when it asked to be notified (000.14)', () => {
    expect(notifyUnsupported('deleg_1')).toMatch(/poll GET \/v1\/delegations\/deleg_1 /iu);
  });
});

describe("the request's channel", () => {
  it("that names its kind stands alone: nothing of the session's counts", () => {
    fc.assert(
      fc.property(
        channelOrNone,
        channel,
        fc.constantFrom(...KINDS),
        (sessionChannel, said, kind) => {
          const requestChannel = { ...said, kind };
          expect(mode({ sessionChannel, requestChannel })).toEqual(byRequest(requestChannel));
        },
      ),
    );
  });

  it('that names no kind goes before the session field by field', () => {
    const sessionChannel = { kind: 'telegram', async_delivery: false };
    expect(mode({ sessionChannel, requestChannel: { async_delivery: true } })).toEqual(BACKGROUND);
    expect(mode({ sessionChannel, requestChannel: { route: 'elsewhere' } })).toEqual(INLINE);
  });

  it('changes nothing of what was declared (000.8)', () => {
    fc.assert(
      fc.property(channelOrNone, channelOrNone, (sessionChannel, requestChannel) => {
        const before = structuredClone({ sessionChannel, requestChannel });
        mode({ sessionChannel, requestChannel });
        expect({ sessionChannel, requestChannel }).toEqual(before);
      }),
    );
  });
});

describe('a finite call', () => {
  it.each([true, '1'])('%j is inline, also with history_delivery (002.4)', (finite) => {
    fc.assert(
      fc.property(channelOrNone, channelOrNone, (sessionChannel, requestChannel) => {
        expect(mode({ finite, sessionChannel, requestChannel })).toEqual(INLINE);
      }),
    );
  });

  it('is nothing but true and "1" (002.5)', () => {
    fc.assert(
      fc.property(
        notFinite,
        channelOrNone,
        channelOrNone,
        (finite, sessionChannel, requestChannel) => {
          const call = { sessionChannel, requestChannel };
          expect(mode({ ...call, finite })).toEqual(mode(call));
        },
      ),
    );
  });
});

it('never wakes a parent that waits in the request', () => {
  fc.assert(
    fc.property(channelOrNone, channelOrNone, (sessionChannel, requestChannel) => {
      const delivery = mode({ sessionChannel, requestChannel });
      expect(delivery.mode === 'inline' && delivery.wakes).toBe(false);
    }),
  );
});

it('takes cli, tui and desktop for local channels, and nothing else', () => {
  for (const kind of ['cli', 'tui', 'desktop']) expect(isLocalChannel(kind)).toBe(true);
  for (const kind of ['telegram', 'api_server', 'CLI', '', 'toString', null]) {
    expect(isLocalChannel(kind)).toBe(false);
  }
});
