import type { Decision, Report } from '../domain/report.ts';
import { LANES } from '../store/database.ts';
import { StorageUnavailable } from '../store/unavailable.ts';
import type { Resources } from '../resources.ts';
import { settleReports, type Settled } from './settle-reports.ts';

/*
 * Reports gather while a flush is under way, and the next flush takes them all: no timer, and a
 * lone report goes at the end of its turn of the event loop. Two reports of one child are never in flight together.
 */

/** A flush takes at most so many reports; beyond, PostgreSQL gains nothing (bench/ingest.ts). */
const BATCH_MAX = 128;
/** … and at most so much text, so that a few large outputs do not hold up the many small ones. */
const BATCH_MAX_CHARS = 8 * 1024 * 1024;
/**
 * Two flushes in flight hide each other's commit, four are worse; and the second only where so many
 * wait that it is worth what every flush costs by itself (bench/ingest.ts).
 */
const FLUSHES_IN_FLIGHT = 2;
const WORTH_A_SECOND = 24;
/** How many reports wait at most; beyond it 503 `overloaded`. At 5,000/s that is two seconds. */
const QUEUE_MAX = 10_000;
/** How much of what they hold waits at most: what bounds the memory that waiting reports take. */
const QUEUE_MAX_CHARS = 256 * 1024 * 1024;
/**
 * Reports that have to wait for a row do so one by one, beside the flushes and without holding them
 * up: their lanes are those that flushes leave over.
 */
const SINGLES_IN_FLIGHT = LANES - FLUSHES_IN_FLIGHT;
/** A single report tries so often to get hold of rows that are locked elsewhere. */
const SINGLE_TRIES = 5;
/** … and is not tried any more after so long: what waits for one lock is answered within seconds. */
const SINGLE_TRIED_WITHIN_MS = 2_500;

/** Thrown when the queue is full; nothing was stored. */
export class Overloaded extends Error {
  constructor() {
    super('the ingest queue is full');
    this.name = 'Overloaded';
  }
}

export interface IngestQueue {
  /**
   * Resolves when the report's decision has been committed; rejects with Overloaded or
   * StorageUnavailable where nothing was. Status reports give way first: `terminal` ones are
   * refused only when the queue is quite full.
   */
  submit(report: Report, terminal: boolean): Promise<Decision>;
  /** How many reports wait for a flush. */
  length(): number;
}

interface Entry {
  report: Report;
  key: string;
  chars: number;
  /** Since when it has had to be settled alone. */
  aloneSince: number;
  resolve: (decision: Decision) => void;
  reject: (error: unknown) => void;
}

/** A queue over the resources that are handed in when the first report comes. */
export function createIngestQueue(resourcesOf: () => Resources): IngestQueue {
  let waiting: Entry[] = [];
  let waitingChars = 0;
  let flushes = 0;
  let singles = 0;
  const alone: Entry[] = [];
  let turn: NodeJS.Immediate | null = null;
  const childrenInFlight = new Set<string>();

  function submit(report: Report, terminal: boolean): Promise<Decision> {
    const chars = charsOf(report);
    const share = terminal ? 1 : 0.5;
    const isFull =
      waiting.length >= QUEUE_MAX * share || waitingChars + chars > QUEUE_MAX_CHARS * share;
    if (isFull) return Promise.reject(new Overloaded());
    return new Promise((resolve, reject) => {
      const key = `${report.tenantId}\0${report.sessionId}`;
      waiting.push({ report, key, chars, aloneSince: Infinity, resolve, reject });
      waitingChars += chars;
      // What else arrives in this turn of the event loop goes along.
      turn ??= setImmediate(() => {
        turn = null;
        flush();
      });
    });
  }

  function flush(): void {
    const isWorthIt = flushes === 0 || waiting.length >= WORTH_A_SECOND;
    if (flushes >= FLUSHES_IN_FLIGHT || !isWorthIt) return;
    const batch = takeBatch();
    if (batch.length === 0) return;
    flushes += 1;
    void settleBatch(resourcesOf(), batch).then((unsettled) => {
      flushes -= 1;
      for (const entry of unsettled) entry.aloneSince = performance.now();
      alone.push(...unsettled);
      settleSingles();
      release(batch.filter((entry) => !unsettled.includes(entry)));
    });
  }

  function settleSingles(): void {
    while (singles < SINGLES_IN_FLIGHT) {
      const entry = alone.shift();
      if (entry === undefined) return;
      singles += 1;
      void settleSingly(resourcesOf(), entry).then(() => {
        singles -= 1;
        settleSingles();
        release([entry]);
      });
    }
  }

  function release(entries: readonly Entry[]): void {
    for (const { key } of entries) childrenInFlight.delete(key);
    flush();
  }

  function takeBatch(): Entry[] {
    const batch: Entry[] = [];
    const left: Entry[] = [];
    let chars = 0;
    for (const [at, entry] of waiting.entries()) {
      const isFull =
        batch.length === BATCH_MAX || (batch.length > 0 && chars + entry.chars > BATCH_MAX_CHARS);
      if (isFull) {
        left.push(...waiting.slice(at));
        break;
      }
      if (childrenInFlight.has(entry.key)) {
        left.push(entry);
        continue;
      }
      childrenInFlight.add(entry.key);
      batch.push(entry);
      chars += entry.chars;
    }
    waiting = left;
    waitingChars -= chars;
    return batch;
  }

  return { submit, length: () => waiting.length };
}

/**
 * Settles a batch and tells each caller; answers the entries that have to be settled alone. Never
 * rejects.
 */
async function settleBatch(resources: Resources, batch: readonly Entry[]): Promise<Entry[]> {
  let settled: Settled[];
  try {
    const reports = batch.map((entry) => entry.report);
    settled = await settleReports(resources, reports, 'skip');
  } catch (error) {
    const isPassing = error instanceof StorageUnavailable && error.code !== 'contended';
    if (!isPassing) {
      // One poisonous report must not fail its neighbours: each goes again, alone.
      resources.log.warn({ err: error, reports: batch.length }, 'a batch failed; settling singly');
      return [...batch];
    }
    for (const entry of batch) entry.reject(error);
    return [];
  }
  return batch.filter((entry, at) => {
    const outcome = settled[at];
    if (outcome?.kind === 'decided') entry.resolve(outcome.decision);
    return outcome?.kind !== 'decided';
  });
}

/** Settles one entry, waiting for its rows, and tells its caller. Never rejects. */
async function settleSingly(resources: Resources, entry: Entry): Promise<void> {
  try {
    entry.resolve(await settleOne(resources, entry));
  } catch (error) {
    entry.reject(error);
  }
}

async function settleOne(resources: Resources, { report, aloneSince }: Entry): Promise<Decision> {
  const triedUntil = aloneSince + SINGLE_TRIED_WITHIN_MS;
  for (let tries = 0; tries < SINGLE_TRIES && performance.now() < triedUntil; tries += 1) {
    const [outcome] = await settleReports(resources, [report], 'wait');
    if (outcome?.kind === 'decided') return outcome.decision;
  }
  throw new StorageUnavailable('contended');
}

function charsOf({ output, blockedOn, result }: Report): number {
  const ofResult = result === null ? 0 : JSON.stringify(result).length;
  return (output?.length ?? 0) + (blockedOn?.length ?? 0) + ofResult;
}
