import { createServer } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { getRequestListener } from '@hono/node-server';
import { answerUnreadable } from './problem.ts';

export interface HttpServerOptions {
  host: string;
  port: number;
  /** A client that needs longer for the head of its request is cut off; default 15 s. */
  headersTimeoutMs?: number;
  /** … and for the whole of it: 8 MiB in a minute; default 60 s. */
  requestTimeoutMs?: number;
}

export interface HttpServer {
  /** With the port that was really taken. */
  url: string;
  /**
   * Takes no new connection, closes those on which nothing is under way, and resolves when all
   * requests are answered, or cut off because the time is up.
   */
  stop(withinMs: number): Promise<void>;
}

/**
 * Longer than load balancers and clients keep an idle connection: were ours shorter, a request could
 * meet the closing of its connection, and a forwarder that tries once would lose its report.
 */
const KEEP_ALIVE_MS = 75_000;
/** How often connections are looked at for the time limits. */
const CHECK_INTERVAL_MS = 1_000;

/** Serves the app; rejects when the address cannot be listened on. */
export async function serveHttp(
  fetch: Parameters<typeof getRequestListener>[0],
  options: HttpServerOptions,
): Promise<HttpServer> {
  const answer = getRequestListener(fetch, { errorHandler: answerUnreadable });
  const server = createServer(
    {
      keepAliveTimeout: KEEP_ALIVE_MS,
      headersTimeout: options.headersTimeoutMs ?? 15_000,
      requestTimeout: options.requestTimeoutMs ?? 60_000,
      connectionsCheckingInterval: CHECK_INTERVAL_MS,
    },
    (incoming, outgoing) => void answer(incoming, outgoing),
  );
  const sockets = new Set<Socket>();
  server.on('connection', (socket) => {
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket));
  });
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(options.port, options.host, resolve);
  });

  return {
    url: urlOf(server.address() as AddressInfo),
    stop: (withinMs) =>
      new Promise((resolve) => {
        const cutOff = setTimeout(() => server.closeAllConnections(), withinMs);
        server.close(() => {
          clearTimeout(cutOff);
          resolve();
        });
        // Those opened ahead of need; Node takes them for requests that have begun.
        for (const socket of sockets) if (socket.bytesRead === 0) socket.destroy();
      }),
  };
}

function urlOf({ address, family, port }: AddressInfo): string {
  return `http://${family === 'IPv6' ? `[${address}]` : address}:${port}`;
}
