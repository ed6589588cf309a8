import { randomUUID } from 'node:crypto';
import type { Context } from 'hono';
import { routePath } from 'hono/route';
import { Refusal } from './domain/refusal.ts';
import { delegationRoutes } from './http/delegations.ts';
import { openApiDocument } from './http/document.ts';
import { eventRoutes } from './http/events.ts';
import { inboxRoutes } from './http/inbox.ts';
import { livenessRoutes } from './http/liveness.ts';
import { operationsRoutes, type Unready } from './http/operations.ts';
import { parkedRoutes } from './http/parked.ts';
import { answerError, answerUnrouted } from './http/problem.ts';
import { createRouter, type Env } from './http/router.ts';
import { sessionRoutes } from './http/sessions.ts';
import { streamRoutes } from './http/stream.ts';
import { viewerRoutes } from './http/viewers.ts';
import { webhookRoutes } from './http/webhooks.ts';
import { workRoutes } from './http/work.ts';
import { isLoopbackHost, isLoopbackOrigin } from './platform/loopback.ts';
import type { Resources } from './resources.ts';

export interface AppOptions {
  /** A longer body is refused. */
  maxBodyBytes: number;
  /** Serve only what names this machine in Host and Origin: for a service without tokens. */
  loopbackOnly: boolean;
  /** Each answer ends its connection, so that clients go elsewhere. */
  isDraining: () => boolean;
  /** What `/readyz` says. */
  unready: () => Promise<Unready>;
}

/** Until there are tokens, all that is stored belongs to one tenant. */
const TENANT = 'default';
const METHODS = ['GET', 'POST', 'PUT', 'DELETE', 'PATCH'];
const REQUEST_ID = /^[\u0021-\u007e]{1,128}$/;
/** A target whose path has a segment `.` or `..`, encoded or not. */
const DOT_SEGMENT = /^[^?#]*\/(?:\.|%2e){1,2}(?:[/?#]|$)/i;

/** The routes behind what every request passes; opens nothing. */
export function createApp(resources: Resources, options: AppOptions) {
  const app = createRouter();
  let document: ReturnType<typeof openApiDocument> | undefined;

  // One middleware for all of it: each one is paid for by every report (docs/BENCHMARKS.md).
  app.use(async function admit(c, next) {
    const startedAt = performance.now();
    const requestId = requestIdOf(c.req.header('x-request-id'));
    c.set('requestId', requestId);
    c.set('tenantId', TENANT);
    c.set('log', resources.log);
    c.header('X-Request-Id', requestId);

    const refusal = inadmissible(c, options);
    if (refusal === null) await next();
    else c.res = answerError(refusal, c);

    if (options.isDraining()) c.header('Connection', 'close');
    observe(c, resources, performance.now() - startedAt);
  });

  for (const routes of [
    delegationRoutes,
    eventRoutes,
    inboxRoutes,
    livenessRoutes,
    parkedRoutes,
    sessionRoutes,
    streamRoutes,
    viewerRoutes,
    webhookRoutes,
    workRoutes,
  ]) {
    app.route('/v1', routes(resources));
  }
  app.route(
    '/',
    operationsRoutes(resources, {
      unready: options.unready,
      document: () => (document ??= openApiDocument(app)),
    }),
  );

  app.onError(answerError);
  app.notFound((c) => {
    const routed = (method: string) =>
      app.router.match(method, c.req.path)[0].some(([[, route]]) => route.method === method);
    return answerUnrouted(c, METHODS.filter(routed));
  });
  return app;
}

function requestIdOf(given: string | undefined): string {
  return given !== undefined && REQUEST_ID.test(given) ? given : randomUUID();
}

/** Why the request is not served, whatever it asks for. */
function inadmissible(c: Context<Env>, options: AppOptions): Refusal | null {
  if (options.loopbackOnly) {
    const origin = c.req.header('origin');
    const foreign =
      !isLoopbackHost(c.req.header('host') ?? '') ||
      (origin !== undefined && !isLoopbackOrigin(origin));
    if (foreign) return new Refusal('forbidden', 'Only requests of this machine are served.');
  }
  if (!isDecodable(c.req.url)) {
    return new Refusal('invalid_input', 'The path is not properly percent-encoded.');
  }
  // Resolved, as URLs are, `/v1/sessions/../work` would be the path of another thing.
  if (DOT_SEGMENT.test(c.env.incoming.url ?? '')) {
    return new Refusal('invalid_input', 'A segment of the path is . or .., which is no id.');
  }
  return limitBody(c, options.maxBodyBytes);
}

/** Where percent-encoding is broken the router would match the path as it stands. */
function isDecodable(url: string): boolean {
  if (!url.includes('%')) return true;
  try {
    decodeURIComponent(url.split('?', 1)[0] ?? '');
    return true;
  } catch {
    return false;
  }
}

/** Refuses a body that says it is too long, and has one that does not say cut off on the way. */
function limitBody(c: Context<Env>, maxBytes: number): Refusal | null {
  const tooLarge = () =>
    new Refusal('payload_too_large', `A body may have ${maxBytes} bytes at most.`);
  const length = c.req.header('content-length');
  if (length !== undefined) return Number(length) > maxBytes ? tooLarge() : null;
  if (c.req.header('transfer-encoding') === undefined) return null;

  let bytes = 0;
  const limited = c.req.raw.body?.pipeThrough(
    new TransformStream<Uint8Array, Uint8Array>({
      transform: (chunk, controller) => {
        bytes += chunk.byteLength;
        if (bytes > maxBytes) controller.error(tooLarge());
        else controller.enqueue(chunk);
      },
    }),
  );
  if (limited !== undefined) {
    c.req.raw = new Request(c.req.raw, { method: c.req.method, body: limited, duplex: 'half' });
  }
  return null;
}

/** Counts the request, and logs it without anything that the client has sent but its id. */
function observe(c: Context<Env>, { metrics, log }: Resources, ms: number): void {
  const pattern = routePath(c, -1);
  const route = pattern === '/*' ? 'none' : pattern;
  const { method } = c.req;
  const { status } = c.res;
  metrics.requests.observe({ method, route, status: String(status) }, ms / 1000);
  const requestId = c.get('requestId');
  log.debug({ requestId, method, route, status, ms: Math.round(ms) }, 'request');
}
