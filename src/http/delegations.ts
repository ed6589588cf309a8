import { createRoute, z } from '@hono/zod-openapi';
import type { Context } from 'hono';
import { notifyUnsupported } from '../domain/channel.ts';
import {
  interruptDelegation,
  interruptDelegationsOf,
  interruptForGone,
} from '../operations/cancel-turns.ts';
import { delegate, type Delegated } from '../operations/delegate.ts';
import { GRACE_MS } from '../operations/interrupt-children.ts';
import {
  listDelegations,
  readDelegation,
  waitForDelegation,
  waitForDispatched,
} from '../operations/read-delegations.ts';
import type { Resources } from '../resources.ts';
import { jsonBody, readBody } from './body.ts';
import {
  delegationOut,
  dispatchedOut,
  inlineOut,
  inlineRunningOut,
  listedDelegationOut,
  renderDelegation,
  renderListedDelegation,
  renderResults,
  renderUnits,
} from './delegation-answers.ts';
import { delegationBody, orderOf } from './delegation-requests.ts';
import { idempotencyHeader, idempotencyKeyOf, idempotencyReplayed } from './idempotency-key.ts';
import { preferenceApplied, preferHeader, preferredWait, WAIT_MAX_SECONDS } from './prefer.ts';
import { createRouter, type Env } from './router.ts';
import {
  clamped,
  clientKey,
  jsonAnswer,
  listOf,
  listOut,
  listQuery,
  problemResponses,
  sessionParams,
} from './wire.ts';

const GRACE_MAX_SECONDS = 86_400;
/** The waiting is done by `Prefer: wait`; between two waits there need be no pause. */
const RETRY_AFTER_SECONDS = 1;

/** How long children that are asked to stop may take. */
export const graceIn = clamped({ min: 0, max: GRACE_MAX_SECONDS }).nullish();

/** The same in milliseconds. */
export function graceMsOf(graceSeconds: number | null | undefined): number {
  return graceSeconds == null ? GRACE_MS : Math.ceil(graceSeconds * 1000);
}

const interruptBody = z.object({ grace_seconds: graceIn });
const interruptedOut = z.object({
  interrupted: z.int().min(0).openapi({ description: 'How many children were asked to stop' }),
});

const delegationParams = z.object({ delegation_id: clientKey });
const delegationsQuery = listQuery.extend({ state: z.enum(['active', 'ended']).optional() });
const tags = ['Delegations'];

const headersOfCall = {
  ...idempotencyReplayed,
  ...preferenceApplied,
  Location: {
    description: 'Where its results are to be found',
    schema: { type: 'string' as const },
  },
  'Retry-After': {
    description: 'Of a call that is waited for: seconds until it is worth another look',
    schema: { type: 'string' as const },
  },
};

/** `/sessions/{id}/delegations` and `/delegations/{delegation_id}`: tasks handed over in one call. */
export function delegationRoutes(resources: Resources) {
  const routes = createRouter();

  routes.openapi(
    createRoute({
      method: 'post',
      path: '/sessions/{id}/delegations',
      operationId: 'delegate',
      summary: 'Hand tasks over to children',
      description:
        'All of them or none. Where the parent can receive completions later, each unit yields ' +
        'one item when its last task has ended; else the results are waited for here.',
      tags,
      request: {
        params: sessionParams,
        headers: idempotencyHeader.extend(preferHeader.shape),
        body: jsonBody(delegationBody),
      },
      responses: {
        200: { ...jsonAnswer('The results, waited for', inlineOut), headers: headersOfCall },
        202: {
          ...jsonAnswer('Dispatched', z.union([dispatchedOut, inlineRunningOut])),
          headers: headersOfCall,
        },
        ...problemResponses(400, 404, 409, 413, 415, 422, 429),
      },
    }),
    async (c) => {
      const { id } = c.req.valid('param');
      const key = idempotencyKeyOf(c.req.header('idempotency-key'));
      const body = await readBody(c, delegationBody);
      const of = { tenantId: c.get('tenantId'), sessionId: id };
      const path = `/v1/sessions/${encodeURIComponent(id)}/delegations`;
      const delegated = await delegate(resources, orderOf(of, body), { path, key, body });
      if (delegated.replayed) c.header('Idempotency-Replayed', 'true');
      c.header('Location', `/v1/delegations/${delegated.delegationId}`);
      const notify = body.notify ?? null;
      if (delegated.mode === 'inline') {
        return await answerInline(c, resources, { ...delegated, notify, mayLeave: key !== null });
      }
      const { delegationId, tasks, units } = delegated;
      return c.json(
        {
          status: 'dispatched' as const,
          mode: 'background' as const,
          delegation_id: delegationId,
          count: tasks.length,
          goals: body.tasks.map((task) => task.goal),
          tasks: tasks.map((task) => ({
            task_index: task.taskIndex,
            child_session_id: task.childSessionId,
            work_id: task.workId,
          })),
          ...(units.length > 1 && { units: renderUnits(units) }),
          ...(notify !== null && { notify }),
        },
        202,
      );
    },
  );

  routes.openapi(
    createRoute({
      method: 'get',
      path: '/sessions/{id}/delegations',
      operationId: 'listDelegations',
      summary: 'What the session has delegated, newest first',
      tags,
      request: { params: sessionParams, query: delegationsQuery },
      responses: {
        200: jsonAnswer(
          'A page',
          listOf(listedDelegationOut).extend({
            active_count: z.int().min(0).openapi({ description: 'Calls that have not ended' }),
            active_task_count: z.int().min(0).openapi({ description: 'Their tasks that have not' }),
          }),
        ),
        ...problemResponses(400, 404),
      },
    }),
    async (c) => {
      const { limit, after, state } = c.req.valid('query');
      const { calls, hasMore, activeCount, activeTaskCount } = await listDelegations(resources, {
        tenantId: c.get('tenantId'),
        parentId: c.req.valid('param').id,
        state: state ?? null,
        after: after ?? null,
        limit,
      });
      const page = listOut(
        calls.map(renderListedDelegation),
        hasMore,
        (call) => call.delegation_id,
      );
      return c.json(
        { ...page, active_count: activeCount, active_task_count: activeTaskCount },
        200,
      );
    },
  );

  routes.openapi(
    createRoute({
      method: 'post',
      path: '/sessions/{id}/delegations/interrupt',
      operationId: 'interruptDelegations',
      summary: 'Ask the children of all delegations of the session to stop',
      tags,
      request: { params: sessionParams, body: jsonBody(interruptBody, { optional: true }) },
      responses: {
        200: jsonAnswer('They were asked', interruptedOut),
        ...problemResponses(400, 404, 413, 415),
      },
    }),
    async (c) => {
      const body = await readBody(c, interruptBody, { optional: true });
      const session = { tenantId: c.get('tenantId'), sessionId: c.req.valid('param').id };
      const graceMs = graceMsOf(body.grace_seconds);
      const interrupted = await interruptDelegationsOf(resources, session, {
        by: 'interrupted',
        graceMs,
      });
      return c.json({ interrupted }, 200);
    },
  );

  routes.openapi(
    createRoute({
      method: 'get',
      path: '/delegations/{delegation_id}',
      operationId: 'getDelegation',
      summary: 'A delegation with its results, waited for if it is asked for',
      tags,
      request: { params: delegationParams, headers: preferHeader },
      responses: {
        200: { ...jsonAnswer('The delegation', delegationOut), headers: preferenceApplied },
        ...problemResponses(400, 404),
      },
    }),
    async (c) => {
      const { delegation_id: id } = c.req.valid('param');
      const of = { tenantId: c.get('tenantId'), id };
      const waitSeconds = preferredWait(c.req.header('prefer'));
      let delegation = await readDelegation(resources, of);
      if (waitSeconds !== null) {
        c.header('Preference-Applied', `wait=${waitSeconds}`);
        const call = { tenantId: of.tenantId, delegationId: delegation.call.delegationId };
        const left = c.req.raw.signal;
        await waitForDelegation(resources, call, { waitMs: waitSeconds * 1000, left });
        delegation = await readDelegation(resources, of);
      }
      return c.json(renderDelegation(delegation), 200);
    },
  );

  routes.openapi(
    createRoute({
      method: 'post',
      path: '/delegations/{delegation_id}/interrupt',
      operationId: 'interruptDelegation',
      summary: 'Ask the children of a delegation to stop',
      tags,
      request: { params: delegationParams, body: jsonBody(interruptBody, { optional: true }) },
      responses: {
        200: jsonAnswer('They were asked', interruptedOut),
        ...problemResponses(400, 404, 413, 415),
      },
    }),
    async (c) => {
      const body = await readBody(c, interruptBody, { optional: true });
      const { delegation_id: id } = c.req.valid('param');
      const graceMs = graceMsOf(body.grace_seconds);
      const of = { tenantId: c.get('tenantId'), id };
      const interrupted = await interruptDelegation(resources, of, { by: 'interrupted', graceMs });
      return c.json({ interrupted }, 200);
    },
  );

  return routes;
}

/**
 * Holds the request until the call has ended. A client that leaves stops what it was waiting for,
 * unless it can come back for it with its key.
 */
async function answerInline(
  c: Context<Env>,
  resources: Resources,
  call: Delegated & { notify: boolean | null; mayLeave: boolean },
) {
  const { delegationId } = call;
  const tenantId = c.get('tenantId');
  const preferred = preferredWait(c.req.header('prefer'));
  if (preferred !== null) c.header('Preference-Applied', `wait=${preferred}`);
  const waitMs = (preferred ?? WAIT_MAX_SECONDS) * 1000;
  const left = c.req.raw.signal;
  const of = { tenantId, delegationId };
  const ended = await waitForDispatched(resources, of, { waitMs, left });
  if (ended === 'left' && !call.mayLeave) {
    await interruptForGone(resources, { tenantId, id: delegationId });
  }
  const told =
    call.notify === true
      ? { notify: false, notify_unsupported: notifyUnsupported(delegationId) }
      : {};
  if (typeof ended === 'string') {
    c.header('Retry-After', String(RETRY_AFTER_SECONDS));
    const status = 'running' as const;
    return c.json({ mode: 'inline' as const, status, delegation_id: delegationId, ...told }, 202);
  }
  return c.json(
    {
      mode: 'inline' as const,
      note: 'no_async' as const,
      delegation_id: delegationId,
      results: renderResults(ended.results),
      total_duration_seconds: ended.totalDurationSeconds ?? 0,
      ...told,
    },
    200,
  );
}
