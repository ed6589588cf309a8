import * as fc from 'fast-check';
import { describe, expect, it, test } from 'vitest';
import { messagePreview, taskStatus, toolAndName } from '../../src/domain/child-session.ts';
import { codePoints } from '../../src/domain/text.ts';
import type { WorkStatus } from '../../src/domain/work.ts';

const ID = 'conv_c';

describe('what became of the current task', () => {
  test.each<[WorkStatus, string]>([
    ['launching', 'in_progress'],
    ['running', 'in_progress'],
    ['cancelling', 'in_progress'],
    ['stalling', 'in_progress'],
    ['completed', 'completed'],
    ['cancelled', 'cancelled'],
    ['interrupted', 'cancelled'],
    ['failed', 'failed'],
    ['error', 'failed'],
    ['timeout', 'failed'],
    ['stalled', 'failed'],
    ['unknown', 'failed'],
  ])('work that is %s shows as %s, whatever the session says', (work, shown) => {
    expect(taskStatus(work, { status: 'failed', errorCode: 'turn_error' })).toBe(shown);
  });

  it('shows only a failure where there is no work', () => {
    expect(taskStatus(null, { status: 'idle', errorCode: null })).toBeNull();
    expect(taskStatus(null, { status: 'running', errorCode: null })).toBeNull();
    expect(taskStatus(null, { status: 'failed', errorCode: null })).toBe('failed');
    expect(taskStatus(null, { status: 'idle', errorCode: 'turn_error' })).toBe('failed');
  });
});

describe('tool and name', () => {
  test.each<[string | null, string | null, string | null]>([
    [null, null, null],
    ['', '', null],
    ['reviewer', 'reviewer', null],
    ['reviewer:first', 'reviewer', 'first'],
    ['reviewer:a:b', 'reviewer', 'a:b'],
    ['reviewer:', 'reviewer', ''],
    [':name', '', 'name'],
    ['ui:coder:my label', 'coder', 'my label'],
    ['ui:coder:a:b:c', 'coder', 'a:b:c'],
    ['ui:coder', 'ui', 'coder'],
    ['ui', 'ui', null],
    [`reviewer:first:closed:${ID}`, 'reviewer', 'first'],
    [`ui:coder:label:closed:${ID}`, 'coder', 'label'],
    ['reviewer:first:closed:conv_other', 'reviewer', 'first:closed:conv_other'],
  ])('of the title %j are %j and %j', (title, tool, sessionName) => {
    expect(toolAndName(ID, title)).toEqual({ tool, sessionName });
  });

  it('together are the title, but for the mark of a closed child', () => {
    fc.assert(
      fc.property(fc.string(), (title) => {
        fc.pre(!title.startsWith('ui:') && !title.endsWith(`:closed:${ID}`));
        const { tool, sessionName } = toolAndName(ID, title);
        expect(sessionName === null ? tool : `${tool}:${sessionName}`).toBe(title);
      }),
    );
  });
});

describe("a message's preview", () => {
  test.each([
    [null, null],
    ['', null],
    [' \n\t\u0085 ', null],
    ['one', 'one'],
    ['  one\n\n two\u00a0three ', 'one two three'],
    ['x'.repeat(150), 'x'.repeat(150)],
    ['x'.repeat(151), 'x'.repeat(150)],
    ['😀'.repeat(151), '😀'.repeat(150)],
  ])('of %j is %j', (text, preview) => expect(messagePreview(text)).toBe(preview));

  it('never has more than 150 code points, nor half of one', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme', maxLength: 400 }), (text) => {
        const preview = messagePreview(text) ?? '';
        expect(codePoints(preview)).toBeLessThanOrEqual(150);
        expect(preview.isWellFormed()).toBe(true);
      }),
    );
  });
});
