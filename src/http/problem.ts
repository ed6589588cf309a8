import { randomUUID } from 'node:crypto';
import type { Context } from 'hono';
import { HTTPException } from 'hono/http-exception';
import type { ContentfulStatusCode } from 'hono/utils/http-status';
import { REFUSALS, Refusal, type RefusalCode, type RefusalDetails } from '../domain/refusal.ts';
import { isPassing } from '../operations/unavailable.ts';
import type { Env } from './router.ts';

/*
 * The only place where an error becomes an answer: `application/problem+json` (RFC 9457) with the
 * stable code in `error`. What is not a refusal is a defect: it is logged, and the client gets its
 * request id and nothing else.
 */

export const PROBLEM_TYPE = 'application/problem+json';

/** The members of every error's body. */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  instance: string;
  error: RefusalCode;
  reason?: string;
  outcome?: string;
  retry_after_seconds?: number;
  errors?: { path: string; message: string }[];
}

/** Answers whatever a handler or a middleware has thrown. */
export function answerError(error: unknown, c: Context<Env>): Response {
  return answerRefusal(c, refusalFor(error, c));
}

/** Answers a request that no route takes: 405 with `Allow` where another method would do, else 404. */
export function answerUnrouted(c: Context<Env>, allowed: readonly string[]): Response {
  if (allowed.length === 0) return answerRefusal(c, new Refusal('not_found', 'No such resource.'));
  c.header('Allow', allowed.join(', '));
  const detail = `${c.req.method} is not possible here; ${allowed.join(', ')} is.`;
  return answerRefusal(c, new Refusal('method_not_allowed', detail));
}

/** Answers what is not a request that the app could be asked: no Host, or a target that is no URL. */
export function answerUnreadable(): Response {
  const { status, headers, body } = unreadable(400);
  return new Response(body, { status, headers });
}

/**
 * The answer to what cannot be read as a request at all, as far as `status` tells why: 400, 408, 413
 * or 431.
 */
export function unreadable(status: UnreadableStatus) {
  const code = status === 413 ? 'payload_too_large' : 'invalid_input';
  const problem: Problem = {
    type: `/problems/${code}`,
    title: REFUSALS[code].title,
    status,
    detail: UNREADABLE[status],
    instance: '/',
    error: code,
  };
  const headers = { 'Content-Type': PROBLEM_TYPE, 'X-Request-Id': randomUUID() };
  return { status, headers, body: JSON.stringify(problem) };
}

export type UnreadableStatus = keyof typeof UNREADABLE;

const UNREADABLE = {
  400: 'The request cannot be read: its line, its headers or the coding of its body.',
  408: 'The request took too long to arrive.',
  413: 'The extensions of the chunks of the body are too large.',
  431: 'The head of the request is too large.',
};

function answerRefusal(c: Context<Env>, { code, message, details }: Refusal): Response {
  const problem = problemOf(c, code, message, details);
  if (problem.retry_after_seconds !== undefined) {
    c.header('Retry-After', String(problem.retry_after_seconds));
  }
  c.header('Content-Type', PROBLEM_TYPE);
  return c.body(JSON.stringify(problem), problem.status as ContentfulStatusCode);
}

function problemOf(
  c: Context<Env>,
  code: RefusalCode,
  detail: string,
  { reason, outcome, retryAfterSeconds, errors }: RefusalDetails,
): Problem {
  const { status, title } = REFUSALS[code];
  const retryAfter = retryAfterSeconds ?? (status === 429 || status === 503 ? 1 : undefined);
  return {
    type: `/problems/${code}`,
    title,
    status,
    detail,
    instance: new URL(c.req.url).pathname,
    error: code,
    ...(reason === undefined ? {} : { reason }),
    ...(outcome === undefined ? {} : { outcome }),
    ...(retryAfter === undefined ? {} : { retry_after_seconds: retryAfter }),
    ...(errors === undefined ? {} : { errors }),
  };
}

function refusalFor(error: unknown, c: Context<Env>): Refusal {
  if (error instanceof Refusal) return error;
  if (isPassing(error)) {
    // Not louder: in an outage there is one for each request, and the store says what is wrong.
    c.get('log').debug(lineOf(error, c), 'a request could not be served');
    return new Refusal('unavailable', 'The service cannot do this at the moment; try again.');
  }
  if (error instanceof HTTPException && error.status === 400) {
    return new Refusal('invalid_input', 'The request cannot be read.');
  }
  c.get('log').error(lineOf(error, c), 'a request failed');
  return new Refusal('internal', `The request failed here; its id is ${c.get('requestId')}.`);
}

function lineOf(error: unknown, c: Context<Env>): object {
  return { requestId: c.get('requestId'), err: error };
}
