import { once } from 'node:events';
import { Agent, request } from 'node:http';
import { setTimeout as pause } from 'node:timers/promises';
import { path } from './delivery.ts';

/*
 * Forwarders of many children at once: each child runs, reports a result, runs on and reports the
 * next, which is a follow-up of its own; so a lost report and a repeated one are both seen.
 */

export interface LoadOptions {
  /**
   * The replicas. A connection that is refused goes to the next one, and so does, for a while, who
   * has had a connection closed after an answer: that is how a replica says that it drains.
   */
  urls: string[];
  /** Children that are known, with a parent whose inbox is open: a forwarder each. */
  children: string[];
  /**
   * once: a report is sent a single time, unless no connection was made for it. forever: it is sent
   * again until it is answered with 204.
   */
  tries: 'once' | 'forever';
}

export interface Load {
  /** What has been answered with 204 `delivered` or `already_delivered` so far. */
  delivered: Set<string>;
  /** What a forwarder that tries once has lost: other answers, and connections that broke. */
  lost: string[];
  /** Lets each forwarder finish its report. */
  stop(): Promise<void>;
}

const AVOID_MS = 2_000;

/** Starts a forwarder for each child. */
export function startLoad({ urls, children, tries }: LoadOptions): Load {
  const delivered = new Set<string>();
  const lost: string[] = [];
  const stopping = new AbortController();

  async function forward(child: string, at: number): Promise<void> {
    const replicas = urls.map((url) => ({
      url,
      agent: new Agent({ keepAlive: true, maxSockets: 1 }),
      avoidedUntil: 0,
    }));
    for (let n = at; !stopping.signal.aborted; n += 1) {
      const output = `${child} ${n}`;
      const send = (data: object) => reportOnce(child, data, n, replicas);
      await settle(`running ${output}`, () => send({ status: 'running' }));
      const outcome = await settle(output, () => send({ status: 'idle', output }));
      if (/^204 (?:already_)?delivered$/.test(outcome)) delivered.add(output);
      else lost.push(`${output}: ${outcome}`);
    }
    for (const { agent } of replicas) agent.destroy();
  }

  async function settle(what: string, send: () => Promise<string>): Promise<string> {
    for (;;) {
      const outcome = await send().catch((error: NodeJS.ErrnoException) => String(error.code));
      if (outcome.startsWith('204')) return outcome;
      if (tries === 'once') {
        lost.push(`${what}: ${outcome}`);
        return outcome;
      }
      await pause(20);
    }
  }

  const forwarders = children.map((child, at) => forward(child, at));
  return {
    delivered,
    lost,
    stop: async () => {
      stopping.abort();
      await Promise.all(forwarders);
    },
  };
}

interface Replica {
  url: string;
  agent: Agent;
  avoidedUntil: number;
}

/** Sends it to the next replica in turn that does not drain; to another only if none was connected to. */
async function reportOnce(
  child: string,
  data: object,
  n: number,
  replicas: Replica[],
): Promise<string> {
  const body = JSON.stringify({ type: 'external_session_status', data });
  const inTurn = replicas.map((_, i) => replicas[(n + i) % replicas.length] ?? replicas[0]);
  const isAvoided = (replica?: Replica) => (replica?.avoidedUntil ?? 0) > performance.now();
  const [first, ...others] = inTurn.toSorted((a, b) => Number(isAvoided(a)) - Number(isAvoided(b)));
  if (first === undefined) throw new Error('there is a replica');
  try {
    return await post(first, child, body);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    const [second] = others;
    if (code !== 'ECONNREFUSED' || second === undefined) throw error;
    return await post(second, child, body);
  }
}

/** Resolves with the status and the Delivery-Outcome, rejects when the connection breaks. */
async function post(replica: Replica, child: string, body: string): Promise<string> {
  const outgoing = request(`${replica.url}${path(child)}/events`, {
    agent: replica.agent,
    method: 'POST',
    headers: { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) },
  });
  outgoing.end(body);
  const [incoming] = await once(outgoing, 'response');
  incoming.resume();
  await once(incoming, 'end');
  if (incoming.headers.connection === 'close') replica.avoidedUntil = performance.now() + AVOID_MS;
  const outcome: unknown = incoming.headers['delivery-outcome'];
  return [incoming.statusCode, outcome].filter((part) => part !== undefined).join(' ');
}
