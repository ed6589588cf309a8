import { readFileSync } from 'node:fs';
import type { OpenAPIHono } from '@hono/zod-openapi';
import type { JSONValue } from 'hono/utils/types';
import type { Env } from './router.ts';
import { problemAnswer } from './wire.ts';

const VERSION = (
  JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
    version: string;
  }
).version;

/**
 * The OpenAPI document of all routes of the app. Made from the schemas that validate the
 * requests; to be called when every route is mounted.
 */
export function openApiDocument(app: OpenAPIHono<Env>): Record<string, JSONValue> {
  const document = app.getOpenAPI31Document({
    openapi: '3.1.0',
    info: {
      title: 'subagent-inbox',
      version: VERSION,
      description: "Delivers the results of sub-agents to their parent's inbox, each exactly once.",
      license: { name: 'MIT', url: 'https://opensource.org/license/mit' },
    },
    servers: [{ url: '/' }],
    tags: [
      { name: 'Events', description: 'What forwarders report' },
      { name: 'Inbox', description: 'What parents read' },
      { name: 'Work', description: 'What parents dispatch' },
      {
        name: 'Delegations',
        description: 'Work that is joined: what parents hand over in one call',
      },
      { name: 'Liveness', description: 'What runners tell of those who work' },
      { name: 'Sessions', description: 'Who they are' },
      { name: 'Viewers', description: 'Who watches, and leaves for good' },
      { name: 'Wakes', description: 'How an idle parent learns of a result' },
      { name: 'Operations', description: 'How the service is' },
    ],
  });
  for (const path of Object.values(document.paths ?? {})) {
    for (const operation of Object.values(path) as { responses: Record<string, unknown> }[]) {
      operation.responses['default'] = problemAnswer;
    }
  }
  return JSON.parse(JSON.stringify(document)) as Record<string, JSONValue>;
}
