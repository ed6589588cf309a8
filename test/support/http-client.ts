import { Agent, request, type IncomingHttpHeaders } from 'node:http';

/** An answer; a JSON body is parsed, every other one is text. */
export interface Answer {
  status: number;
  headers: IncomingHttpHeaders;
  // Tests look into it freely; what it may hold is checked against the OpenAPI document.
  // oxlint-disable-next-line typescript/no-explicit-any
  body: any;
}

export interface HttpClient {
  /**
   * Sends the request as it is given: an object goes as JSON with its content type, a string or
   * bytes without any. The path is not touched. `signal` makes the client leave.
   */
  request: (
    method: string,
    path: string,
    body?: unknown,
    headers?: Record<string, string>,
    signal?: AbortSignal,
  ) => Promise<Answer>;
  close(): void;
}

/** A client with connections of its own, which stay open between requests. */
export function createHttpClient(url: string): HttpClient {
  const agent = new Agent({ keepAlive: true });
  const { hostname, port } = new URL(url);

  return {
    request: (method, path, body, headers = {}, signal) =>
      new Promise((resolve, reject) => {
        const payload = payloadOf(body);
        const outgoing = request(
          {
            agent,
            hostname: hostname.replaceAll(/[[\]]/g, ''),
            port,
            method,
            path,
            headers: { ...payload.type, ...lengthOf(payload, headers), ...headers },
            ...(signal === undefined ? {} : { signal }),
          },
          (incoming) => {
            const chunks: Buffer[] = [];
            incoming.on('data', (chunk: Buffer) => chunks.push(chunk));
            incoming.on('error', reject);
            incoming.on('end', () => {
              resolve({
                status: incoming.statusCode ?? 0,
                headers: incoming.headers,
                body: parse(Buffer.concat(chunks).toString(), incoming.headers['content-type']),
              });
            });
          },
        );
        outgoing.on('error', reject);
        outgoing.end(payload.body);
      }),
    close: () => agent.destroy(),
  };
}

interface Payload {
  body?: string | Uint8Array;
  type: Record<string, string>;
}

function payloadOf(body: unknown): Payload {
  if (body === undefined) return { type: {} };
  if (typeof body === 'string' || body instanceof Uint8Array) return { body, type: {} };
  return { body: JSON.stringify(body), type: { 'content-type': 'application/json' } };
}

/** The length is said unless the test asks for a body that does not say it. */
function lengthOf({ body }: Payload, headers: Record<string, string>): Record<string, string> {
  if (body === undefined || 'transfer-encoding' in headers) return {};
  return { 'content-length': String(Buffer.byteLength(body)) };
}

function parse(text: string, type: string | undefined): unknown {
  return type?.includes('json') ? JSON.parse(text) : text;
}
