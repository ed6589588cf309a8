import { describe, expect, it } from 'vitest';
import { detach, END_REASONS } from '../../src/domain/closing.ts';

describe('a viewer who detaches', () => {
  it.each(END_REASONS)('closes the session as its last viewer with the reason %s', (endReason) => {
    expect(detach({ viewersLeft: 0, endReason })).toEqual({ kind: 'close', reason: endReason });
  });

  it.each(END_REASONS)('changes nothing with another viewer there (%s)', (endReason) => {
    expect(detach({ viewersLeft: 1, endReason })).toEqual({ kind: 'nothing' });
  });

  it('changes nothing without a reason, alone or not', () => {
    expect(detach({ viewersLeft: 0, endReason: null })).toEqual({ kind: 'nothing' });
    expect(detach({ viewersLeft: 2, endReason: null })).toEqual({ kind: 'nothing' });
  });
});

it('the reasons that end a session are these, and no others', () => {
  expect([...END_REASONS].toSorted()).toEqual([
    'cli_close',
    'new_session',
    'session_reset',
    'session_switch',
    'tui_close',
    'tui_shutdown',
    'user_exit',
  ]);
});
