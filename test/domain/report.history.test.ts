import { describe, expect, test } from 'vitest';
import type { Report } from '../../src/domain/report.ts';
import { FAILED_WITHOUT_TEXT } from '../../src/domain/result-output.ts';
import {
  aModel,
  current,
  dispatch,
  mark,
  post,
  redeliver,
  say,
  type Model,
} from './ingest-model.ts';

/*
 * Histories: what a parent reads in the end, and what the forwarder was told last.
 */

type Event = (model: Model) => string | null;

const idle =
  (
    output: string | null = null,
    responseId: string | null = null,
    more: Partial<Report> = {},
  ): Event =>
  (model) =>
    post(model, { status: 'idle', output, responseId, ...more }).outcome;
const failed =
  (output: string | null = null, responseId: string | null = null): Event =>
  (model) =>
    post(model, { status: 'failed', output, responseId }).outcome;
const running =
  (responseId: string | null = null): Event =>
  (model) =>
    post(model, { status: 'running', responseId }).outcome;
const does =
  (act: (model: Model) => unknown): Event =>
  (model) => {
    act(model);
    return null;
  };
const dispatched = does((model) => expect(dispatch(model)).toBe(true));
const says = (text: string, responseId: string | null = null) =>
  does((model) => say(model, text, responseId));
const marked = (as: Parameters<typeof mark>[1]) => does((model) => mark(model, as));
const closes = does((model) => (model.inbox.open = false));
const opens = does((model) => {
  model.inbox.open = true;
  redeliver(model);
});
const upstream = (is: Model['upstream']) => does((model) => (model.upstream = is));
const upstreamDown = upstream({ kind: 'unavailable' });
const upstreamHas = (text: string, messageId: string) =>
  upstream({ kind: 'found', messageId, text });

type History = [what: string, events: Event[], told: string, reads: string[]];

function tell(events: Event[]): { told: string | null; reads: string[]; model: Model } {
  const model = aModel();
  let told: string | null = null;
  for (const event of events) told = event(model) ?? told;
  return { told, reads: model.items.map(({ output }) => output), model };
}

function firstWork(model: Model): string {
  return model.items[0]?.workId ?? '';
}

function ofCurrentWork(output: string): Event {
  return (model) => idle(output, null, { workId: current(model)?.workId ?? null })(model);
}

describe('exactly once per turn', () => {
  const histories: History[] = [
    ['one report', [dispatched, idle('one')], 'delivered', ['one']],
    ['the same again', [dispatched, idle('one'), idle('one')], 'already_delivered', ['one']],
    ['another text', [dispatched, idle('one'), idle('two')], 'already_delivered', ['one']],
    ['no text', [dispatched, idle('one'), idle()], 'already_delivered', ['one']],
    ['a failure', [dispatched, idle('one'), failed('x')], 'already_delivered', ['one']],
    ['an idle after a failure', [dispatched, failed('x'), idle()], 'already_delivered', ['x']],
    [
      'another id without a run',
      [dispatched, idle('one', 'r1'), idle('two', 'r2')],
      'already_delivered',
      ['one'],
    ],
    [
      'a running too late',
      [dispatched, idle('one'), running(), idle('one')],
      'already_delivered',
      ['one'],
    ],
    ['no dispatch at all', [idle('one'), idle('one')], 'already_delivered', ['one']],
  ];

  test.each(histories)('%s', (_what, events, told, reads) => {
    expect(tell(events)).toMatchObject({ told, reads });
  });
});

describe('a new dispatch', () => {
  const histories: History[] = [
    [
      'is a new turn',
      [dispatched, idle('one'), dispatched, idle('two')],
      'delivered',
      ['one', 'two'],
    ],
    [
      'is a new turn for an equal result that has an id',
      [dispatched, idle('one', 'r1'), dispatched, idle('one', 'r2')],
      'delivered',
      ['one', 'one'],
    ],
    [
      'has nothing of a late duplicate that names its turn by id',
      [dispatched, idle('one', 'r1'), dispatched, idle('one', 'r1')],
      'already_delivered',
      ['one'],
    ],
    [
      'has nothing of one that names it by the id of a running',
      [dispatched, running('r1'), idle('one'), dispatched, idle('other', 'r1')],
      'already_delivered',
      ['one'],
    ],
    [
      'has nothing of one that names it by work_id',
      [
        dispatched,
        idle('one'),
        dispatched,
        (model) => idle('one', null, { workId: firstWork(model) })(model),
      ],
      'already_delivered',
      ['one'],
    ],
    [
      'gets its own result after such a duplicate',
      [dispatched, idle('one', 'r1'), dispatched, idle('one', 'r1'), idle('two', 'r2')],
      'delivered',
      ['one', 'two'],
    ],
    [
      'is not closed by a duplicate without ids',
      [dispatched, idle('one'), dispatched, idle('one'), idle('two')],
      'delivered',
      ['one', 'one', 'two'],
    ],
    [
      'is not closed by one with a work_id never heard of',
      [dispatched, idle('one'), dispatched, idle('one', null, { workId: 'x' }), idle('two')],
      'delivered',
      ['one', 'one', 'two'],
    ],
    [
      'is not closed by one that was parked first',
      [dispatched, idle('one'), dispatched, closes, idle('one'), opens, idle('two')],
      'delivered',
      ['one', 'one', 'two'],
    ],
    [
      'gets a failure after such a duplicate as well',
      [dispatched, idle('one'), dispatched, idle('one'), failed('x')],
      'delivered',
      ['one', 'one', 'x'],
    ],
    [
      'gets one different result after it, not more',
      [dispatched, idle('one'), dispatched, idle('one'), idle('two'), idle('three')],
      'already_delivered',
      ['one', 'one', 'two'],
    ],
    [
      'gets no equal result after it',
      [dispatched, idle('one'), dispatched, idle('one'), running(), idle('one')],
      'already_delivered',
      ['one', 'one'],
    ],
    [
      'is closed by an equal result after a sign of life',
      [dispatched, idle('one'), dispatched, running(), idle('one'), idle('two')],
      'already_delivered',
      ['one', 'one'],
    ],
    [
      'is closed by an equal result that has an id of its own',
      [dispatched, idle('one'), dispatched, idle('one', 'r2'), idle('two')],
      'already_delivered',
      ['one', 'one'],
    ],
    [
      'is closed by an equal result that names it by work_id',
      [dispatched, idle('one'), dispatched, ofCurrentWork('one'), idle('two')],
      'already_delivered',
      ['one', 'one'],
    ],
    [
      'is closed by a different result',
      [dispatched, idle('one'), dispatched, idle('two'), idle('one')],
      'already_delivered',
      ['one', 'two'],
    ],
    [
      'gets no text that was kept before it',
      [dispatched, idle('one'), says('old'), dispatched, idle()],
      'delivered',
      ['one', ''],
    ],
    [
      'goes on under no id of a turn that was stopped',
      [dispatched, running('r1'), marked('cancelled'), dispatched, running(), idle('two')],
      'delivered',
      ['two'],
    ],
    [
      'has nothing of a stopped turn’s report that came before any sign of life',
      [dispatched, running('r1'), marked('cancelled'), dispatched, idle('late')],
      'already_delivered',
      [],
    ],
    [
      'has nothing of what the child had begun by itself, which its former turn gets',
      [
        dispatched,
        idle('one', 'r1'),
        running('r2'),
        dispatched,
        idle('two', 'r2'),
        idle('two', 'r2'),
      ],
      'already_delivered',
      ['one', 'two'],
    ],
  ];

  test.each(histories)('%s', (_what, events, told, reads) => {
    expect(tell(events)).toMatchObject({ told, reads });
  });

  test('has a work_id of its own, and its items do not follow the former turn’s', () => {
    const { model } = tell([dispatched, idle('one'), dispatched, idle('two')]);
    const [one, two] = model.items;
    expect(two?.workId).not.toBe(one?.workId);
    expect(two).toMatchObject({ revision: 1, followsSeq: null });
  });
});

describe('a child that goes on by itself', () => {
  const histories: History[] = [
    ['is followed', [dispatched, idle('one'), running(), idle('two')], 'delivered', ['one', 'two']],
    [
      'is followed from a rebuilt entry',
      [idle('one'), running(), idle('two')],
      'delivered',
      ['one', 'two'],
    ],
    [
      'is followed again and again',
      [dispatched, idle('one'), running(), idle('two'), running(), idle('three')],
      'delivered',
      ['one', 'two', 'three'],
    ],
    [
      'is not followed without a running',
      [dispatched, idle('one'), idle('two')],
      'already_delivered',
      ['one'],
    ],
    [
      'is not followed after a waiting alone',
      [dispatched, idle('one'), (model) => post(model, { status: 'waiting' }).outcome, idle('two')],
      'already_delivered',
      ['one'],
    ],
    [
      'is not followed once more without another running',
      [dispatched, idle('one'), running(), idle('two'), idle('three')],
      'already_delivered',
      ['one', 'two'],
    ],
    [
      'is not followed by what equals the last one',
      [dispatched, idle('one'), running(), idle('one')],
      'already_delivered',
      ['one'],
    ],
    [
      'is followed by an equal result of another id',
      [dispatched, idle('one', 'r1'), running('r2'), idle('one', 'r2')],
      'delivered',
      ['one', 'one'],
    ],
    [
      'is followed by an equal result of an id that only a running named',
      [dispatched, idle('one', 'r1'), running('r2'), idle('one')],
      'delivered',
      ['one', 'one'],
    ],
    [
      'is not followed by a failure after a completion',
      [dispatched, idle('one'), running(), failed('x')],
      'already_delivered',
      ['one'],
    ],
    [
      'is followed by what comes after such a failure',
      [dispatched, idle('one'), running(), failed('x'), idle('two')],
      'delivered',
      ['one', 'two'],
    ],
    [
      'is followed by a failure of another id',
      [dispatched, idle('one', 'r1'), running('r2'), failed('x', 'r2')],
      'delivered',
      ['one', 'x'],
    ],
    [
      'is followed by a completion after a failure',
      [dispatched, failed('x'), running(), idle('two')],
      'delivered',
      ['x', 'two'],
    ],
    [
      'is not followed by a duplicate of an earlier revision, known by its id',
      [
        dispatched,
        idle('one', 'r1'),
        running('r2'),
        idle('two', 'r2'),
        running('r3'),
        idle('one', 'r1'),
      ],
      'already_delivered',
      ['one', 'two'],
    ],
    [
      'is not followed by a duplicate without text, known by its id',
      [dispatched, says('one'), idle(null, 'r1'), running('r1'), idle(null, 'r1')],
      'already_delivered',
      ['one'],
    ],
    [
      'is followed after such a duplicate',
      [dispatched, idle('one', 'r1'), running('r2'), idle('one', 'r1'), idle('two', 'r2')],
      'delivered',
      ['one', 'two'],
    ],
  ];

  test.each(histories)('%s', (_what, events, told, reads) => {
    expect(tell(events)).toMatchObject({ told, reads });
  });

  test('has its items follow each other under one work_id', () => {
    const { items } = tell([dispatched, idle('one'), running(), idle('two')]).model;
    const [one, two] = items;
    expect(two).toMatchObject({ workId: one?.workId, revision: 2, followsSeq: one?.seq });
  });
});

describe('text that comes late', () => {
  const histories: History[] = [
    [
      'follows a turn delivered without any',
      [dispatched, idle(), says('one')],
      'delivered',
      ['', 'one'],
    ],
    ['follows it once', [dispatched, idle(), says('one'), says('two')], 'delivered', ['', 'one']],
    ['follows it in a report', [dispatched, idle(), idle('one')], 'delivered', ['', 'one']],
    ['follows no turn that had text', [dispatched, idle('one'), says('two')], 'delivered', ['one']],
    ['follows no failure', [dispatched, failed(' '), says('two')], 'delivered', [' ']],
    [
      'follows nothing once the child has run',
      [dispatched, idle(), running(), says('one')],
      'accepted',
      [''],
    ],
    [
      'is then the text of what follows',
      [dispatched, idle(), running(), says('one'), idle()],
      'delivered',
      ['', 'one'],
    ],
    [
      'does not follow a turn of another id',
      [dispatched, idle(null, 'r1'), says('one', 'r2')],
      'delivered',
      [''],
    ],
    ['that is blank follows nothing', [dispatched, idle(), says(' ')], 'delivered', ['']],
    [
      'is not the text of the next run as well',
      [dispatched, idle(null, 'r1'), says('one'), running('r2'), idle(null, 'r2')],
      'delivered',
      ['', 'one', ''],
    ],
    [
      'is the newest of its turn still where the next run says nothing: it was delivered',
      [dispatched, says('one'), idle(), running(), idle()],
      'already_delivered',
      ['one'],
    ],
    [
      '… in the next run but one, and what it says then is delivered',
      [dispatched, says('one'), idle(), running(), idle(), running(), says('two'), idle()],
      'delivered',
      ['one', 'two'],
    ],
    [
      '… but not in the next turn',
      [dispatched, says('one'), idle(), dispatched, running(), idle()],
      'delivered',
      ['one', ''],
    ],
    [
      'follows a second run that had none, as it does the first',
      [dispatched, idle(null, 'r1'), running('r2'), idle(null, 'r2'), says('two')],
      'delivered',
      ['', '', 'two'],
    ],
    [
      'is kept while the inbox is closed, once',
      [dispatched, idle(), closes, says('one'), says('two'), opens],
      'delivered',
      ['', 'one'],
    ],
    [
      'does not take the place of a report that is parked',
      [dispatched, idle(), running(), closes, idle('two'), says('late'), opens],
      'not_confirmed',
      ['', 'two'],
    ],
    [
      'is not that of an earlier turn, repeated without text',
      [
        dispatched,
        idle(null, 'r1'),
        dispatched,
        running('r2'),
        says('two'),
        idle(null, 'r1'),
        idle(null, 'r2'),
      ],
      'delivered',
      ['', 'two'],
    ],
  ];

  test.each(histories)('%s', (_what, events, told, reads) => {
    expect(tell(events)).toMatchObject({ told, reads });
  });
});

describe('text from upstream', () => {
  const histories: History[] = [
    ['is delivered', [dispatched, upstreamHas('one', 'm1'), idle()], 'delivered', ['one']],
    [
      'is not delivered again',
      [dispatched, upstreamHas('one', 'm1'), idle(null, 'r1'), running('r2'), idle(null, 'r2')],
      'delivered',
      ['one', ''],
    ],
    [
      'is not delivered again by the next turn',
      [dispatched, upstreamHas('one', 'm1'), idle(null, 'r1'), dispatched, idle(null, 'r2')],
      'delivered',
      ['one', ''],
    ],
    [
      'is found late by a turn that was closed by a duplicate without text',
      [
        dispatched,
        upstreamHas('one', 'm1'),
        idle(),
        dispatched,
        idle(),
        upstreamHas('two', 'm2'),
        idle(),
      ],
      'delivered',
      ['one', '', 'two'],
    ],
    [
      'is delivered once it is another message, of the same wording',
      [
        dispatched,
        upstreamHas('one', 'm1'),
        idle(null, 'r1'),
        running('r2'),
        upstreamHas('one', 'm2'),
        idle(null, 'r2'),
      ],
      'delivered',
      ['one', 'one'],
    ],
    [
      'is waited for while upstream cannot say',
      [dispatched, upstreamDown, idle(), idle()],
      'not_confirmed',
      [],
    ],
    [
      'is delivered once it can',
      [dispatched, upstreamDown, idle(), upstreamHas('one', 'm1'), idle()],
      'already_delivered',
      ['one'],
    ],
    [
      'is not waited for by a failure',
      [dispatched, upstreamDown, failed()],
      'delivered',
      [FAILED_WITHOUT_TEXT],
    ],
    [
      'is not waited for by a report with text',
      [dispatched, upstreamDown, idle('one')],
      'delivered',
      ['one'],
    ],
    [
      'holds up what follows, which waits behind it',
      [dispatched, upstreamDown, idle(), running(), idle('two')],
      'not_confirmed',
      [],
    ],
    [
      'lets it all go in order',
      [dispatched, upstreamDown, idle(), running(), idle('two'), upstreamHas('one', 'm1'), opens],
      'not_confirmed',
      ['one', 'two'],
    ],
    [
      'is replaced by a later report of the turn that has text',
      [dispatched, upstreamDown, idle(), idle('one'), idle('one')],
      'already_delivered',
      ['one'],
    ],
    [
      'is waited for by what follows a turn without text',
      [dispatched, idle(), running(), upstreamDown, idle()],
      'not_confirmed',
      [''],
    ],
  ];

  test.each(histories)('%s', (_what, events, told, reads) => {
    expect(tell(events)).toMatchObject({ told, reads });
  });
});

describe('while the inbox is closed', () => {
  const histories: History[] = [
    ['a report waits', [dispatched, closes, idle('one')], 'not_confirmed', []],
    [
      'it is delivered once the inbox opens',
      [dispatched, closes, idle('one'), opens],
      'not_confirmed',
      ['one'],
    ],
    [
      'and the next try finds it so',
      [dispatched, closes, idle('one'), opens, idle('one')],
      'already_delivered',
      ['one'],
    ],
    [
      'the third try of three is told that it is parked',
      [dispatched, closes, idle('one'), idle('one'), idle('one')],
      'parked',
      [],
    ],
    [
      'a later report takes its place',
      [dispatched, closes, idle('one'), idle('two'), opens],
      'not_confirmed',
      ['two'],
    ],
    [
      'a failure does not take the place of a completion',
      [dispatched, closes, idle('one'), failed('hook status idle rejected'), opens],
      'not_confirmed',
      ['one'],
    ],
    [
      'a completion takes the place of a failure',
      [dispatched, closes, failed('x'), idle('one'), opens],
      'not_confirmed',
      ['one'],
    ],
    [
      'a text that was kept stays with the report, tried again or not',
      [dispatched, closes, says('one'), idle(), idle(), opens],
      'not_confirmed',
      ['one'],
    ],
    [
      'runs are kept apart',
      [dispatched, closes, idle('one'), running(), idle('two'), opens],
      'not_confirmed',
      ['one', 'two'],
    ],
    [
      'what follows a delivered result waits as well, however often it is tried',
      [dispatched, idle('one'), running(), closes, idle('two'), idle('two')],
      'not_confirmed',
      ['one'],
    ],
    [
      'and is delivered as what follows it',
      [dispatched, idle('one'), running(), closes, idle('two'), idle('two'), opens, idle('two')],
      'already_delivered',
      ['one', 'two'],
    ],
    [
      'a repeat of the delivered result does not take its place',
      [dispatched, idle('one', 'r1'), running(), closes, idle('two'), idle('one', 'r1'), opens],
      'already_delivered',
      ['one', 'two'],
    ],
    [
      'a repeat of it without text does not either',
      [
        dispatched,
        says('one'),
        idle(null, 'r1'),
        running(),
        closes,
        idle('two'),
        idle(null, 'r1'),
        opens,
      ],
      'already_delivered',
      ['one', 'two'],
    ],
    [
      'what goes on under the delivered id waits as well',
      [dispatched, idle('one', 'r1'), running('r1'), closes, idle('two', 'r1'), idle('two', 'r1')],
      'not_confirmed',
      ['one'],
    ],
    [
      'a repeat is a repeat',
      [dispatched, idle('one'), closes, idle('one')],
      'already_delivered',
      ['one'],
    ],
    [
      'a report is delivered before the one that finds the inbox open again',
      [
        dispatched,
        closes,
        idle('one'),
        running(),
        does((model) => (model.inbox.open = true)),
        idle('two'),
      ],
      'delivered',
      ['one', 'two'],
    ],
  ];

  test.each(histories)('%s', (_what, events, told, reads) => {
    expect(tell(events)).toMatchObject({ told, reads });
  });

  test('one report waits a turn, however many come', () => {
    const { model } = tell([
      dispatched,
      closes,
      idle('one'),
      idle('two'),
      failed('x'),
      idle('one'),
    ]);
    expect(model.parked).toHaveLength(1);
    expect(model.parked[0]).toMatchObject({ tries: 4, output: 'one' });
  });
});

describe('a turn that was stopped', () => {
  test.each<[as: 'cancelling' | 'cancelled', reads: string[], late: string[]]>([
    ['cancelling', ['one'], []],
    ['cancelled', [], ['one']],
  ])('and is %s when its report comes', (as, reads, late) => {
    const story = tell([dispatched, running(), marked(as), idle('one'), idle('one')]);
    expect(story).toMatchObject({ told: 'already_delivered', reads });
    expect(story.model.late.map(({ output }) => output)).toEqual(late);
  });

  test('keeps what comes late readable, once, and not what was delivered or says nothing', () => {
    const { model, reads } = tell([
      dispatched,
      marked('cancelling'),
      idle('one'),
      idle('one'),
      idle(),
      idle('two'),
      idle('two'),
      running(),
      failed('x'),
    ]);
    expect(reads).toEqual(['one']);
    expect(model.late.map(({ status, output }) => [status, output])).toEqual([
      ['completed', 'two'],
      ['failed', 'x'],
    ]);
    expect(current(model)?.status).toBe('cancelled');
  });

  test('is ended by a report of another end as it was', () => {
    const story = tell([dispatched, idle('one', null, { outcome: 'interrupted' }), idle('two')]);
    expect(story).toMatchObject({ told: 'already_delivered', reads: ['one'] });
    expect(story.model.items[0]?.status).toBe('interrupted');
  });

  test('is followed if it was only thought lost', () => {
    const lost = [dispatched, running(), marked('unknown'), idle('one'), idle('one')];
    expect(tell(lost)).toMatchObject({ told: 'already_delivered', reads: ['one'] });
  });
});
