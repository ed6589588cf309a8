import { createRoute, z } from '@hono/zod-openapi';
import { putWebhook, removeWebhook } from '../operations/put-webhook.ts';
import { isWebhookSecret } from '../platform/webhook-signature.ts';
import type { Resources } from '../resources.ts';
import { jsonBody, readBody } from './body.ts';
import { createRouter } from './router.ts';
import { jsonAnswer, problemResponses, sessionParams } from './wire.ts';

const URL_MAX = 2_048;
const format = z.enum(['standard', 'session_message']);

const webhookBody = z.object({
  url: z
    .string()
    .max(URL_MAX)
    .refine((url) => URL.canParse(url), { error: 'must be a URL' })
    .transform((url) => new URL(url).href)
    .meta({
      description: 'http or https; not into a private network unless the service allows it',
    }),
  secret: z
    .string()
    .refine(isWebhookSecret, {
      error: 'must be the base64 of 24 to 64 bytes, with or without whsec_',
    })
    .nullish()
    .meta({ description: 'Left out, messages are not signed. It is never shown.' }),
  format: format
    .nullish()
    .transform((given) => given ?? 'standard')
    .meta({ description: 'Left out: standard' }),
});

const webhookOut = z
  .object({
    url: z.string(),
    format,
    signed: z.boolean().openapi({ description: 'There is a secret' }),
  })
  .openapi('Webhook');

const tags = ['Wakes'];

/** `/sessions/{id}/wake`: where an idle parent is told that its inbox has something. */
export function webhookRoutes(resources: Resources) {
  const routes = createRouter();

  routes.openapi(
    createRoute({
      method: 'put',
      path: '/sessions/{id}/wake',
      operationId: 'putWebhook',
      summary: 'Have the session woken by a webhook',
      description:
        'Takes the place of the former one, its secret included. Messages are signed as Standard ' +
        'Webhooks has it; `session_message` is the body that a user of the session would post. A ' +
        'receiver that answers 410 is removed.',
      tags,
      request: { params: sessionParams, body: jsonBody(webhookBody) },
      responses: {
        200: jsonAnswer('It is there', webhookOut),
        ...problemResponses(400, 404, 413, 415),
      },
    }),
    async (c) => {
      const { url, secret, format: wanted } = await readBody(c, webhookBody);
      const of = { tenantId: c.get('tenantId'), sessionId: c.req.valid('param').id };
      await putWebhook(resources, { ...of, url, secret: secret ?? null, format: wanted });
      return c.json({ url, format: wanted, signed: secret != null }, 200);
    },
  );

  routes.openapi(
    createRoute({
      method: 'delete',
      path: '/sessions/{id}/wake',
      operationId: 'deleteWebhook',
      summary: 'Remove the webhook of a session',
      description: 'Harmless again.',
      tags,
      request: { params: sessionParams },
      responses: { 204: { description: 'There is none now' }, ...problemResponses(400, 404) },
    }),
    async (c) => {
      const of = { tenantId: c.get('tenantId'), sessionId: c.req.valid('param').id };
      await removeWebhook(resources, of);
      return c.body(null, 204);
    },
  );

  return routes;
}
