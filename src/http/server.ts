import {
  createServer,
  STATUS_CODES,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { getRequestListener } from '@hono/node-server';
import { answerUnreadable, unreadable, type UnreadableStatus } from './problem.ts';

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
/** A connection that was just made may have its request on the way; an unused one is not waited for. */
const FIRST_BYTES_MS = 500;
/** In so short a turn of the event loop hardly anyone can have connected. */
const QUIET_TURN_MS = 1;
/** Where there is none, the listener is closed all the same. */
const QUIET_WITHIN_MS = 1_000;
/** How often connections are looked at for the time limits. */
const CHECK_INTERVAL_MS = 1_000;

/** Serves the app; rejects when the address cannot be listened on. */
export async function serveHttp(
  fetch: Parameters<typeof getRequestListener>[0],
  options: HttpServerOptions,
): Promise<HttpServer> {
  const answer = getRequestListener(fetch, { errorHandler: answerUnreadable });
  const newest = new WeakMap<Socket, ServerResponse>();
  const handle = (incoming: IncomingMessage, outgoing: ServerResponse) => {
    const { socket } = incoming;
    if (newest.get(socket)?.writableFinished === false) tellOfClose(socket, outgoing);
    newest.set(socket, outgoing);
    void answer(incoming, outgoing);
  };
  const server = createServer(
    {
      keepAliveTimeout: KEEP_ALIVE_MS,
      headersTimeout: options.headersTimeoutMs ?? 15_000,
      requestTimeout: options.requestTimeoutMs ?? 60_000,
      connectionsCheckingInterval: CHECK_INTERVAL_MS,
      // Refused all the same, but by a problem with a request id.
      requireHostHeader: false,
    },
    handle,
  );
  // What a client expects beyond the protocol may be ignored.
  server.on('checkExpectation', handle);
  server.on('clientError', (error: NodeJS.ErrnoException, socket: Socket) => {
    const answered = newest.get(socket);
    const isBetween = answered?.headersSent === true && !answered.writableFinished;
    if (socket.writable && !isBetween) socket.write(written(statusOf(error)));
    socket.destroy(error);
  });
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
    stop: async (withinMs) => {
      const cutOff = setTimeout(() => server.closeAllConnections(), withinMs);
      await quietTurn(server, Math.min(QUIET_WITHIN_MS, withinMs / 2));
      const closed = new Promise((resolve) => server.close(resolve));
      // Those opened ahead of need; Node takes them for requests that have begun.
      const unused = setTimeout(() => {
        for (const socket of sockets) if (socket.bytesRead === 0) socket.destroy();
      }, FIRST_BYTES_MS);
      await closed;
      clearTimeout(unused);
      clearTimeout(cutOff);
    },
  };
}

/**
 * Resolves when a turn of the event loop has found no new connection: those that the kernel has
 * accepted and the listener has not are reset when it closes, with the requests on them. A turn
 * takes a single one.
 */
async function quietTurn(server: Server, withinMs: number): Promise<void> {
  const endAt = performance.now() + withinMs;
  let isQuiet = false;
  const onConnection = (): void => {
    isQuiet = false;
  };
  server.on('connection', onConnection);
  await nextTurn();
  for (let before = performance.now(); !isQuiet && before < endAt;) {
    isQuiet = true;
    await nextTurn();
    const now = performance.now();
    if (now - before > QUIET_TURN_MS) isQuiet = false;
    before = now;
  }
  server.off('connection', onConnection);
}

/** A response that waits behind another has no socket yet, and is not told when its client leaves. */
function tellOfClose(socket: Socket, outgoing: ServerResponse): void {
  let isTold = false;
  outgoing.once('close', () => (isTold = true));
  socket.once('close', () => {
    if (!isTold) outgoing.emit('close');
  });
}

/** Why Node could not read a request. */
function statusOf({ code }: NodeJS.ErrnoException): UnreadableStatus {
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') return 408;
  if (code === 'HPE_CHUNK_EXTENSIONS_OVERFLOW') return 413;
  return code === 'HPE_HEADER_OVERFLOW' ? 431 : 400;
}

/** The answer as it goes out where there is no request that could be answered. */
function written(status: UnreadableStatus): string {
  const { headers, body } = unreadable(status);
  const fields = { ...headers, Connection: 'close', 'Content-Length': Buffer.byteLength(body) };
  const lines = Object.entries(fields).map(([name, value]) => `${name}: ${value}`);
  return [`HTTP/1.1 ${status} ${STATUS_CODES[status]}`, ...lines, '', body].join('\r\n');
}

function urlOf({ address, family, port }: AddressInfo): string {
  return `http://${family === 'IPv6' ? `[${address}]` : address}:${port}`;
}
