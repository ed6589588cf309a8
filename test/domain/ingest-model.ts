import { isBlank } from '../../src/domain/text.ts';
import { isLive } from '../../src/domain/work.ts';
import { outcomeOf, type ReportOutcome } from '../../src/domain/report-outcome.ts';
import { decide } from '../../src/domain/decide.ts';
import type {
  Decision,
  ItemWrite,
  LateWrite,
  ParkWrite,
  Report,
  ReportedInbox,
  ReportedSession,
  ReportState,
  UpstreamText,
  WorkState,
} from '../../src/domain/report.ts';
import { aContext, anInbox, aReport, aSession, aWork } from './situations.ts';

/*
 * One child and its parent in memory: what is loaded for a report, decided of it and written, as the
 * store and the operations do it. Plain data throughout, so that a copy is a structuredClone.
 */

export interface Model {
  session: ReportedSession;
  inbox: ReportedInbox;
  work: Map<string, WorkState>;
  items: ItemWrite[];
  parked: ParkedRow[];
  late: LateWrite[];
  text: { text: string; responseId: string | null; fresh: boolean } | null;
  responses: Map<string, { workId: string; delivered: boolean }>;
  /** What upstream answers when it is asked for a text; null: there is no upstream. */
  upstream: UpstreamText | null;
  /** What became of each terminal report, by its fingerprint. */
  fates: Map<string, 'delivered' | 'repeat' | 'dead'>;
  made: number;
}

export interface ParkedRow extends ParkWrite {
  id: string;
  /** Fingerprints of the reports that this row stands for. */
  of: string[];
}

const PARK_AFTER_ATTEMPTS = 3;
const ROUNDS_MAX = 8;

export function aModel(set: Partial<Model> = {}): Model {
  return {
    session: aSession({ status: 'idle' }),
    inbox: anInbox(),
    work: new Map(),
    items: [],
    parked: [],
    late: [],
    text: null,
    responses: new Map(),
    upstream: null,
    fates: new Map(),
    made: 0,
    ...set,
  };
}

/** A forwarder's report; answers what it is told. */
export function post(model: Model, said: Partial<Report>): ReportOutcome {
  return outcomeOf(ingest(model, aReport({ fingerprint: `report ${next(model)}`, ...said })));
}

/** The parent gives the child a new turn; false where it would be refused. */
export function dispatch(model: Model): boolean {
  redeliver(model);
  const former = current(model);
  if (model.parked.some(isParked) || (former !== null && isLive(former.status))) return false;
  const workId = `work-${next(model)}`;
  model.work.set(workId, aWork({ workId, status: 'launching' }));
  Object.assign(model.session, { currentWorkId: workId, lastReport: null });
  if (model.text) model.text.fresh = false;
  return true;
}

/** Marks live work as it is while an interrupt's grace runs, or as it is once stopped. */
export function mark(model: Model, status: 'cancelling' | 'cancelled' | 'unknown'): void {
  const work = current(model);
  if (work !== null && isLive(work.status)) work.status = status;
}

/** The child's assistant says something. */
export function say(model: Model, text: string, responseId: string | null = null): void {
  model.text = { text, responseId, fresh: true };
  const work = current(model);
  if (!work?.awaitsText || model.session.ranSinceResult || isBlank(text)) return;
  if (work.resultResponseId && responseId && work.resultResponseId !== responseId) return;
  ingest(
    model,
    aReport({
      output: text,
      outcome: 'completed',
      responseId: work.resultResponseId,
      workId: work.workId,
      fingerprint: `late text ${next(model)}`,
      origin: { kind: 'late_text' },
    }),
  );
}

/** Delivers what is parked and can be, oldest turn first; false where some has to stay. */
export function redeliver(model: Model): boolean {
  const rows = model.parked.filter(isParked).toSorted((a, b) => a.turn - b.turn);
  return rows.every((row) => {
    const { id, status, outcome, output, responseId, workId, afterRunning, tries } = row;
    const origin = { kind: 'parked' as const, id, afterRunning, tries };
    const fingerprint = `parked ${id}`;
    const said = { status, outcome, output, responseId, workId, fingerprint, origin };
    return ingest(model, aReport(said)).kind !== 'park';
  });
}

export function current(model: Model): WorkState | null {
  return model.work.get(model.session.currentWorkId ?? '') ?? null;
}

export function isParked(row: ParkedRow): boolean {
  return row.state === 'parked';
}

function next(model: Model): number {
  model.made += 1;
  return model.made;
}

function ingest(model: Model, first: Report): Decision {
  let report = first;
  for (let round = 0; round < ROUNDS_MAX; round += 1) {
    const itemSeq = next(model);
    const decision = decide(
      report,
      load(model, report),
      aContext({
        parkAfterAttempts: PARK_AFTER_ATTEMPTS,
        upstream: model.upstream !== null,
        itemSeq,
        workId: `work-${itemSeq}`,
      }),
    );
    if (decision.kind === 'look_up_text') {
      report = { ...report, upstreamText: model.upstream };
    } else if (decision.kind === 'deliver_parked_first') {
      if (!redeliver(model)) report = { ...report, parkedStays: true };
    } else {
      write(model, report, decision);
      return decision;
    }
  }
  throw new Error(`never settled: ${JSON.stringify(first)}`);
}

function load(model: Model, report: Report): ReportState {
  const { session, text } = model;
  const work = current(model);
  const response = model.responses.get(report.responseId ?? session.responseId ?? '') ?? null;
  const named = model.work.get(report.workId ?? response?.workId ?? '') ?? null;
  const wantsText = report.status === 'idle' && isBlank(report.output ?? '');
  const ofText = model.responses.get(text?.responseId ?? '');
  const isOfOther = ofText && (ofText.delivered || ofText.workId !== session.currentWorkId);
  const { origin } = report;
  const parked = model.parked
    .filter((row) => origin.kind !== 'parked' || row.id === origin.id)
    .toSorted((a, b) => b.turn - a.turn)[0];
  return {
    session,
    inbox: model.inbox,
    work,
    named: named?.workId === work?.workId ? null : named,
    response,
    // Where no text is wanted, it is only said that there is one.
    text:
      text && (text.fresh ? !isOfOther : wantsText)
        ? { ...text, text: wantsText ? text.text : '' }
        : null,
    parked: parked ?? null,
    parentParked: model.parked.some((row) => isParked(row) && row.tries >= PARK_AFTER_ATTEMPTS),
  };
}

function write(model: Model, report: Report, decision: Decision): void {
  if ('session' in decision && decision.session) Object.assign(model.session, decision.session);
  if (decision.kind === 'status') {
    if (decision.work) putWork(model, decision.work);
    const { currentWorkId } = model.session;
    if (decision.announces !== null && currentWorkId !== null) {
      remember(model, decision.announces, currentWorkId, false);
    }
  } else if (decision.kind === 'deliver') {
    deliver(model, decision);
    settle(model, report, 'delivered');
  } else if (decision.kind === 'park') {
    putParked(model, report, decision.park);
    if (decision.usesText && model.text) model.text.fresh = false;
  } else if (decision.kind === 'parent_gone') {
    putParked(model, report, decision.park);
    settle(model, report, 'dead');
  } else {
    if (decision.kind === 'already_delivered' && decision.late) putLate(model, decision.late);
    settle(model, report, 'repeat');
  }
}

function deliver(model: Model, decision: Extract<Decision, { kind: 'deliver' }>): void {
  const { work, item, usesText } = decision;
  putWork(model, work);
  if (item !== null) model.items.push(item);
  if (work.resultResponseId !== null) remember(model, work.resultResponseId, work.workId, true);
  if (usesText && model.text) model.text.fresh = false;
}

function putWork(model: Model, work: WorkState): void {
  model.work.set(work.workId, { ...work });
}

function remember(model: Model, responseId: string, workId: string, delivered: boolean): void {
  const known = model.responses.get(responseId);
  if (!known || (delivered && !known.delivered)) {
    model.responses.set(responseId, { workId, delivered });
  }
}

function putLate(model: Model, late: LateWrite): void {
  const isKnown = model.late.some((known) => JSON.stringify(known) === JSON.stringify(late));
  if (!isKnown) model.late.push(late);
}

function putParked(model: Model, report: Report, park: ParkWrite): void {
  const of = report.origin.kind === 'parked' ? [] : [report.fingerprint];
  const former = model.parked.find((row) => row.id === park.replaces?.id);
  if (former === undefined) {
    model.parked.push({ ...park, id: `parked-${next(model)}`, of });
    return;
  }
  const { status, outcome, output } = park.takesContent ? park : former;
  const { afterRunning } = former;
  const [ofContent, ofOther] = park.takesContent ? [park, former] : [former, park];
  const responseId = ofContent.responseId ?? ofOther.responseId;
  const kept = { status, outcome, output, responseId, afterRunning, of: [...former.of, ...of] };
  Object.assign(former, park, kept);
}

/** The report is settled, and with it those that were parked in its place. */
function settle(
  model: Model,
  { origin, fingerprint }: Report,
  fate: 'delivered' | 'repeat' | 'dead',
): void {
  if (origin.kind !== 'parked') {
    model.fates.set(fingerprint, fate);
    return;
  }
  const row = model.parked.find(({ id }) => id === origin.id);
  for (const one of row?.of ?? []) model.fates.set(one, fate);
  if (fate !== 'dead') model.parked = model.parked.filter(({ id }) => id !== origin.id);
}
