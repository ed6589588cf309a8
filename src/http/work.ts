import { createRoute, z } from '@hono/zod-openapi';
import { nameOrNull } from '../domain/names.ts';
import { ENDED_STATUSES, LIVE_STATUSES } from '../domain/work.ts';
import { dispatchWork } from '../operations/dispatch-work.ts';
import { listWork, readWork } from '../operations/read-work.ts';
import { withdrawWork } from '../operations/withdraw-work.ts';
import type { Resources } from '../resources.ts';
import { jsonBody, readBody } from './body.ts';
import { idempotencyHeader, idempotencyKeyOf, idempotencyReplayed } from './idempotency-key.ts';
import { createRouter } from './router.ts';
import { renderWork, renderWorkDetail, workDetailOut, workOut } from './work-wire.ts';
import {
  clientKey,
  duration,
  keyOrEmpty,
  instant,
  instantOut,
  jsonAnswer,
  listOf,
  listOut,
  listQuery,
  name,
  problemResponses,
  sessionId,
  sessionParams,
  title,
} from './wire.ts';

const dispatchBody = z.object({
  child_session_id: sessionId,
  agent: name.nullish(),
  title: title.nullish(),
  created_by: keyOrEmpty.nullish(),
  deadline_seconds: duration.nullish(),
});

const dispatchedOut = z
  .object({
    work_id: z.string(),
    parent_session_id: z.string(),
    child_session_id: z.string(),
    agent: z.string(),
    title: z.string(),
    status: z.literal('launching'),
    created_at: instant,
  })
  .openapi('DispatchedWork');

const workParams = z.object({ work_id: clientKey });
const workQuery = listQuery.extend({
  status: z.enum([...LIVE_STATUSES, ...ENDED_STATUSES]).optional(),
});
const tags = ['Work'];

/** `/sessions/{id}/work` and `/work/{work_id}`: what parents dispatch, and what became of it. */
export function workRoutes(resources: Resources) {
  const routes = createRouter();

  routes.openapi(
    createRoute({
      method: 'post',
      path: '/sessions/{id}/work',
      operationId: 'dispatchWork',
      summary: 'Dispatch work to a child',
      description: 'Begins a new turn of the child. Names left out are those of its snapshot.',
      tags,
      request: { params: sessionParams, headers: idempotencyHeader, body: jsonBody(dispatchBody) },
      responses: {
        201: { ...jsonAnswer('The work entry', dispatchedOut), headers: idempotencyReplayed },
        ...problemResponses(400, 404, 409, 413, 415, 422),
      },
    }),
    async (c) => {
      const { id } = c.req.valid('param');
      const key = idempotencyKeyOf(c.req.header('idempotency-key'));
      const body = await readBody(c, dispatchBody);
      const dispatch = {
        tenantId: c.get('tenantId'),
        parentId: id,
        childId: body.child_session_id,
        agent: nameOrNull(body.agent),
        title: body.title ?? null,
        createdBy: body.created_by || null,
        deadlineSeconds: body.deadline_seconds ?? null,
      };
      const path = `/v1/sessions/${encodeURIComponent(id)}/work`;
      const work = await dispatchWork(resources, dispatch, { path, key });
      if (work.replayed) c.header('Idempotency-Replayed', 'true');
      return c.json(
        {
          work_id: work.workId,
          parent_session_id: work.parentSessionId,
          child_session_id: work.childSessionId,
          agent: work.agent,
          title: work.title,
          status: 'launching' as const,
          created_at: instantOut(work.createdAt),
        },
        201,
      );
    },
  );

  routes.openapi(
    createRoute({
      method: 'get',
      path: '/sessions/{id}/work',
      operationId: 'listWork',
      summary: 'What the session has dispatched, newest first',
      tags,
      request: { params: sessionParams, query: workQuery },
      responses: { 200: jsonAnswer('A page', listOf(workOut)), ...problemResponses(400, 404) },
    }),
    async (c) => {
      const { limit, after, status } = c.req.valid('query');
      const { work, hasMore } = await listWork(resources, {
        tenantId: c.get('tenantId'),
        parentId: c.req.valid('param').id,
        status: status ?? null,
        after: after ?? null,
        limit,
      });
      return c.json(
        listOut(work.map(renderWork), hasMore, (entry) => entry.work_id),
        200,
      );
    },
  );

  routes.openapi(
    createRoute({
      method: 'get',
      path: '/work/{work_id}',
      operationId: 'getWork',
      summary: 'A work entry with its whole output',
      tags,
      request: { params: workParams },
      responses: { 200: jsonAnswer('The entry', workDetailOut), ...problemResponses(400, 404) },
    }),
    async (c) => {
      const { work_id: workId } = c.req.valid('param');
      const work = await readWork(resources, { tenantId: c.get('tenantId'), workId });
      return c.json(renderWorkDetail(work), 200);
    },
  );

  routes.openapi(
    createRoute({
      method: 'delete',
      path: '/work/{work_id}',
      operationId: 'withdrawWork',
      summary: 'Withdraw a dispatch whose launch failed',
      tags,
      request: { params: workParams },
      responses: { 204: { description: 'Withdrawn' }, ...problemResponses(400, 404, 409) },
    }),
    async (c) => {
      const { work_id: workId } = c.req.valid('param');
      await withdrawWork(resources, { tenantId: c.get('tenantId'), workId });
      return c.body(null, 204);
    },
  );

  return routes;
}
