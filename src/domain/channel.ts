import type { Channel } from './snapshot.ts';

/*
 * Can a completion reach the parent later? The gate is a table, read from the top: the first row
 * that applies decides. It is asked anew for every call, and nothing of its answer is kept.
 */

/** A channel as a request or a session declares it; what is left out is not said. */
export type DeclaredChannel = { readonly [Field in keyof Channel]?: Channel[Field] | undefined };

/** Whether the caller gets its results later, as items, or waits for them in the request. */
export interface Delivery {
  mode: 'background' | 'inline';
  /** The completion may start a turn of the parent. */
  wakes: boolean;
}

/** What the gate looks at. */
export interface GateRequest {
  /** As the client sent it: only `true` and "1" count. */
  finite: unknown;
  requestChannel: DeclaredChannel | null;
  sessionChannel: DeclaredChannel | null;
}

const BACKGROUND: Delivery = { mode: 'background', wakes: true };
const HISTORY: Delivery = { mode: 'background', wakes: false };
const INLINE: Delivery = { mode: 'inline', wakes: false };

/** Kinds that end with their turn: nobody is there for a later completion, whatever they say. */
const FINITE_KINDS: ReadonlySet<string> = new Set(['one_shot', 'cron', 'kanban_worker']);
/** Kinds whose sessions are seen by whoever views them, and by nobody else. */
const LOCAL_KINDS: ReadonlySet<string> = new Set(['cli', 'tui', 'desktop']);

interface Declaration {
  finite: boolean;
  kind: string | undefined;
  asyncDelivery: boolean | undefined;
  /** Said by the request itself: a client that reads the history does so for this call only. */
  historyDelivery: boolean | undefined;
}

const GATE: readonly { applies: (call: Declaration) => boolean; delivery: Delivery }[] = [
  { applies: (call) => call.finite, delivery: INLINE },
  { applies: (call) => FINITE_KINDS.has(call.kind ?? ''), delivery: INLINE },
  { applies: (call) => isApiServer(call) && call.historyDelivery === true, delivery: HISTORY },
  { applies: (call) => isApiServer(call), delivery: INLINE },
  { applies: (call) => call.asyncDelivery === false, delivery: INLINE },
];

/** How the results of a call reach its parent. */
export function deliveryMode(request: GateRequest): Delivery {
  const call = declarationOf(request);
  return GATE.find(({ applies }) => applies(call))?.delivery ?? BACKGROUND;
}

function isApiServer({ kind }: Declaration): boolean {
  return kind === 'api_server';
}

/**
 * A request's channel that names its kind is another channel, and stands alone; one that does not
 * speaks of the session's, and only what it says goes before that.
 */
function declarationOf({ finite, requestChannel, sessionChannel }: GateRequest): Declaration {
  const kept = requestChannel?.kind === undefined ? sessionChannel : null;
  return {
    finite: finite === true || finite === '1',
    kind: requestChannel?.kind ?? kept?.kind,
    asyncDelivery: requestChannel?.async_delivery ?? kept?.async_delivery,
    historyDelivery: requestChannel?.history_delivery,
  };
}

/** True for a channel of a person at this machine: unviewed, its completions are notes. */
export function isLocalChannel(kind: string | null): boolean {
  return kind !== null && LOCAL_KINDS.has(kind);
}

/** What a call that asked for a notification is told where none can reach it. */
export function notifyUnsupported(delegationId: string): string {
  return `This channel cannot be notified later. Poll GET /v1/delegations/${delegationId} until it has ended.`;
}
