import { createRoute, z } from '@hono/zod-openapi';
import { END_REASONS } from '../domain/closing.ts';
import { attachViewer } from '../operations/attach-viewer.ts';
import { detachViewer } from '../operations/detach-viewer.ts';
import { renewViewer } from '../operations/renew-viewer.ts';
import type { Resources } from '../resources.ts';
import { createRouter } from './router.ts';
import { clientKey, jsonAnswer, problemResponses, sessionParams } from './wire.ts';

const viewerParams = sessionParams.extend({ viewer_id: clientKey });

/** An empty one counts as absent. */
const endReason = z.enum([...END_REASONS, '']);

const viewerOut = z
  .object({
    viewer_id: z.string(),
    lease_seconds: z.number().openapi({ description: 'Without being renewed it ends then' }),
  })
  .openapi('Viewer');

const tags = ['Viewers'];

/** `/sessions/{id}/viewers`: who watches a session, and leaves it for good. */
export function viewerRoutes(resources: Resources) {
  const routes = createRouter();

  routes.openapi(
    createRoute({
      method: 'post',
      path: '/sessions/{id}/viewers',
      operationId: 'attachViewer',
      summary: 'Watch a session',
      description: 'Takes a close of the session back.',
      tags,
      request: { params: sessionParams },
      responses: { 201: jsonAnswer('The viewer', viewerOut), ...problemResponses(400, 404) },
    }),
    async (c) => {
      const of = { tenantId: c.get('tenantId'), sessionId: c.req.valid('param').id };
      return c.json(renderViewer(await attachViewer(resources, of)), 201);
    },
  );

  routes.openapi(
    createRoute({
      method: 'put',
      path: '/sessions/{id}/viewers/{viewer_id}',
      operationId: 'renewViewer',
      summary: 'Go on watching',
      description: 'A viewer whose lease has run out must attach again.',
      tags,
      request: { params: viewerParams },
      responses: { 200: jsonAnswer('The viewer', viewerOut), ...problemResponses(400, 404) },
    }),
    async (c) => {
      const { id, viewer_id } = c.req.valid('param');
      const of = { tenantId: c.get('tenantId'), sessionId: id, viewerId: viewer_id };
      return c.json(renderViewer(await renewViewer(resources, of)), 200);
    },
  );

  routes.openapi(
    createRoute({
      method: 'delete',
      path: '/sessions/{id}/viewers/{viewer_id}',
      operationId: 'detachViewer',
      summary: 'Stop watching, or leave for good',
      description:
        'The last viewer to leave with an `end_reason` closes the session: its own live work is ' +
        'interrupted, and it dispatches none until somebody watches it again. Harmless again.',
      tags,
      request: {
        params: viewerParams,
        query: z.object({ end_reason: endReason.optional() }),
      },
      responses: { 204: { description: 'The viewer is gone' }, ...problemResponses(400, 404) },
    }),
    async (c) => {
      const { id, viewer_id } = c.req.valid('param');
      const { end_reason } = c.req.valid('query');
      await detachViewer(resources, {
        tenantId: c.get('tenantId'),
        sessionId: id,
        viewerId: viewer_id,
        endReason: end_reason || null,
      });
      return c.body(null, 204);
    },
  );

  return routes;
}

function renderViewer({ viewerId, leaseMs }: { viewerId: string; leaseMs: number }) {
  return { viewer_id: viewerId, lease_seconds: leaseMs / 1000 };
}
