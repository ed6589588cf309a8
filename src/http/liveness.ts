import { createRoute, z } from '@hono/zod-openapi';
import { nameOrNull } from '../domain/names.ts';
import { ENDED_STATUSES, LIVE_STATUSES } from '../domain/work.ts';
import { receiveHeartbeat } from '../operations/receive-heartbeat.ts';
import { renewRunnerLease } from '../operations/renew-lease.ts';
import type { Resources } from '../resources.ts';
import { jsonBody, readBody } from './body.ts';
import { createRouter } from './router.ts';
import {
  clampedWhole,
  clientKey,
  keyOrEmpty,
  jsonAnswer,
  problemResponses,
  sessionParams,
} from './wire.ts';

const LEASE_DEFAULT_SECONDS = 60;
const LEASE_MAX_SECONDS = 86_400;

const heartbeatBody = z.object({
  api_calls: clampedWhole({ min: 0, max: Number.MAX_SAFE_INTEGER }).nullish(),
  current_tool: keyOrEmpty
    .nullish()
    .meta({ description: 'The tool that the child is in; absent: none' }),
  last_activity_at: z.union([keyOrEmpty, z.number()]).nullish().meta({
    description: 'Whatever the runner uses to tell one activity from the next; only compared',
  }),
  runner_id: keyOrEmpty.nullish(),
});

const heartbeatOut = z
  .object({
    work_id: z.string().nullable(),
    status: z.enum([...LIVE_STATUSES, ...ENDED_STATUSES]).nullable(),
    interrupt_requested: z.boolean(),
    reason: z.string().nullable().openapi({ description: 'Why the child is to be stopped' }),
  })
  .openapi('Heartbeat');

const leaseBody = z.object({
  lease_seconds: z
    .number()
    .gt(0)
    .transform((seconds) => Math.min(seconds, LEASE_MAX_SECONDS))
    .nullish()
    .meta({ description: `Above ${LEASE_MAX_SECONDS} it counts as ${LEASE_MAX_SECONDS}` }),
});

const leaseOut = z
  .object({
    interrupts: z.array(
      z.object({ session_id: z.string(), work_id: z.string(), reason: z.string() }),
    ),
  })
  .openapi('Lease');

const runnerParams = z.object({ runner_id: clientKey });
const tags = ['Liveness'];

/** `/sessions/{id}/heartbeat` and `/runners/{runner_id}`: what runners say of children and of themselves. */
export function livenessRoutes(resources: Resources) {
  const routes = createRouter();

  routes.openapi(
    createRoute({
      method: 'post',
      path: '/sessions/{id}/heartbeat',
      operationId: 'postHeartbeat',
      summary: 'Say that a child lives, and hear whether it is to be stopped',
      description:
        'A change of what it says is progress, timed by when it arrives. The first heartbeat ' +
        'of a work entry starts its stall clock. A deleted session is to be stopped.',
      tags,
      request: { params: sessionParams, body: jsonBody(heartbeatBody, { optional: true }) },
      responses: {
        200: jsonAnswer('The current work entry of the child', heartbeatOut),
        ...problemResponses(400, 404, 413, 415),
      },
    }),
    async (c) => {
      const body = await readBody(c, heartbeatBody, { optional: true });
      const { workId, status, stopReason } = await receiveHeartbeat(resources, {
        tenantId: c.get('tenantId'),
        sessionId: c.req.valid('param').id,
        apiCalls: body.api_calls ?? null,
        currentTool: nameOrNull(body.current_tool),
        lastActivityAt: body.last_activity_at == null ? null : String(body.last_activity_at),
        runnerId: nameOrNull(body.runner_id),
      });
      return c.json(
        {
          work_id: workId,
          status,
          interrupt_requested: stopReason !== null,
          reason: stopReason,
        },
        200,
      );
    },
  );

  routes.openapi(
    createRoute({
      method: 'put',
      path: '/runners/{runner_id}',
      operationId: 'renewRunnerLease',
      summary: 'Renew the lease of a runner, and hear which of its children are to be stopped',
      description:
        'When the lease runs out, the work of its children that has not ended becomes `unknown`.',
      tags,
      request: { params: runnerParams, body: jsonBody(leaseBody, { optional: true }) },
      responses: {
        200: jsonAnswer('What is to be stopped', leaseOut),
        ...problemResponses(400, 413, 415),
      },
    }),
    async (c) => {
      const body = await readBody(c, leaseBody, { optional: true });
      const seconds = body.lease_seconds ?? LEASE_DEFAULT_SECONDS;
      const interrupts = await renewRunnerLease(resources, {
        tenantId: c.get('tenantId'),
        runnerId: c.req.valid('param').runner_id,
        leaseMs: Math.ceil(seconds * 1000),
      });
      const asked = interrupts.map(({ sessionId, workId, reason }) => ({
        session_id: sessionId,
        work_id: workId,
        reason,
      }));
      return c.json({ interrupts: asked }, 200);
    },
  );

  return routes;
}
