import { createRoute, z } from '@hono/zod-openapi';
import { accepts } from 'hono/accepts';
import { itemId } from '../domain/item-id.ts';
import { ackItems } from '../operations/ack-items.ts';
import { closeInbox } from '../operations/close-inbox.ts';
import { listItems, readItem } from '../operations/list-items.ts';
import { openInbox } from '../operations/open-inbox.ts';
import { readInbox } from '../operations/read-inbox.ts';
import { releaseItems } from '../operations/release-items.ts';
import type { Resources } from '../resources.ts';
import { jsonBody, readBody } from './body.ts';
import { itemOut, renderItem, renderItemsText } from './item-wire.ts';
import { preferenceApplied, preferHeader, preferredWait, WAIT_MAX_SECONDS } from './prefer.ts';
import { createRouter } from './router.ts';
import {
  clamped,
  clampedWhole,
  clientKey,
  instant,
  instantOut,
  jsonAnswer,
  listOf,
  listOut,
  listQuery,
  problemResponses,
  sessionParams,
} from './wire.ts';

const READ_DEFAULT = 100;
const READ_MAX = 1_000;
/** In the text form all ids stand in one header, and proxies grant headers 4 KiB. */
const TEXT_READ_MAX = 150;
const LEASE_DEFAULT_SECONDS = 60;
const LEASE_MAX_SECONDS = 86_400;
/** So many ids are acked or released in one transaction. */
const ITEM_IDS_MAX = 10_000;

const itemIds = z.array(clientKey).max(ITEM_IDS_MAX);

const readBodySchema = z.object({
  max: clampedWhole({ min: 1, max: READ_MAX }).nullish(),
  wait_seconds: clamped({ min: 0, max: WAIT_MAX_SECONDS }).nullish(),
  lease_seconds: clamped({ min: 0, max: LEASE_MAX_SECONDS }).nullish(),
  ack: itemIds.nullish(),
  drain: z.boolean().nullish(),
});

const itemIdsBody = z.object({ item_ids: itemIds });

const openOut = z.object({ open: z.literal(true), pending: z.int().min(0), opened_at: instant });

const readingOut = z
  .object({
    items: z.array(itemOut),
    remaining: z.int().min(0).openapi({ description: 'Not leased, and not among these items' }),
    acked: z.array(z.string()).openapi({ description: 'Ids of the items that this read acked' }),
  })
  .openapi('InboxReading');

const ackedOut = z.object({
  acked: z.array(z.string()),
  already_acked: z.array(z.string()),
  unknown: z.array(z.string()),
});

const releasedOut = z.object({
  released: z.array(z.string()),
  already_acked: z.array(z.string()),
  unknown: z.array(z.string()),
});

const itemsQuery = listQuery.extend({ state: z.enum(['pending', 'all']).default('pending') });
const itemParams = sessionParams.extend({ item_id: clientKey });
const tags = ['Inbox'];

/** `/sessions/{id}/inbox`: opened, read by lease and ack, listed. */
export function inboxRoutes(resources: Resources) {
  const routes = createRouter();

  routes.openapi(
    createRoute({
      method: 'put',
      path: '/sessions/{id}/inbox',
      operationId: 'openInbox',
      summary: 'Open the inbox',
      description: 'Delivers what has waited for it before it answers. Harmless again.',
      tags,
      request: { params: sessionParams },
      responses: { 200: jsonAnswer('It is open', openOut), ...problemResponses(400, 404) },
    }),
    async (c) => {
      const of = { tenantId: c.get('tenantId'), sessionId: c.req.valid('param').id };
      const { pending, openedAt } = await openInbox(resources, of);
      return c.json({ open: true as const, pending, opened_at: instantOut(openedAt) }, 200);
    },
  );

  routes.openapi(
    createRoute({
      method: 'delete',
      path: '/sessions/{id}/inbox',
      operationId: 'closeInbox',
      summary: 'Close the inbox',
      description: 'Nothing is delivered to it any more; what lies in it can be read.',
      tags,
      request: { params: sessionParams },
      responses: { 204: { description: 'It is closed' }, ...problemResponses(400, 404) },
    }),
    async (c) => {
      const of = { tenantId: c.get('tenantId'), sessionId: c.req.valid('param').id };
      await closeInbox(resources, of);
      return c.body(null, 204);
    },
  );

  routes.openapi(
    createRoute({
      method: 'post',
      path: '/sessions/{id}/inbox/read',
      operationId: 'readInbox',
      summary: 'Read what is there, or wait for it',
      description:
        'Items are leased to the reader, and offered again when the lease ends before they are ' +
        `acked. Of the text form at most ${TEXT_READ_MAX} items are answered at once.`,
      tags,
      request: {
        params: sessionParams,
        headers: preferHeader,
        body: jsonBody(readBodySchema, { optional: true }),
      },
      responses: {
        200: {
          description: 'What was there',
          content: {
            'application/json': { schema: readingOut },
            'text/plain': { schema: z.string() },
          },
          headers: {
            ...preferenceApplied,
            'Inbox-Item-Ids': {
              description: 'Of the text form: the ids of its items, in order',
              schema: { type: 'string' as const },
            },
          },
        },
        ...problemResponses(400, 404, 413, 415),
      },
    }),
    async (c) => {
      const body = await readBody(c, readBodySchema, { optional: true });
      const preferred = preferredWait(c.req.header('prefer'));
      const waitSeconds = Math.min(
        body.wait_seconds ?? preferred ?? 0,
        preferred ?? WAIT_MAX_SECONDS,
      );
      const asText =
        accepts(c, {
          header: 'Accept',
          supports: ['application/json', 'text/plain'],
          default: 'application/json',
        }) === 'text/plain';
      const max = body.max ?? READ_DEFAULT;
      const reading = await readInbox(
        resources,
        {
          tenantId: c.get('tenantId'),
          sessionId: c.req.valid('param').id,
          max: asText ? Math.min(max, TEXT_READ_MAX) : max,
          waitMs: waitSeconds * 1000,
          leaseMs: (body.lease_seconds ?? LEASE_DEFAULT_SECONDS) * 1000,
          ack: body.ack ?? [],
          drain: body.drain ?? false,
        },
        c.req.raw.signal,
      );
      if (preferred !== null) c.header('Preference-Applied', `wait=${preferred}`);
      const { items, remaining, acked } = reading;
      const now = resources.clock.now();
      if (!asText) {
        const rendered = items.map((item) => renderItem(item, now));
        return c.json({ items: rendered, remaining, acked }, 200);
      }
      c.header('Inbox-Item-Ids', items.map((item) => itemId(item.seq)).join(', '));
      return c.text(renderItemsText(items, now), 200);
    },
  );

  routes.openapi(
    createRoute({
      method: 'post',
      path: '/sessions/{id}/inbox/ack',
      operationId: 'ackItems',
      summary: 'Settle items, leased or not',
      tags,
      request: { params: sessionParams, body: jsonBody(itemIdsBody) },
      responses: {
        200: jsonAnswer('The ids, by what became of them', ackedOut),
        ...problemResponses(400, 404, 413, 415),
      },
    }),
    async (c) => {
      const body = await readBody(c, itemIdsBody);
      const of = { tenantId: c.get('tenantId'), sessionId: c.req.valid('param').id };
      const result = await ackItems(resources, { ...of, itemIds: body.item_ids });
      const { acked, alreadyAcked, unknown } = result;
      return c.json({ acked, already_acked: alreadyAcked, unknown }, 200);
    },
  );

  routes.openapi(
    createRoute({
      method: 'post',
      path: '/sessions/{id}/inbox/release',
      operationId: 'releaseItems',
      summary: 'Hand leased items back',
      tags,
      request: { params: sessionParams, body: jsonBody(itemIdsBody) },
      responses: {
        200: jsonAnswer('The ids, by what became of them', releasedOut),
        ...problemResponses(400, 404, 413, 415),
      },
    }),
    async (c) => {
      const body = await readBody(c, itemIdsBody);
      const of = { tenantId: c.get('tenantId'), sessionId: c.req.valid('param').id };
      const result = await releaseItems(resources, { ...of, itemIds: body.item_ids });
      const { released, alreadyAcked, unknown } = result;
      return c.json({ released, already_acked: alreadyAcked, unknown }, 200);
    },
  );

  routes.openapi(
    createRoute({
      method: 'get',
      path: '/sessions/{id}/inbox',
      operationId: 'listItems',
      summary: 'List the items without leasing them',
      description: 'In the order of delivery; `pending` are those not acked.',
      tags,
      request: { params: sessionParams, query: itemsQuery },
      responses: { 200: jsonAnswer('A page', listOf(itemOut)), ...problemResponses(400, 404) },
    }),
    async (c) => {
      const { state, limit, after } = c.req.valid('query');
      const { items, hasMore } = await listItems(resources, {
        tenantId: c.get('tenantId'),
        sessionId: c.req.valid('param').id,
        state,
        after: after ?? null,
        limit,
      });
      const now = resources.clock.now();
      return c.json(
        listOut(
          items.map((item) => renderItem(item, now)),
          hasMore,
          (item) => item.id,
        ),
        200,
      );
    },
  );

  routes.openapi(
    createRoute({
      method: 'get',
      path: '/sessions/{id}/inbox/{item_id}',
      operationId: 'getItem',
      summary: 'Read one item without leasing it',
      tags,
      request: { params: itemParams },
      responses: { 200: jsonAnswer('The item', itemOut), ...problemResponses(400, 404) },
    }),
    async (c) => {
      const { id, item_id } = c.req.valid('param');
      const of = { tenantId: c.get('tenantId'), sessionId: id };
      const item = await readItem(resources, { ...of, itemId: item_id });
      return c.json(renderItem(item, resources.clock.now()), 200);
    },
  );

  return routes;
}
