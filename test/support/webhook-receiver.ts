import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll } from 'vitest';

export interface ReceivedCall {
  path: string;
  headers: IncomingHttpHeaders;
  text: string;
  // Tests look into it freely.
  // oxlint-disable-next-line typescript/no-explicit-any
  body: any;
  /** The receiver's clock, in milliseconds. */
  at: number;
}

/** How a call is answered: by a status with headers, by nothing at all, or by the function. */
export type Reply =
  number | { status: number; headers: Record<string, string> } | 'drop' | 'never' | Promise<number>;

/** A server that takes wakes; each path is a receiver of its own. */
export interface WebhookReceiver {
  url: (path: string) => string;
  /** Has the calls of this path answered by these, one after the other; then by the last. */
  reply(path: string, ...replies: Reply[]): void;
  /** The calls that have come to this path. */
  calls(path: string): ReceivedCall[];
  /** Resolves with the calls of this path when there are so many. */
  received(path: string, count: number): Promise<ReceivedCall[]>;
}

/** At the top of a test file: a receiver on this machine for all its tests; it answers 204. */
export function useWebhookReceiver(): WebhookReceiver {
  const calls = new Map<string, ReceivedCall[]>();
  const replies = new Map<string, Reply[]>();
  let watchers: (() => void)[] = [];
  let port = 0;

  async function answer(path: string, outgoing: ServerResponse): Promise<void> {
    const planned = replies.get(path) ?? [];
    const reply = (planned.length > 1 ? planned.shift() : planned[0]) ?? 204;
    const settled = await reply;
    if (settled === 'never') return;
    if (settled === 'drop') return void outgoing.destroy();
    const { status, headers } =
      typeof settled === 'number' ? { status: settled, headers: {} } : settled;
    outgoing.writeHead(status, headers).end();
  }

  const server = createServer((incoming, outgoing) => {
    const path = incoming.url ?? '';
    let text = '';
    incoming.setEncoding('utf8').on('data', (chunk: string) => (text += chunk));
    incoming.on('end', () => {
      const { headers } = incoming;
      const call = { path, headers, text, body: JSON.parse(text), at: Date.now() };
      calls.set(path, [...(calls.get(path) ?? []), call]);
      for (const watch of watchers) watch();
      void answer(path, outgoing);
    });
  });
  beforeAll(async () => {
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    port = (server.address() as AddressInfo).port;
  });
  afterAll(() => {
    server.closeAllConnections();
    server.close();
  });

  return {
    url: (path) => `http://127.0.0.1:${port}${path}`,
    reply: (path, ...planned) => void replies.set(path, planned),
    calls: (path) => calls.get(path) ?? [],
    received: (path, count) =>
      new Promise((resolve) => {
        const watch = (): void => {
          const have = calls.get(path) ?? [];
          if (have.length < count) return;
          watchers = watchers.filter((one) => one !== watch);
          resolve(have);
        };
        watchers.push(watch);
        watch();
      }),
  };
}
