import { lookup as resolveName, type LookupAddress } from 'node:dns';
import { request as requestHttp, type IncomingMessage, type RequestOptions } from 'node:http';
import { request as requestHttps } from 'node:https';
import { isIP, type LookupFunction } from 'node:net';
import { isPrivateAddress } from './private-address.ts';

/** How a call has ended. */
export type WebhookAnswer =
  | { kind: 'answered'; status: number; retryAfterMs: number | null }
  /** No answer came: the connection failed, or the time was up. */
  | { kind: 'unanswered'; why: string }
  /** Nothing was sent: it would have gone where none may. */
  | { kind: 'refused'; why: string };

export interface WebhookCall {
  url: string;
  headers: Record<string, string>;
  body: string;
  timeoutMs: number;
  /** Ends the call as unanswered. */
  signal: AbortSignal;
}

export interface WebhookClient {
  /** Why nothing may be sent there, as far as the URL tells without asking for its name; or null. */
  refuse(url: URL): string | null;
  /** Sends it on a connection of its own, to an address that was checked; follows no redirect. */
  post(call: WebhookCall): Promise<WebhookAnswer>;
}

/** Resolves a name to all of its addresses. */
export type ResolveName = (
  name: string,
  answer: (error: Error | null, addresses: LookupAddress[]) => void,
) => void;

const byDns: ResolveName = (name, answer) => resolveName(name, { all: true }, answer);

const REFUSED = 'it leads into a private network';

class AddressRefused extends Error {}

/** `allowPrivate`: also into this machine and the network around it. */
export function createWebhookClient({
  allowPrivate,
  resolve = byDns,
}: {
  allowPrivate: boolean;
  resolve?: ResolveName;
}): WebhookClient {
  function refuse({ protocol, hostname, username, password }: URL): string | null {
    if (protocol !== 'http:' && protocol !== 'https:') return 'must be an http or https URL';
    if (username !== '' || password !== '') return 'must not hold a user or a password';
    const host = hostname.replaceAll(/[[\]]/g, '');
    const leadsInside = isIP(host) === 0 ? isLocalName(host) : isPrivateAddress(host);
    return leadsInside && !allowPrivate ? REFUSED : null;
  }

  /** What is connected to is what was checked: the name is resolved once, here. */
  const checkedLookup: LookupFunction = (name, options, answer) => {
    resolve(name, (error, addresses) => {
      const [first] = addresses ?? [];
      if (error !== null) return answer(error, '');
      if (first === undefined) return answer(new Error(`${name} has no address`), '');
      if (!allowPrivate && addresses.some(({ address }) => isPrivateAddress(address))) {
        return answer(new AddressRefused(REFUSED), '');
      }
      if (options.all) return answer(null, addresses);
      return answer(null, first.address, first.family);
    });
  };

  function post({ url, headers, body, timeoutMs, signal }: WebhookCall): Promise<WebhookAnswer> {
    const target = new URL(url);
    const why = refuse(target);
    if (why !== null) return Promise.resolve({ kind: 'refused', why });
    const options: RequestOptions = {
      method: 'POST',
      agent: false,
      lookup: checkedLookup,
      signal,
      headers: { ...headers, 'content-length': String(Buffer.byteLength(body)) },
    };
    const request = target.protocol === 'https:' ? requestHttps : requestHttp;
    return new Promise((settle) => {
      const outgoing = request(target, options);
      const take = (incoming: IncomingMessage): void => {
        const { statusCode = 0, headers: said } = incoming;
        // Nobody reads what else it says.
        incoming.on('error', () => {});
        incoming.destroy();
        settle({
          kind: 'answered',
          status: statusCode,
          retryAfterMs: retryAfterMs(said['retry-after']),
        });
      };
      outgoing.on('response', take);
      // Without a listener it would be dropped without a word.
      outgoing.on('upgrade', take);
      outgoing.on('error', (error) => {
        const refused = error instanceof AddressRefused;
        settle({ kind: refused ? 'refused' : 'unanswered', why: error.message });
      });
      // A timer of its own: the signals of timeouts may be collected before they have fired.
      const timer = setTimeout(() => outgoing.destroy(new Error('the time is up')), timeoutMs);
      outgoing.on('close', () => clearTimeout(timer));
      outgoing.end(body);
    });
  }

  return { refuse, post };
}

/** Names that stand for this machine or this network, whoever is asked. */
function isLocalName(name: string): boolean {
  return /^(?:.+\.)?(?:localhost|local|internal|localdomain)\.?$/i.test(name);
}

/** Retry-After as seconds or as a date, in milliseconds from now; null where it says neither. */
function retryAfterMs(said: string | undefined): number | null {
  if (said === undefined) return null;
  if (/^\s*\d+\s*$/.test(said)) return Number(said) * 1000;
  const date = Date.parse(said);
  return Number.isNaN(date) ? null : Math.max(0, date - Date.now());
}
