import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import net from 'node:net';
import tls from 'node:tls';

/** A database URL, read: where the server is, how the way there is secured, and the rest. */
export interface Target {
  /** For the driver: user, password, database, and settings of the session. */
  url: string;
  /** A unix socket; goes before host and port. */
  path: string | undefined;
  host: string;
  port: number;
  sslMode: SslMode;
  /** A file of certificates to trust instead of the system's. */
  sslRootCert: string | undefined;
}

const sslModes = ['disable', 'allow', 'prefer', 'require', 'verify-ca', 'verify-full'] as const;
export type SslMode = (typeof sslModes)[number];

/**
 * Reads a database URL of one host; throws on anything else, without repeating the URL, which holds
 * a password. `host` may be a folder, for a unix socket, also as the percent-encoded host. `sslmode`
 * and `sslrootcert` are libpq's, but: left out, nothing is encrypted, where libpq would prefer it;
 * `allow` is `prefer`; and the certificates to trust count for `verify-…` only.
 *
 * TLS is taken from the driver because its own swaps the socket for another behind our back, drops
 * our listeners and writes to it when it has gone, which ends the process.
 */
export function readDatabaseUrl(databaseUrl: string): Target {
  const url = URL.canParse(databaseUrl) ? new URL(databaseUrl) : undefined;
  if (!url || !/^postgres(ql)?:$/.test(url.protocol) || url.hostname.includes(',')) {
    throw new Error('the database URL is not a postgres:// URL of one host');
  }
  const take = (name: string) => {
    const value = url.searchParams.get(name) ?? undefined;
    url.searchParams.delete(name);
    return value;
  };
  if (take('target_session_attrs') !== undefined) {
    throw new Error('target_session_attrs is not supported: give the one host that is to be used');
  }
  const asked = take('sslmode') ?? 'disable';
  const sslMode = sslModes.find((mode) => mode === asked);
  if (sslMode === undefined) throw new Error(`sslmode ${asked} is none of ${sslModes.join(', ')}`);
  const sslRootCert = take('sslrootcert');
  // Brackets enclose an IPv6 address in a URL only.
  const named = decodeURIComponent(url.hostname).replace(/^\[(.*)\]$/, '$1');
  const host = (take('host') ?? named) || 'localhost';
  const port = Number(url.port || 5432);
  // The driver dials nothing itself, and cannot read an encoded folder.
  url.hostname = 'localhost';
  return {
    url: url.href,
    path: host.startsWith('/') ? `${host}/.s.PGSQL.${port}` : undefined,
    host,
    port,
    sslMode,
    sslRootCert: sslRootCert === 'system' ? undefined : sslRootCert,
  };
}

/**
 * Connects to a server, encrypted as asked. Each socket made is handed to `own` before anything can
 * happen on it; the result may still be connecting, and buffers what is written.
 */
export async function dial(target: Target, own: (socket: net.Socket) => void): Promise<net.Socket> {
  // An option of every stream, which the types of sockets leave out.
  const socket = new net.Socket({ writableHighWaterMark: WRITE_AHEAD_BYTES } as object);
  own(socket);
  // Small writes follow each other without an answer between them: Nagle would hold them back.
  socket.setNoDelay(true);
  if (target.path !== undefined) return socket.connect(target.path);
  socket.connect(target.port, target.host);
  if (target.sslMode === 'disable') return socket;

  socket.write(sslRequest);
  const [answer] = (await once(socket, 'data')) as [Buffer];
  if (answer.toString('latin1') === 'S') return secure(socket, target, own);
  if (answer[0] === noTls && ['allow', 'prefer'].includes(target.sslMode)) return socket;
  throw new Error('the server does not speak TLS, which sslmode demands');
}

/**
 * The driver holds statements back while a socket has more than this to send: a batch is 200 KB, and
 * goes out as one.
 */
const WRITE_AHEAD_BYTES = 16 * 1024 * 1024;

const sslRequest = Buffer.from([0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]);
const noTls = 'N'.charCodeAt(0);

/** As libpq does: short of `verify-…` it encrypts for whoever answers. */
function secure(
  socket: net.Socket,
  { host, sslMode, sslRootCert }: Target,
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
