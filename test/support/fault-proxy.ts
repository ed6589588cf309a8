import net from 'node:net';

/**
 * How the proxy treats traffic; may be changed at any time, and `pass` heals what can heal.
 * - `refuse`: the port is closed, connections are cut
 * - `fin`: connections are closed cleanly as soon as the client has spoken
 * - `silence`: connections are accepted, and nothing is forwarded any more in either direction
 * - `reset`: connections are cut with RST
 * - a number: every chunk is forwarded that many milliseconds later
 * - `{ error }`: connections are answered with this SQLSTATE as FATAL, and closed
 */
export type Fault = 'pass' | 'refuse' | 'fin' | 'silence' | 'reset' | number | { error: string };

export interface FaultProxy {
  /** The target's URL, led through the proxy. */
  url: string;
  set(fault: Fault): Promise<void>;
  /** Connections accepted so far. */
  accepted(): number;
  /** Client connections that are open. */
  open(): number;
  /** How often a client has spoken after the server had: the round trips that were waited for. */
  turns(): number;
  /** How many packets clients have sent. */
  packets(): number;
  close(): Promise<void>;
}

/** Puts a proxy on a loopback port before the server of the URL. */
export async function startFaultProxy(targetUrl: string): Promise<FaultProxy> {
  const target = new URL(targetUrl);
  const host = decodeURIComponent(target.hostname);
  const port = target.port || '5432';
  const address = host.startsWith('/')
    ? { path: `${host}/.s.PGSQL.${port}` }
    : { host, port: Number(port) };
  let fault: Fault = 'pass';
  let accepted = 0;
  let turns = 0;
  let packets = 0;
  const clients = new Set<net.Socket>();

  const listener = net.createServer((client) => {
    accepted++;
    clients.add(client);
    const server = net.connect(address);
    let serverSpokeLast = true;
    client.on('error', () => {}).on('close', () => (clients.delete(client), server.destroy()));
    server.on('error', () => {}).on('close', () => fault !== 'silence' && client.end());
    client.on('data', (chunk) => {
      packets++;
      if (serverSpokeLast) turns++;
      serverSpokeLast = false;
      if (fault === 'fin') client.end();
      else if (typeof fault === 'object') client.end(fatal(fault.error));
      else forward(server, chunk);
    });
    server.on('data', (chunk) => {
      serverSpokeLast = true;
      forward(client, chunk);
    });
    if (fault === 'reset') client.resetAndDestroy();
  });

  function forward(to: net.Socket, chunk: Buffer): void {
    if (fault === 'silence') return;
    if (typeof fault === 'number') setTimeout(() => to.write(chunk), fault);
    else to.write(chunk);
  }

  async function listen(on: number): Promise<number> {
    await new Promise<void>((resolve) => listener.listen(on, '127.0.0.1', resolve));
    return (listener.address() as net.AddressInfo).port;
  }

  const ownPort = await listen(0);
  const url = new URL(targetUrl);
  url.host = `127.0.0.1:${ownPort}`;

  return {
    url: url.href,
    accepted: () => accepted,
    open: () => clients.size,
    turns: () => turns,
    packets: () => packets,
    set: async (next) => {
      const wasRefusing = !listener.listening;
      fault = next;
      if (next === 'refuse') listener.close();
      if (next === 'refuse') for (const client of clients) client.destroy();
      if (next === 'reset') for (const client of clients) client.resetAndDestroy();
      if (next !== 'refuse' && wasRefusing) await listen(ownPort);
    },
    close: async () => {
      for (const client of clients) client.destroy();
      if (!listener.listening) return;
      await new Promise((resolve) => listener.close(resolve));
    },
  };
}

/** An ErrorResponse as a server sends it that takes no connection. */
function fatal(sqlState: string): Buffer {
  const fields = ['SFATAL', 'VFATAL', `C${sqlState}`, 'Mnot now', ''].join('\0') + '\0';
  const head = Buffer.from('E\0\0\0\0', 'latin1');
  head.writeUInt32BE(4 + fields.length, 1);
  return Buffer.concat([head, Buffer.from(fields, 'latin1')]);
}
