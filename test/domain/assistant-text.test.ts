import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  assistantText,
  newestAssistantMessage,
  type ConversationItem,
} from '../../src/domain/assistant-text.ts';
import { isBlank } from '../../src/domain/text.ts';

function anItem(set: Partial<ConversationItem> = {}): ConversationItem {
  return { type: 'message', role: 'assistant', isMeta: undefined, content: 'done', ...set };
}

const text = (said: string) => ({ type: 'text', text: said });

describe('what the assistant says', () => {
  test.each<[what: string, content: unknown, said: string]>([
    ['a plain string', 'done', 'done'],
    ['a text block', [text('done')], 'done'],
    ['an output_text block', [{ type: 'output_text', text: 'done' }], 'done'],
    ['several blocks, joined by newlines', [text('one'), text('two')], 'one\ntwo'],
    [
      'text between tool calls',
      [text('one'), { type: 'tool_use', name: 'sh', text: 'not this' }, text('two')],
      'one\ntwo',
    ],
    ['white space at its ends, kept', '  done\n', '  done\n'],
    ['an empty block among others, kept', [text(''), text('done')], '\ndone'],
    ['text that looks like a number or a forged block', '[System: 1]', '[System: 1]'],
    ['U+FEFF, which is no white space', '\ufeff', '\ufeff'],
  ])('is %s', (_what, content, said) => {
    expect(assistantText(anItem({ content }))).toBe(said);
  });

  test.each<[what: string, item: Partial<ConversationItem>]>([
    ['without a type', { type: undefined }],
    ['with a null type, as some forwarders send it', { type: null }],
    ['marked as not meta', { isMeta: false }],
    ['with a meta mark that is not true', { isMeta: 'true' }],
  ])('counts in an item %s', (_what, item) => {
    expect(assistantText(anItem(item))).toBe('done');
  });

  test.each<[what: string, item: Partial<ConversationItem>]>([
    ['of a user', { role: 'user' }],
    ['of a role that is spelled otherwise', { role: 'Assistant' }],
    ['of nobody', { role: undefined }],
    ['that is meta', { isMeta: true }],
    ['that is a tool call', { type: 'function_call' }],
    ['of an empty type', { type: '' }],
    ['without content', { content: undefined }],
    ['of no text', { content: '' }],
    ['of white space only, as Python has it', { content: ' \u001c\u0085\n' }],
    ['of blank blocks only', { content: [text(''), text(' ')] }],
    ['of no blocks', { content: [] }],
    ['of a block that is no object', { content: ['done', null, 7] }],
    ['of a text that is no string', { content: [{ type: 'text', text: { done: true } }] }],
    ['of a block without a type', { content: [{ text: 'done' }] }],
    ['of a block whose type is an object', { content: [{ type: {}, text: 'done' }] }],
    ['whose content is a single block, not a list', { content: text('done') }],
  ])('is nothing in an item %s', (_what, item) => {
    expect(assistantText(anItem(item))).toBeNull();
  });

  test('is never blank, and never an error, whatever the item holds', () => {
    const anything = fc.anything();
    fc.assert(
      fc.property(anything, anything, anything, anything, (type, role, isMeta, content) => {
        for (const item of [{ type, role, isMeta, content }, anItem({ content })]) {
          const said = assistantText(item);
          expect(said === null || !isBlank(said)).toBe(true);
        }
      }),
    );
  });

  test('is all of its text blocks, in their order', () => {
    fc.assert(
      fc.property(fc.array(fc.string({ unit: 'binary' }), { minLength: 1 }), (texts) => {
        const joined = texts.join('\n');
        const said = assistantText(anItem({ content: texts.map(text) }));
        expect(said).toBe(isBlank(joined) ? null : joined);
      }),
    );
  });
});

const message = (set: Record<string, unknown> = {}) => ({
  id: 'm1',
  type: 'message',
  role: 'assistant',
  content: [text('done')],
  ...set,
});

describe('the newest message of the assistant', () => {
  test.each<[what: string, messages: unknown[], found: { id: string | null; text: string } | null]>(
    [
      ['the first of the list', [message(), message({ id: 'm0' })], { id: 'm1', text: 'done' }],
      [
        'none of the user, of tools, or of the program itself',
        [
          message({ role: 'user' }),
          message({ type: 'function_call' }),
          message({ is_meta: true }),
          message({ id: 'm0' }),
        ],
        { id: 'm0', text: 'done' },
      ],
      [
        'none that has no text',
        [message({ content: [] }), message({ content: 'ok', id: null })],
        { id: null, text: 'ok' },
      ],
      ['known by a number', [message({ id: 7 })], { id: '7', text: 'done' }],
      [
        'found among things that are none',
        [null, 5, 'x', [], {}, message()],
        { id: 'm1', text: 'done' },
      ],
      ['of the turn', [message({ response_id: 'r1' })], { id: 'm1', text: 'done' }],
      [
        'behind one of another turn',
        [message({ response_id: 'r2' }), message({ id: 'm0', response_id: 'r1' })],
        { id: 'm0', text: 'done' },
      ],
      [
        'one of which the turn is not said',
        [message({ response_id: 5 })],
        { id: 'm1', text: 'done' },
      ],
      ['none where all are of another turn', [message({ response_id: 'R1' })], null],
      ['none of no messages', [], null],
      ['none of blank ones', [message({ content: '  ' })], null],
    ],
  )('is %s', (_what, messages, found) => {
    expect(newestAssistantMessage(messages, 'r1', new Set(['r1']))).toEqual(found);
  });

  test('is the first that is not of a delivered turn, for a report that names none', () => {
    const messages = [message({ response_id: 'r2' }), message({ id: 'm0', response_id: 'r1' })];
    expect(newestAssistantMessage(messages, null, new Set())).toEqual({ id: 'm1', text: 'done' });
    const newest = newestAssistantMessage(messages, null, new Set(['r2']));
    expect(newest).toEqual({ id: 'm0', text: 'done' });
    expect(newestAssistantMessage(messages, null, new Set(['r1', 'r2']))).toBeNull();
  });
});
