import { createRoute, z } from '@hono/zod-openapi';
import { firstCodePoints, foldWhiteSpace } from '../domain/text.ts';
import { listParked } from '../operations/list-parked.ts';
import type { Resources } from '../resources.ts';
import { createRouter } from './router.ts';
import {
  instant,
  instantOut,
  jsonAnswer,
  listOf,
  listOut,
  listQuery,
  problemResponses,
} from './wire.ts';

/** As much of an output as a list shows, in code points. */
const PREVIEW = 150;

const parkedOut = z
  .object({
    id: z.string(),
    session_id: z.string(),
    parent_session_id: z.string().nullable(),
    status: z.string(),
    reason: z.string(),
    tries: z.int(),
    first_at: instant,
    last_at: instant,
    output_preview: z.string().nullable(),
  })
  .openapi('ParkedReport');

const query = listQuery.extend({ state: z.enum(['parked', 'dead']).default('parked') });

/** `GET /parked`: reports that wait for delivery, and dead letters. */
export function parkedRoutes(resources: Resources) {
  const routes = createRouter();
  routes.openapi(
    createRoute({
      method: 'get',
      path: '/parked',
      operationId: 'listParked',
      summary: 'List parked reports or dead letters',
      tags: ['Events'],
      request: { query },
      responses: {
        200: jsonAnswer('A page, newest first', listOf(parkedOut)),
        ...problemResponses(400),
      },
    }),
    async (c) => {
      const { state, limit, after } = c.req.valid('query');
      const page = { tenantId: c.get('tenantId'), state, limit, after: after ?? null };
      const { reports, hasMore } = await listParked(resources, page);
      const data = reports.map((report) => ({
        id: report.id,
        session_id: report.sessionId,
        parent_session_id: report.parentSessionId,
        status: report.status,
        reason: report.reason,
        tries: report.tries,
        first_at: instantOut(report.firstAt),
        last_at: instantOut(report.lastAt),
        output_preview: report.outputStart === null ? null : preview(report.outputStart),
      }));
      return c.json(
        listOut(data, hasMore, (report) => report.id),
        200,
      );
    },
  );
  return routes;
}

function preview(output: string): string {
  return firstCodePoints(foldWhiteSpace(output), PREVIEW);
}
