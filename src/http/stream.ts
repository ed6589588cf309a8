import type { HttpBindings } from '@hono/node-server';
import { createRoute, z } from '@hono/zod-openapi';
import { isBusy } from '../domain/session.ts';
import { openStream, type Streamed } from '../operations/open-stream.ts';
import type { StreamEvent } from '../operations/session-streams.ts';
import type { Resources } from '../resources.ts';
import { createRouter } from './router.ts';
import { renderChild, renderError } from './sessions.ts';
import { clientKey, problemResponses, sessionParams } from './wire.ts';

/**
 * A reader that has left so many bytes of what it was given is cut off when there is more. What one
 * look tells, of a thousand children at most, comes at once: no more than that and this is kept.
 */
const BEHIND_MAX_BYTES = 256 * 1024;
/** When clients of a replica that stops come back: spread, so that the next one is not overrun. */
const RETRY_MIN_MS = 500;
const RETRY_SPREAD_MS = 2_500;

const KEEP_ALIVE = ':\n\n';
const NOT_SUBSCRIBED = (): void => {};

const streamQuery = z.object({
  viewer_id: clientKey
    .optional()
    .openapi({ description: 'A viewer of the session, whose lease the open stream renews' }),
});

/** `/sessions/{id}/stream`: what happens to a session, as server-sent events. */
export function streamRoutes(resources: Resources) {
  const routes = createRouter();

  routes.openapi(
    createRoute({
      method: 'get',
      path: '/sessions/{id}/stream',
      operationId: 'streamSession',
      summary: 'Watch what happens to a session',
      description:
        'Server-sent events: `session.snapshot` first on every connect, then `inbox.wake`, ' +
        '`session.child_session.updated`, `session.status` and `session.created`. The state is ' +
        'kept by the service: connecting again is resuming. A reader that is too slow is cut off.',
      tags: ['Sessions'],
      request: { params: sessionParams, query: streamQuery },
      responses: {
        200: {
          description: 'The events, until the client leaves or the service stops',
          content: { 'text/event-stream': { schema: z.string() } },
        },
        ...problemResponses(400, 404),
      },
    }),
    async (c) => {
      const sessionId = c.req.valid('param').id;
      const tenantId = c.get('tenantId');
      // A HEAD has the headers of the GET, and nobody who watches.
      const isHead = c.req.method === 'HEAD';
      const viewerId = isHead ? null : (c.req.valid('query').viewer_id ?? null);
      await openStream(resources, { tenantId, sessionId, viewerId }, c.req.raw.signal);
      c.header('Content-Type', 'text/event-stream; charset=utf-8');
      c.header('Cache-Control', 'no-store');
      // Proxies would hold events back until there are enough of them.
      c.header('X-Accel-Buffering', 'no');
      if (isHead) return c.body(null, 200) as never;
      const { outgoing }: HttpBindings = c.env;
      const cutOff = () => void outgoing.destroy();
      return c.body(
        eventStream(resources, { tenantId, sessionId, viewerId }, cutOff),
        200,
      ) as never;
    },
  );

  return routes;
}

function eventStream(
  { streams }: Resources,
  of: Streamed,
  cutOff: () => void,
): ReadableStream<Uint8Array> {
  const encoder = new TextEncoder();
  let unsubscribe = NOT_SUBSCRIBED;
  return new ReadableStream<Uint8Array>(
    {
      start: (controller) => {
        const write = (text: string): boolean => {
          const keepsUp = (controller.desiredSize ?? 0) > 0;
          if (keepsUp) {
            controller.enqueue(encoder.encode(text));
          } else {
            unsubscribe();
            cutOff();
          }
          return keepsUp;
        };
        unsubscribe = streams.subscribe(of.tenantId, of.sessionId, {
          viewerId: of.viewerId,
          send: (events) => write(events.map(written).join('')),
          ping: () => write(KEEP_ALIVE),
          end: (why) => {
            unsubscribe();
            if (write(why === 'drains' ? `retry: ${retryMs()}\n\n` : KEEP_ALIVE))
              controller.close();
          },
        });
      },
      cancel: () => unsubscribe(),
    },
    new ByteLengthQueuingStrategy({ highWaterMark: BEHIND_MAX_BYTES }),
  );
}

function retryMs(): number {
  return Math.round(RETRY_MIN_MS + Math.random() * RETRY_SPREAD_MS);
}

function written(event: StreamEvent): string {
  const { type, data } = rendered(event);
  return `event: ${type}\ndata: ${JSON.stringify(data)}\n\n`;
}

function rendered(event: StreamEvent): { type: string; data: object } {
  switch (event.kind) {
    case 'snapshot': {
      const { status, pending } = event;
      return { type: 'session.snapshot', data: { status, pending } };
    }
    case 'wake': {
      const { pending, notice, itemId } = event.told;
      return { type: 'inbox.wake', data: { pending, notice, item_id: itemId } };
    }
    case 'child_updated':
      return {
        type: 'session.child_session.updated',
        data: renderChild(event.child, event.parentId),
      };
    case 'created':
      return { type: 'session.created', data: renderChild(event.child, event.parentId) };
    case 'status': {
      const { status, backgroundTaskCount, blockedOn } = event.session;
      return {
        type: 'session.status',
        data: {
          status,
          busy: isBusy(status),
          background_task_count: backgroundTaskCount,
          blocked_on: blockedOn,
          last_task_error: renderError(event.session),
        },
      };
    }
  }
}
