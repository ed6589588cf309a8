import { connect, type Socket } from 'node:net';

/*
 * A client that costs little: prepared requests over keep-alive connections, one under way on each,
 * in a process of its own (`fork`), so that it shares no thread with what it measures.
 */

export interface Load {
  url: string;
  connections: number;
  /** Path and body of each request, in order. */
  requests: { path: string; body: string }[];
}

export interface LoadResult {
  perSecond: number;
  p50: number;
  p99: number;
  /** How many answers had each status. */
  statuses: Record<string, number>;
}

process.once('message', (load: Load) => {
  void run(load).then((result) => {
    process.send?.(result);
    process.disconnect();
  });
});

async function run({ url, connections, requests }: Load): Promise<LoadResult> {
  const { hostname, port, host } = new URL(url);
  const wire = requests.map(({ path, body }) =>
    Buffer.from(
      `POST ${path} HTTP/1.1\r\nhost: ${host}\r\ncontent-type: application/json\r\n` +
        `content-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
    ),
  );
  const statuses: Record<string, number> = {};
  const latencies: number[] = [];
  let next = 0;
  const startedAt = performance.now();
  await Promise.all(
    Array.from({ length: connections }, () => work(connect(Number(port), hostname))),
  );
  const seconds = (performance.now() - startedAt) / 1000;
  latencies.sort((a, b) => a - b);
  const at = (share: number) => latencies[Math.floor(latencies.length * share)] ?? 0;
  return { perSecond: requests.length / seconds, p50: at(0.5), p99: at(0.99), statuses };

  function work(socket: Socket): Promise<void> {
    socket.setNoDelay(true);
    return new Promise((resolve, reject) => {
      let sentAt = 0;
      let received = '';
      const send = () => {
        const request = wire[next];
        if (request === undefined) {
          socket.end();
          resolve();
          return;
        }
        next += 1;
        sentAt = performance.now();
        socket.write(request);
      };
      socket.on('connect', send);
      socket.on('error', reject);
      socket.on('data', (chunk) => {
        received += chunk.toString('latin1');
        const head = received.indexOf('\r\n\r\n');
        if (head === -1) return;
        const length = /\r\ncontent-length: (\d+)/i.exec(received)?.[1] ?? '0';
        if (received.length < head + 4 + Number(length)) return;
        latencies.push(performance.now() - sentAt);
        const status = received.slice(9, 12);
        statuses[status] = (statuses[status] ?? 0) + 1;
        received = '';
        send();
      });
    });
  }
}
