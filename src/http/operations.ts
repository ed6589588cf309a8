import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createRoute, z } from '@hono/zod-openapi';
import type { Context } from 'hono';
import type { JSONValue } from 'hono/utils/types';
import { REFUSALS, Refusal, type RefusalCode } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import { createRouter, type Env } from './router.ts';
import { jsonAnswer, problemResponses } from './wire.ts';

/** Why the service should not be sent requests; null: it should. */
export type Unready = { reason: 'draining' | 'database' | 'migrations'; detail: string } | null;

export interface OperationsOptions {
  unready: () => Promise<Unready>;
  /** The OpenAPI document. */
  document: () => Record<string, JSONValue>;
}

const alive = z.object({ status: z.literal('alive') });
const ready = z.object({ status: z.literal('ready') });
const problemPage = z.object({
  type: z.string(),
  error: z.string(),
  title: z.string(),
  status: z.int(),
});

const tags = ['Operations'];
const asText = (description: string, type: string) => ({
  description,
  content: { [type]: { schema: z.string() } },
});

/** What those who run the service ask: `/livez`, `/readyz`, `/metrics`, the document and its page. */
export function operationsRoutes(resources: Resources, options: OperationsOptions) {
  const routes = createRouter();

  routes.openapi(
    createRoute({
      method: 'get',
      path: '/livez',
      operationId: 'getLiveness',
      summary: 'Does the process answer?',
      tags,
      responses: { 200: jsonAnswer('It does', alive) },
    }),
    (c) => c.json({ status: 'alive' as const }, 200),
  );

  routes.openapi(
    createRoute({
      method: 'get',
      path: '/readyz',
      operationId: 'getReadiness',
      summary: 'Should requests be sent here?',
      description: '503 while the database cannot be used or is not migrated, and from SIGTERM on.',
      tags,
      responses: { 200: jsonAnswer('They should', ready), ...problemResponses() },
    }),
    async (c) => {
      const unready = await options.unready();
      if (unready !== null) {
        throw new Refusal('unavailable', unready.detail, { reason: unready.reason });
      }
      return c.json({ status: 'ready' as const }, 200);
    },
  );

  routes.openapi(
    createRoute({
      method: 'get',
      path: '/metrics',
      operationId: 'getMetrics',
      summary: 'Counts and times, for Prometheus',
      tags,
      responses: { 200: asText('The metrics', 'text/plain') },
    }),
    async (c) => {
      const { contentType, text } = await resources.metrics.render();
      return c.body(text, 200, { 'Content-Type': contentType });
    },
  );

  routes.openapi(
    createRoute({
      method: 'get',
      path: '/problems/{code}',
      operationId: 'getProblem',
      summary: 'What an error code means',
      tags,
      request: { params: z.object({ code: z.string() }) },
      responses: { 200: jsonAnswer('The code', problemPage), ...problemResponses(404) },
    }),
    (c) => {
      const { code } = c.req.valid('param');
      if (!isRefusalCode(code)) throw new Refusal('not_found', 'There is no such error code.');
      const { title, status } = REFUSALS[code];
      return c.json({ type: `/problems/${code}`, error: code, title, status }, 200);
    },
  );

  routes.openapi(
    createRoute({
      method: 'get',
      path: '/openapi.json',
      operationId: 'getDocument',
      summary: 'This document',
      tags,
      responses: { 200: jsonAnswer('OpenAPI 3.1', z.record(z.string(), z.unknown())) },
    }),
    (c) => c.json(options.document(), 200),
  );

  routes.openapi(
    createRoute({
      method: 'get',
      path: '/docs',
      operationId: 'getDocs',
      summary: 'This document, to be read and tried out',
      tags,
      responses: { 200: asText('The page', 'text/html') },
    }),
    (c) => answerAsset(c, DOCS_PAGE, 'text/html; charset=utf-8'),
  );

  for (const [name, { type, read }] of Object.entries(DOCS_ASSETS)) {
    routes.get(`/docs/${name}`, (c) => answerAsset(c, read(), type));
  }
  return routes;
}

function isRefusalCode(code: string): code is RefusalCode {
  return Object.hasOwn(REFUSALS, code);
}

/** The page may load nothing from elsewhere, run nothing inline, and be framed by nobody. */
const CONTENT_SECURITY_POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

function answerAsset(c: Context<Env>, body: string, type: string) {
  return c.body(body, 200, {
    'Content-Type': type,
    'Content-Security-Policy': CONTENT_SECURITY_POLICY,
    'X-Content-Type-Options': 'nosniff',
    'Cache-Control': 'no-cache',
  });
}

// Addresses are relative, so that the page also works below a path of a proxy.
const DOCS_PAGE = `<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <title>subagent-inbox</title>
    <link rel="icon" href="data:,">
    <link rel="stylesheet" href="docs/swagger-ui.css">
  </head>
  <body>
    <div id="document"></div>
    <script src="docs/swagger-ui-bundle.js"></script>
    <script src="docs/start.js"></script>
  </body>
</html>
`;

const DOCS_START = `SwaggerUIBundle({
  url: 'openapi.json',
  dom_id: '#document',
  deepLinking: true,
  validatorUrl: null,
});
`;

const require = createRequire(import.meta.url);

const DOCS_ASSETS = {
  'swagger-ui.css': {
    type: 'text/css; charset=utf-8',
    read: () => readOnce(require.resolve('swagger-ui-dist/swagger-ui.css')),
  },
  'swagger-ui-bundle.js': {
    type: 'text/javascript; charset=utf-8',
    read: () => readOnce(require.resolve('swagger-ui-dist/swagger-ui-bundle.js')),
  },
  'start.js': { type: 'text/javascript; charset=utf-8', read: () => DOCS_START },
};

const alreadyRead = new Map<string, string>();

/** Read when first asked for: most instances never are, and it is 1.5 MB. */
function readOnce(file: string): string {
  const text = alreadyRead.get(file) ?? readFileSync(file, 'utf8');
  alreadyRead.set(file, text);
  return text;
}
