import type { Log } from './log.ts';

/*
 * The HTTP client of the service that knows the sessions which this one has not heard of. Whatever
 * that service does, each question is answered within the time limit, and it is left alone for a
 * while once it has failed several times in a row.
 */

export type UpstreamAnswer<T> =
  | { kind: 'found'; value: T }
  /** It answered that there is no such thing. */
  | { kind: 'absent' }
  /** It did not answer in time, not understandably, or was not asked. */
  | { kind: 'unavailable' };

export interface Upstream {
  /** The session's snapshot as upstream has it, unchecked. */
  readSession(id: string): Promise<UpstreamAnswer<Record<string, unknown>>>;
  /** The session's last messages, newest first, unchecked. */
  readMessages(id: string): Promise<UpstreamAnswer<unknown[]>>;
  /** Whether it failed so often that a question would not reach it at the moment. */
  isLeftAlone(): boolean;
}

export interface UpstreamOptions {
  /** Before `/v1/sessions/…`; with or without a slash at its end. */
  url: string;
  token: string | null;
  /** For each question, from asking to the last byte of the answer. */
  timeoutMs: number;
  log: Log;
  /** A clock that nothing sets, in milliseconds. */
  now?: () => number;
}

/** So many failures in a row, and upstream is not asked for a while. */
export const FAILURES_MAX = 5;
/** How long it is left alone before one question probes it. */
export const OPEN_MS = 5_000;
/** So many questions are under way at most; the others wait, within their time limit. */
export const QUESTIONS_MAX = 64;
/** A snapshot is a handful of names. */
export const SESSION_BYTES_MAX = 1024 * 1024;
/** Twenty messages, of which one may be as large as a report. */
export const MESSAGES_BYTES_MAX = 16 * 1024 * 1024;

/** A client of the service at the URL; it asks one thing at a time per session. */
export function createUpstream(options: UpstreamOptions): Upstream {
  const { token, timeoutMs, log } = options;
  const base = options.url.replace(/\/+$/, '');
  const breaker = createBreaker(options.now ?? (() => performance.now()), log);
  const turnstile = createTurnstile(QUESTIONS_MAX);
  const underWay = new Map<string, Promise<UpstreamAnswer<unknown>>>();

  /** Whoever asks what is being asked already shares that answer. */
  function ask<T>(question: Question<T>): Promise<UpstreamAnswer<T>> {
    const same = underWay.get(question.path);
    if (same) return same as Promise<UpstreamAnswer<T>>;
    const answer = askInTurn(question).finally(() => underWay.delete(question.path));
    underWay.set(question.path, answer);
    return answer;
  }

  async function askInTurn<T>(question: Question<T>): Promise<UpstreamAnswer<T>> {
    const signal = AbortSignal.timeout(timeoutMs);
    if (!(await turnstile.enter(signal))) return { kind: 'unavailable' };
    try {
      if (!breaker.admits()) return { kind: 'unavailable' };
      return await askNow(question, signal);
    } finally {
      turnstile.leave();
    }
  }

  async function askNow<T>(question: Question<T>, signal: AbortSignal): Promise<UpstreamAnswer<T>> {
    try {
      const response = await fetch(`${base}${question.path}`, {
        headers: {
          accept: 'application/json',
          ...(token === null ? {} : { authorization: `Bearer ${token}` }),
        },
        redirect: 'manual',
        signal,
      });
      const body = response.status === 200 ? await readAtMost(response, question.bytesMax) : null;
      if (body === null) await response.body?.cancel();
      breaker.note(!isPassing(response.status));
      return understand(question, response.status, body);
    } catch (error) {
      log.debug({ err: error }, 'upstream did not answer');
      breaker.note(false);
      return { kind: 'unavailable' };
    }
  }

  function understand<T>(
    question: Question<T>,
    status: number,
    body: string | null,
  ): UpstreamAnswer<T> {
    if (status === 404 || status === 410) return { kind: 'absent' };
    const answer = body === null ? null : question.read(parseJson(body));
    if (answer !== null) return answer;
    log.warn({ status }, 'the answer of upstream is of no use');
    return { kind: 'unavailable' };
  }

  return {
    readSession: (id) =>
      ask({
        path: pathOf(id),
        bytesMax: SESSION_BYTES_MAX,
        read: (body) => (isRecord(body) ? { kind: 'found', value: body } : null),
      }),
    readMessages: (id) =>
      ask({
        path: `${pathOf(id)}/items?type=message&order=desc&limit=20`,
        bytesMax: MESSAGES_BYTES_MAX,
        read: (body) =>
          isRecord(body) && Array.isArray(body['data'])
            ? { kind: 'found', value: body['data'] }
            : null,
      }),
    isLeftAlone: () => breaker.isOpen(),
  };
}

interface Question<T> {
  path: string;
  bytesMax: number;
  /** null: not understood. */
  read: (body: unknown) => UpstreamAnswer<T> | null;
}

function pathOf(id: string): string {
  return `/v1/sessions/${encodeURIComponent(id.toWellFormed())}`;
}

/** True for answers that say of the whole service that it cannot answer at the moment. */
function isPassing(status: number): boolean {
  return status >= 500 || status === 408 || status === 425 || status === 429;
}

/** The body as text; null if it is larger. */
async function readAtMost(response: Response, bytesMax: number): Promise<string | null> {
  if (response.body === null) return '';
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of response.body as unknown as AsyncIterable<Uint8Array>) {
    bytes += chunk.byteLength;
    if (bytes > bytesMax) return null;
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}

function parseJson(body: string): unknown {
  try {
    return JSON.parse(body);
  } catch {
    return undefined;
  }
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/**
 * Closed, until so many failures in a row have been noted; then open, admitting nothing; then
 * half-open, admitting one question whose outcome closes it or opens it anew.
 */
function createBreaker(now: () => number, log: Log) {
  let failures = 0;
  let opensAgainAt = 0;
  let isProbing = false;

  function isOpen(): boolean {
    return failures >= FAILURES_MAX && (isProbing || now() < opensAgainAt);
  }

  return {
    isOpen,
    admits(): boolean {
      if (isOpen()) return false;
      isProbing = failures >= FAILURES_MAX;
      return true;
    },
    note(answered: boolean): void {
      isProbing = false;
      if (answered) {
        if (failures >= FAILURES_MAX) log.info('upstream answers again');
        failures = 0;
        return;
      }
      failures += 1;
      if (failures < FAILURES_MAX) return;
      if (failures === FAILURES_MAX) log.warn('upstream does not answer and is left alone a while');
      opensAgainAt = now() + OPEN_MS;
    },
  };
}

/** Lets so many in at a time, in the order in which they came. */
function createTurnstile(max: number) {
  let inside = 0;
  const waiting: (() => void)[] = [];

  return {
    /** False if the signal came first. */
    async enter(signal: AbortSignal): Promise<boolean> {
      if (inside < max) {
        inside += 1;
        return true;
      }
      return await new Promise((resolve) => {
        const enter = () => {
          signal.removeEventListener('abort', giveUp);
          resolve(true);
        };
        const giveUp = () => {
          waiting.splice(waiting.indexOf(enter), 1);
          resolve(false);
        };
        signal.addEventListener('abort', giveUp, { once: true });
        waiting.push(enter);
      });
    },
    /** Whoever has waited longest takes the place. */
    leave(): void {
      const next = waiting.shift();
      if (next) next();
      else inside -= 1;
    },
  };
}
