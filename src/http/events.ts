import { createRoute, z } from '@hono/zod-openapi';
import type { Context } from 'hono';
import { assistantText } from '../domain/assistant-text.ts';
import { PARK_DETAILS } from '../domain/parking.ts';
import { Refusal, invalid } from '../domain/refusal.ts';
import type { ReportOutcome } from '../domain/report-outcome.ts';
import { firstCodePoints, isBlank, storable } from '../domain/text.ts';
import { interruptTurn, stopTurn } from '../operations/cancel-turns.ts';
import { receiveAssistantText } from '../operations/receive-assistant-text.ts';
import { receiveStatus, type StatusEvent } from '../operations/receive-status.ts';
import type { Resources } from '../resources.ts';
import { jsonBody, readBody } from './body.ts';
import { graceIn, graceMsOf } from './delegations.ts';
import { createRouter, type Env } from './router.ts';
import { traceparentOf } from './traceparent.ts';
import { jsonAnswer, jsonObject, name, problemResponses, sessionParams } from './wire.ts';

/** What every event has; `data` is looked at by type, since forwarders send more than they must. */
const eventBody = z.object({
  type: z.string().min(1),
  data: z.record(z.string(), z.unknown()).default({}),
});

const key = name.nullish().transform((id) => (id === undefined || id === '' ? null : id));

/** Of a field that is "else ignored", anything that does not fit counts as absent. */
const statusData = z.object({
  status: z.enum(['running', 'waiting', 'idle', 'failed']),
  output: z.string().transform(storable).nullish().catch(null),
  response_id: key,
  work_id: key,
  background_task_count: z.int().min(0).nullish().catch(null),
  blocked_on: z
    .string()
    .refine((said) => !isBlank(said))
    .transform(storable)
    .nullish()
    .catch(null),
  reauth_required: z.boolean().nullish().catch(null),
  outcome: z.enum(['completed', 'failed', 'cancelled', 'interrupted']).nullish().catch(null),
  result: jsonObject().nullish().catch(null),
});

const itemData = z.object({
  item_type: z.unknown().optional(),
  item_data: z.record(z.string(), z.unknown()).catch({}),
  response_id: key,
});

const interruptData = z.object({ grace_seconds: graceIn });

const deliveryHeaders = {
  'Delivery-Outcome': {
    description: 'What became of a terminal report',
    schema: { type: 'string' as const },
  },
  'Delivery-Work-Id': {
    description: 'The work entry that it belongs to, where known',
    schema: { type: 'string' as const },
  },
  'Delivery-Item-Id': {
    description: 'The item as which it was delivered, where known',
    schema: { type: 'string' as const },
  },
};

const accepted = z.union([
  z.object({ queued: z.literal(false) }),
  z.object({ status: z.literal('parked'), reason: z.string() }),
]);

/** `POST /sessions/{id}/events`: what forwarders report. */
export function eventRoutes(resources: Resources) {
  const routes = createRouter();
  routes.openapi(
    createRoute({
      method: 'post',
      path: '/sessions/{id}/events',
      operationId: 'postEvent',
      summary: 'Report an event of a session',
      tags: ['Events'],
      request: { params: sessionParams, body: jsonBody(eventBody) },
      responses: {
        202: { ...jsonAnswer('Taken note of, or parked', accepted), headers: deliveryHeaders },
        204: { description: 'Stored; `Delivery-Outcome` says as what', headers: deliveryHeaders },
        ...problemResponses(400, 404, 413, 415),
      },
    }),
    async (c) => {
      const { id } = c.req.valid('param');
      const { type, data } = await readBody(c, eventBody);
      const of = { tenantId: c.get('tenantId'), sessionId: id };
      switch (type) {
        case 'external_session_status':
          return await answerStatus(c, resources, statusEvent(c, id, data));
        case 'external_conversation_item':
          await receiveItem(resources, of, data);
          return c.json({ queued: false as const }, 202);
        case 'interrupt': {
          const graceMs = graceMsOf(interruptOf(data).grace_seconds);
          return answerCancel(c, await interruptTurn(resources, of, graceMs));
        }
        case 'stop_session':
          return answerCancel(c, await stopTurn(resources, of));
        default:
          if (!type.startsWith('external_')) throw unknownType(type);
          resources.metrics.ignoredEvents.inc();
          return c.json({ queued: false as const }, 202);
      }
    },
  );
  return routes;
}

function unknownType(type: string): Refusal {
  return invalid('type', `Unknown event type: ${firstCodePoints(type, 100)}`);
}

function statusEvent(c: Context<Env>, id: string, data: Record<string, unknown>): StatusEvent {
  const parsed = statusData.safeParse(data);
  if (!parsed.success) throw invalidData(parsed.error);
  const said = parsed.data;
  return {
    tenantId: c.get('tenantId'),
    sessionId: id,
    status: said.status,
    output: said.output ?? null,
    responseId: said.response_id,
    workId: said.work_id,
    backgroundTaskCount: said.background_task_count ?? null,
    blockedOn: said.blocked_on ?? null,
    reauthRequired: said.reauth_required ?? false,
    outcome: said.outcome ?? null,
    result: said.result ?? null,
    traceparent: traceparentOf(c.req.header('traceparent')),
  };
}

function invalidData({ issues }: z.ZodError): Refusal {
  const errors = issues.map(({ path, message }) => ({
    path: ['data', ...path.map(String)].join('.'),
    message,
  }));
  const first = errors[0];
  return new Refusal('invalid_input', `${first?.path}: ${first?.message}`, { errors });
}

function interruptOf(data: Record<string, unknown>): z.output<typeof interruptData> {
  const parsed = interruptData.safeParse(data);
  if (!parsed.success) throw invalidData(parsed.error);
  return parsed.data;
}

/** Cancelling is answered alike, whether there was something to cancel or not. */
function answerCancel(c: Context<Env>, outcome: ReportOutcome) {
  if (outcome.outcome !== 'accepted') c.header('Delivery-Outcome', cancelOutcome(outcome));
  if (outcome.workId !== null) c.header('Delivery-Work-Id', outcome.workId);
  if (outcome.itemId !== null) c.header('Delivery-Item-Id', outcome.itemId);
  return c.json({ queued: false as const }, 202);
}

/** What is kept until the inbox opens needs no other try of the client. */
function cancelOutcome({ outcome }: ReportOutcome): ReportOutcome['outcome'] {
  return outcome === 'not_confirmed' ? 'parked' : outcome;
}

async function receiveItem(
  resources: Resources,
  of: { tenantId: string; sessionId: string },
  data: Record<string, unknown>,
): Promise<void> {
  const parsed = itemData.safeParse(data);
  if (!parsed.success) throw invalidData(parsed.error);
  const { item_type, item_data, response_id } = parsed.data;
  const text = assistantText({
    type: item_type,
    role: item_data['role'],
    isMeta: item_data['is_meta'] ?? data['is_meta'],
    content: item_data['content'],
  });
  if (text === null) return;
  await receiveAssistantText(resources, {
    ...of,
    text: storable(text),
    responseId: response_id,
  });
}

async function answerStatus(c: Context<Env>, resources: Resources, event: StatusEvent) {
  const outcome = await receiveStatus(resources, event);
  resources.metrics.reports.inc({ outcome: outcome.outcome });
  if (outcome.outcome === 'accepted') return c.body(null, 204);
  setDeliveryHeaders(c, outcome);
  switch (outcome.outcome) {
    case 'delivered':
    case 'already_delivered':
    case 'not_a_subagent':
    case 'parent_gone':
      return c.body(null, 204);
    case 'parked':
      return c.json({ status: 'parked' as const, reason: String(outcome.reason) }, 202);
    case 'not_found':
      throw new Refusal('not_found', PARK_DETAILS.not_found);
    case 'not_confirmed':
      throw notConfirmed(outcome);
  }
}

function setDeliveryHeaders(c: Context<Env>, outcome: ReportOutcome): void {
  c.header('Delivery-Outcome', outcome.outcome);
  if (outcome.workId !== null) c.header('Delivery-Work-Id', outcome.workId);
  if (outcome.itemId !== null) c.header('Delivery-Item-Id', outcome.itemId);
}

function notConfirmed({ reason, retryAfterSeconds }: ReportOutcome): Refusal {
  const detail = reason === null || reason === 'parent_gone' ? '' : PARK_DETAILS[reason];
  return new Refusal('subagent_delivery_not_confirmed', detail, {
    ...(reason === null ? {} : { reason }),
    ...(retryAfterSeconds === null ? {} : { retryAfterSeconds }),
  });
}
