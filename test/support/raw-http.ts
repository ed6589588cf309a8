import { once } from 'node:events';
import { connect } from 'node:net';

/** A connection on which a test sends what no HTTP client would. */
export interface RawConnection {
  send(bytes: string): void;
  /** Resolves with all that has come, once it holds the text; rejects if the connection ends before. */
  received(text: string): Promise<string>;
  /** Resolves with all that has come, once the server has ended the connection. */
  ended: Promise<string>;
  destroy(): void;
}

/** Connects to the service at the URL; nothing is sent yet. */
export async function openRaw(url: string): Promise<RawConnection> {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname);
  await once(socket, 'connect');
  let all = '';
  const watchers = new Set<() => void>();
  socket.setEncoding('utf8').on('data', (chunk: string) => {
    all += chunk;
    for (const watch of watchers) watch();
  });
  // A reset is an end as well.
  socket.on('error', () => {});
  const ended = once(socket, 'close').then(() => all);

  return {
    send: (bytes) => void socket.write(bytes),
    received: (text) =>
      new Promise((resolve, reject) => {
        const watch = (): void => {
          if (!all.includes(text)) return;
          watchers.delete(watch);
          resolve(all);
        };
        watchers.add(watch);
        watch();
        void ended.then(() => reject(new Error(`the connection ended after: ${all}`)));
      }),
    ended,
    destroy: () => void socket.destroy(),
  };
}
