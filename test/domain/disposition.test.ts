import { describe, expect, it } from 'vitest';
import { disposition } from '../../src/domain/disposition.ts';

describe('a result for a session', () => {
  it.each(['cli', 'tui', 'desktop'])(
    'is a note in an unviewed local session (%s)',
    (channelKind) => {
      expect(disposition({ channelKind, viewers: 0 })).toBe('note');
    },
  );

  it.each(['cli', 'tui', 'desktop'])('is a turn in a viewed local session (%s)', (channelKind) => {
    expect(disposition({ channelKind, viewers: 1 })).toBe('turn');
    expect(disposition({ channelKind, viewers: 3 })).toBe('turn');
  });

  it.each(['telegram', 'slack', 'api_server', 'one_shot', '', 'CLI', '__proto__'])(
    'is a turn on any other channel, viewed or not (%j)',
    (channelKind) => {
      expect(disposition({ channelKind, viewers: 0 })).toBe('turn');
      expect(disposition({ channelKind, viewers: 1 })).toBe('turn');
    },
  );

  it('is a turn where no channel is known', () => {
    expect(disposition({ channelKind: null, viewers: 0 })).toBe('turn');
  });
});
