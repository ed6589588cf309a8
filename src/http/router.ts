import type { HttpBindings } from '@hono/node-server';
import { OpenAPIHono } from '@hono/zod-openapi';
import type { ZodError } from 'zod';
import { Refusal } from '../domain/refusal.ts';
import type { Log } from '../platform/log.ts';

/** What the middleware of app.ts has settled before a handler runs: `c.get('tenantId')`. */
export interface Env {
  Bindings: HttpBindings;
  Variables: {
    requestId: string;
    tenantId: string;
    log: Log;
  };
}

/**
 * A router whose routes are part of the OpenAPI document; app.ts mounts it under `/v1`. Path and
 * query are validated by their schemas, a body is declared with `jsonBody` and read with `readBody`,
 * and what is wrong with a request is thrown as a Refusal, never answered here:
 *
 *     const openBody = z.object({ note: text().nullish() });
 *
 *     export function inboxRoutes(resources: Resources) {
 *       const routes = createRouter();
 *       routes.openapi(
 *         createRoute({
 *           method: 'put',
 *           path: '/sessions/{id}/inbox',
 *           operationId: 'openInbox',
 *           summary: 'Open the inbox',
 *           tags: ['Inbox'],
 *           request: { params: sessionParams, body: jsonBody(openBody, { optional: true }) },
 *           responses: {
 *             200: jsonAnswer('The inbox is open', inboxOut),
 *             ...problemResponses(400, 404),
 *           },
 *         }),
 *         async (c) => {
 *           const { id } = c.req.valid('param');
 *           const body = await readBody(c, openBody, { optional: true });
 *           const opened = await openInbox(resources, c.get('tenantId'), id);
 *           return c.json({ open: true, opened_at: instantOut(opened.at) }, 200);
 *         },
 *       );
 *       return routes;
 *     }
 *
 * Answer with `c.json` or `c.body`: a Response made by hand lacks X-Request-Id.
 */
export function createRouter(): OpenAPIHono<Env> {
  return new OpenAPIHono<Env>({
    defaultHook: (result) => {
      if (!result.success) throw invalidInput(result.error);
    },
  });
}

/** The 400 that lists what a schema found wrong, each with its path in the request. */
export function invalidInput({ issues }: Pick<ZodError, 'issues'>): Refusal {
  const errors = issues
    .slice(0, ERRORS_MAX)
    .map(({ path, message }) => ({ path: path.map(String).join('.'), message }));
  const [first] = errors;
  const where = first === undefined || first.path === '' ? 'body' : first.path;
  return new Refusal('invalid_input', `${where}: ${first?.message ?? 'not valid'}`, { errors });
}

/** A body of a thousand wrong entries needs no answer of a thousand lines. */
const ERRORS_MAX = 20;
