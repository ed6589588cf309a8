import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import net from 'node:net';
import tls from 'node:tls';

/** Where a server is, and how the way there is secured. */
export interface Address {
  /** A unix socket; goes before host and port. */
  path: string | undefined;
  host: string;
  port: number;
  /** libpq's `sslmode`. */
  sslMode: SslMode;
  /** A file of certificates to trust instead of the system's. */
  sslRootCert: string | undefined;
}

const sslModes = ['disable', 'allow', 'prefer', 'require', 'verify-ca', 'verify-full'] as const;
export type SslMode = (typeof sslModes)[number];

/**
 * Takes what concerns TLS out of a database URL: the driver's own TLS swaps the socket for another
 * behind our back, drops our listeners, and writes to it after it has gone.
 */
export function splitTlsFrom(databaseUrl: string): {
  url: string;
  sslMode: SslMode;
  sslRootCert: string | undefined;
} {
  // Neither message says the URL: it holds a password.
  if (!URL.canParse(databaseUrl)) throw new Error('the database URL is not a URL of one host');
  const url = new URL(databaseUrl);
  const take = (name: string) => {
    const value = url.searchParams.get(name) ?? undefined;
    url.searchParams.delete(name);
    return value;
  };
  const asked = take('sslmode') ?? 'disable';
  const sslMode = sslModes.find((mode) => mode === asked);
  if (sslMode === undefined) throw new Error(`sslmode ${asked} is none of ${sslModes.join(', ')}`);
  const sslRootCert = take('sslrootcert');
  return {
    url: url.href,
    sslMode,
    sslRootCert: sslRootCert === 'system' ? undefined : sslRootCert,
  };
}

/**
 * Connects to a server, encrypted as asked. Each socket made is handed to `own` before anything can
 * happen on it; the result may still be connecting, and buffers what is written.
 */
export async function dial(
  address: Address,
  own: (socket: net.Socket) => void,
): Promise<net.Socket> {
  const socket = new net.Socket();
  own(socket);
  // Small writes follow each other without an answer between them: Nagle would hold them back.
  socket.setNoDelay(true);
  if (address.path !== undefined) return socket.connect(address.path);
  socket.connect(address.port, address.host);
  if (address.sslMode === 'disable') return socket;

  socket.write(sslRequest);
  const [answer] = (await once(socket, 'data')) as [Buffer];
  if (answer.toString('latin1') === 'S') return secure(socket, address, own);
  if (answer[0] === noTls && ['allow', 'prefer'].includes(address.sslMode)) return socket;
  throw new Error('the server does not speak TLS, which sslmode demands');
}

const sslRequest = Buffer.from([0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]);
const noTls = 'N'.charCodeAt(0);

/** As libpq does: short of `verify-…` it encrypts for whoever answers. */
function secure(
  socket: net.Socket,
  { host, sslMode, sslRootCert }: Address,
  own: (socket: net.Socket) => void,
): net.Socket {
  const secured = tls.connect({
    socket,
    rejectUnauthorized: sslMode === 'verify-ca' || sslMode === 'verify-full',
    ...(net.isIP(host) ? { host } : { host, servername: host }),
    ...(sslMode === 'verify-ca' ? { checkServerIdentity: () => undefined } : {}),
    ...(sslRootCert === undefined ? {} : { ca: readFileSync(sslRootCert) }),
  });
  own(secured);
  return secured;
}
