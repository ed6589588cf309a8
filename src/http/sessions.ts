import { createRoute, z } from '@hono/zod-openapi';
import type { Context } from 'hono';
import { messagePreview, taskStatus, toolAndName } from '../domain/child-session.ts';
import { isBusy } from '../domain/session.ts';
import type { Channel, SnapshotPatch } from '../domain/snapshot.ts';
import { deleteSession } from '../operations/delete-session.ts';
import { listChildren, type ShownChild } from '../operations/list-children.ts';
import { putSession } from '../operations/put-session.ts';
import { readSession, type ShownSession } from '../operations/read-session.ts';
import type { Resources } from '../resources.ts';
import { jsonBody, readBody } from './body.ts';
import { createRouter, type Env } from './router.ts';
import {
  maxConcurrent,
  keyOrEmpty,
  instant,
  instantOrNull,
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
import { renderWork, workOut } from './work-wire.ts';

const channelIn = z
  .object({
    kind: name,
    async_delivery: z.boolean().nullish(),
    history_delivery: z.boolean().nullish(),
    route: name.nullish(),
  })
  .transform((said) => {
    const members = Object.entries(said).filter(([, value]) => value != null);
    return Object.fromEntries(members) as unknown as Channel;
  });

/** A field left out keeps its value, null clears it. */
const snapshotBody = z.object({
  parent_session_id: sessionId.nullish(),
  agent_id: keyOrEmpty.nullish(),
  agent_name: name.nullish(),
  sub_agent_name: name.nullish(),
  title: title.nullish(),
  workspace: title.nullish(),
  runner_id: keyOrEmpty.nullish(),
  channel: channelIn.nullish(),
  max_concurrent: maxConcurrent.nullish(),
  continued_as: sessionId.nullish(),
  inbox: z.literal('open').nullish(),
});

const creationBody = snapshotBody.extend({ session_id: sessionId });

const sessionError = z.object({ code: z.string(), message: z.string() });

const sessionOut = z
  .object({
    id: z.string(),
    root_session_id: z.string(),
    created_at: instant,
    parent_session_id: z.string().nullable(),
    agent_id: z.string().nullable(),
    agent_name: z.string().nullable(),
    sub_agent_name: z.string().nullable(),
    title: z.string().nullable(),
    workspace: z.string().nullable(),
    runner_id: z.string().nullable(),
    channel: z.record(z.string(), z.unknown()).nullable(),
    max_concurrent: z.int().nullable(),
    continued_as: z.string().nullable(),
    status: z.enum(['idle', 'running', 'waiting', 'failed']),
    busy: z.boolean(),
    background_task_count: z.int(),
    blocked_on: z.string().nullable(),
    last_task_error: sessionError.nullable(),
    closed_at: instant.nullable(),
    end_reason: z.string().nullable(),
    inbox: z.object({ open: z.boolean(), pending: z.int() }).nullable(),
    work: workOut.nullable(),
  })
  .openapi('Session');

const childOut = z
  .object({
    id: z.string(),
    object: z.literal('child_session'),
    parent_session_id: z.string(),
    title: z.string().nullable(),
    tool: z.string().nullable(),
    session_name: z.string().nullable(),
    busy: z.boolean(),
    current_task_status: z.enum(['in_progress', 'completed', 'failed', 'cancelled']).nullable(),
    last_task_error: sessionError.nullable(),
    last_message_preview: z.string().nullable(),
    agent_id: z.string().nullable(),
  })
  .openapi('ChildSession');

const putResponses = {
  200: jsonAnswer('Updated', sessionOut),
  201: jsonAnswer('Created', sessionOut),
  ...problemResponses(400, 409, 413, 415),
};

/** `/sessions/{id}`, `POST /sessions` and the list of children: who the sessions are. */
export function sessionRoutes(resources: Resources) {
  const routes = createRouter();

  async function put(c: Context<Env>, id: string, said: z.output<typeof snapshotBody>) {
    const of = { ...keyOf(c, id), patch: patchOf(said) };
    const { created, shown } = await putSession(resources, of);
    if (!created) return c.json(renderSession(shown), 200);
    c.header('Location', `/v1/sessions/${encodeURIComponent(id)}`);
    return c.json(renderSession(shown), 201);
  }

  routes.openapi(
    createRoute({
      method: 'put',
      path: '/sessions/{id}',
      operationId: 'putSession',
      summary: 'Create or update a session',
      tags: ['Sessions'],
      request: { params: sessionParams, body: jsonBody(snapshotBody, { optional: true }) },
      responses: putResponses,
    }),
    async (c) => {
      const { id } = c.req.valid('param');
      return await put(c, id, await readBody(c, snapshotBody, { optional: true }));
    },
  );

  routes.openapi(
    createRoute({
      method: 'post',
      path: '/sessions',
      operationId: 'postSession',
      summary: 'Create or update the session named in the body',
      tags: ['Sessions'],
      request: { body: jsonBody(creationBody) },
      responses: putResponses,
    }),
    async (c) => {
      const { session_id: id, ...said } = await readBody(c, creationBody);
      return await put(c, id, said);
    },
  );

  routes.openapi(
    createRoute({
      method: 'get',
      path: '/sessions/{id}',
      operationId: 'getSession',
      summary: 'Read a session',
      tags: ['Sessions'],
      request: { params: sessionParams },
      responses: { 200: jsonAnswer('The session', sessionOut), ...problemResponses(400, 404) },
    }),
    async (c) => {
      const { id } = c.req.valid('param');
      return c.json(renderSession(await readSession(resources, keyOf(c, id))), 200);
    },
  );

  routes.openapi(
    createRoute({
      method: 'delete',
      path: '/sessions/{id}',
      operationId: 'deleteSession',
      summary: 'Delete a session and its descendants',
      tags: ['Sessions'],
      request: { params: sessionParams },
      responses: { 204: { description: 'There is no such session now' }, ...problemResponses(400) },
    }),
    async (c) => {
      const { id } = c.req.valid('param');
      await deleteSession(resources, keyOf(c, id));
      return c.body(null, 204);
    },
  );

  routes.openapi(
    createRoute({
      method: 'get',
      path: '/sessions/{id}/child_sessions',
      operationId: 'listChildSessions',
      summary: 'List the direct children of a session',
      tags: ['Sessions'],
      request: { params: sessionParams, query: listQuery },
      responses: {
        200: jsonAnswer('A page, newest first', listOf(childOut)),
        ...problemResponses(400, 404),
      },
    }),
    async (c) => {
      const { id } = c.req.valid('param');
      const { limit, after } = c.req.valid('query');
      const page = { ...keyOf(c, id), limit, after: after ?? null };
      const { children, hasMore } = await listChildren(resources, page);
      const data = children.map((child) => renderChild(child, id));
      return c.json(
        listOut(data, hasMore, (child) => child.id),
        200,
      );
    },
  );

  return routes;
}

function keyOf(c: Context<Env>, id: string) {
  return { tenantId: c.get('tenantId'), sessionId: id };
}

function patchOf(said: z.output<typeof snapshotBody>): SnapshotPatch {
  return {
    parentSessionId: said.parent_session_id,
    agentId: said.agent_id,
    agentName: said.agent_name,
    subAgentName: said.sub_agent_name,
    title: said.title,
    workspace: said.workspace,
    runnerId: said.runner_id,
    channel: said.channel,
    maxConcurrent: said.max_concurrent,
    continuedAs: said.continued_as,
    opensInbox: said.inbox === 'open',
  };
}

function renderSession(shown: ShownSession): z.output<typeof sessionOut> {
  const { session, work } = shown;
  return {
    id: session.id,
    root_session_id: shown.rootSessionId,
    created_at: instantOut(session.createdAt),
    parent_session_id: session.parentSessionId,
    agent_id: session.agentId,
    agent_name: session.agentName,
    sub_agent_name: session.subAgentName,
    title: session.title,
    workspace: session.workspace,
    runner_id: session.runnerId,
    channel: session.channel,
    max_concurrent: session.maxConcurrent,
    continued_as: session.continuedAs,
    status: session.status,
    busy: isBusy(session.status),
    background_task_count: session.backgroundTaskCount,
    blocked_on: session.blockedOn,
    last_task_error: renderError(session),
    closed_at: instantOrNull(session.closedAt),
    end_reason: session.endReason,
    inbox: renderInbox(shown),
    work: work && renderWork(work),
  };
}

/** What the last task of a session failed of, as answers have it. */
export function renderError({
  errorCode,
  errorMessage,
}: {
  errorCode: string | null;
  errorMessage: string | null;
}): z.output<typeof sessionError> | null {
  if (errorCode === null || errorMessage === null) return null;
  return { code: errorCode, message: errorMessage };
}

function renderInbox({ inboxOpenedAt, inboxClosedAt, pending }: ShownSession) {
  return inboxOpenedAt === null ? null : { open: inboxClosedAt === null, pending };
}

/** A child as its parent's list shows it. */
export function renderChild(child: ShownChild, parentId: string): z.output<typeof childOut> {
  const { tool, sessionName } = toolAndName(child.id, child.title);
  return {
    id: child.id,
    object: 'child_session',
    parent_session_id: parentId,
    title: child.title,
    tool,
    session_name: sessionName,
    busy: isBusy(child.status),
    current_task_status: taskStatus(child.workStatus, child),
    last_task_error: renderError(child),
    last_message_preview: messagePreview(child.messageStart),
    agent_id: child.agentId,
  };
}
