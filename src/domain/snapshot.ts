import { fitsName, fitsTitle, nameOrNull } from './names.ts';
import { conflict, invalid, type Refusal } from './refusal.ts';
import { isSessionId } from './session-id.ts';
import { storable } from './text.ts';

/*
 * What is said of a session, and what changes by it. A parent is set once; a chain of sessions that
 * were continued under other ids never closes on itself.
 */

export interface Snapshot {
  parentSessionId: string | null;
  agentId: string | null;
  agentName: string | null;
  subAgentName: string | null;
  title: string | null;
  workspace: string | null;
  runnerId: string | null;
  channel: Channel | null;
  maxConcurrent: number | null;
  continuedAs: string | null;
}

/** How completions reach the session later, if they can. */
export interface Channel {
  kind: string;
  async_delivery?: boolean;
  history_delivery?: boolean;
  route?: string;
}

/** What a client says: a field left out keeps its value, null clears it. */
export type SnapshotPatch = { [Field in keyof Snapshot]?: Snapshot[Field] | undefined } & {
  opensInbox?: boolean;
};

/** The session as it stands. A deleted one keeps its place in a chain, and nothing else. */
export interface KnownSession extends Snapshot {
  described: boolean;
  deleted: boolean;
}

/** How the sessions that the patch names are related to this one. */
export interface Kinship {
  /** This session is the named parent's ancestor. */
  parentDescends: boolean;
  /** The chain of the session named in continued_as passes through this one. */
  chainReturns: boolean;
  /** The inbox in which the items for this session will lie is open. */
  inboxOpen: boolean;
}

export type SnapshotDecision =
  | { kind: 'refuse'; refusal: Refusal }
  /** It says what is known: nothing is written. */
  | { kind: 'unchanged' }
  /**
   * create: a session that was at most a stub becomes known. recreate: one that was deleted begins
   * anew, and nothing of it is left.
   */
  | { kind: 'create' | 'recreate' | 'update'; snapshot: Snapshot; opensInbox: boolean };

export const NOTHING_SAID: Snapshot = {
  parentSessionId: null,
  agentId: null,
  agentName: null,
  subAgentName: null,
  title: null,
  workspace: null,
  runnerId: null,
  channel: null,
  maxConcurrent: null,
  continuedAs: null,
};

/** What becomes of a client's patch. */
export function describeSession(
  id: string,
  patch: SnapshotPatch,
  known: KnownSession,
  kin: Kinship,
): SnapshotDecision {
  const former = known.deleted ? NOTHING_SAID : known;
  const snapshot = patched(former, patch);
  const refusal = refuse(id, former, snapshot, kin);
  if (refusal) return { kind: 'refuse', refusal };
  const opensInbox = patch.opensInbox === true && !kin.inboxOpen;
  if (known.deleted) return { kind: 'recreate', snapshot, opensInbox };
  if (!known.described) return { kind: 'create', snapshot, opensInbox };
  if (!opensInbox && isEqual(known, snapshot)) return { kind: 'unchanged' };
  return { kind: 'update', snapshot, opensInbox };
}

/**
 * What becomes of upstream's word: it describes a stub, and never overrules what was said here or
 * brings back what was deleted here. A parent that cannot be is left out.
 */
export function describeFromUpstream(
  id: string,
  patch: SnapshotPatch,
  known: KnownSession,
  kin: Kinship,
): SnapshotDecision {
  if (known.described || known.deleted) return { kind: 'unchanged' };
  const { parentSessionId: _, ...rest } = patch;
  const keepsParent = kin.parentDescends || known.parentSessionId !== null;
  return describeSession(id, keepsParent ? rest : patch, known, kin);
}

/** What the session will go on as once the patch is applied; null: as itself. */
export function linkAfter(patch: SnapshotPatch, known: KnownSession): string | null {
  const former = known.deleted ? NOTHING_SAID : known;
  return patched(former, patch).continuedAs;
}

/** The names in upstream's snapshot of a session; what does not fit counts as not said. */
export function patchFromUpstream(body: Readonly<Record<string, unknown>>): SnapshotPatch {
  const parent = body['parent_session_id'];
  return {
    parentSessionId: typeof parent === 'string' && isSessionId(parent) ? parent : undefined,
    agentId: textOf(body['agent_id'], fitsName),
    agentName: textOf(body['agent_name'], fitsName),
    subAgentName: textOf(body['sub_agent_name'], fitsName),
    title: textOf(body['title'], fitsTitle),
    workspace: textOf(body['workspace'], fitsTitle),
    runnerId: textOf(body['runner_id'], fitsName),
  };
}

function textOf(value: unknown, fits: (text: string) => boolean): string | undefined {
  return typeof value === 'string' && fits(value) ? storable(value) : undefined;
}

function patched(former: Snapshot, patch: SnapshotPatch): Snapshot {
  const pick = <Field extends keyof Snapshot>(field: Field): Snapshot[Field] => {
    const said = patch[field];
    return said === undefined ? former[field] : (said as Snapshot[Field]);
  };
  return {
    parentSessionId: pick('parentSessionId'),
    agentId: nameOrNull(pick('agentId')),
    agentName: nameOrNull(pick('agentName')),
    subAgentName: nameOrNull(pick('subAgentName')),
    title: pick('title'),
    workspace: pick('workspace'),
    runnerId: nameOrNull(pick('runnerId')),
    channel: pick('channel'),
    maxConcurrent: pick('maxConcurrent'),
    continuedAs: pick('continuedAs'),
  };
}

function refuse(id: string, former: Snapshot, next: Snapshot, kin: Kinship): Refusal | null {
  const { parentSessionId: parent, continuedAs } = next;
  if (former.parentSessionId !== null && parent !== former.parentSessionId) {
    return conflict('parent_mismatch', 'The parent of a session cannot change once it is set.');
  }
  const setsParent = parent !== null && parent !== former.parentSessionId;
  if (setsParent && parent !== id && kin.parentDescends) {
    return invalid('parent_session_id', 'the named parent descends from this session');
  }
  const setsLink = continuedAs !== null && continuedAs !== former.continuedAs;
  if (continuedAs === id || (setsLink && kin.chainReturns)) {
    return invalid('continued_as', 'the named session is continued as this one');
  }
  return null;
}

function isEqual(a: Snapshot, b: Snapshot): boolean {
  const fields = Object.keys(NOTHING_SAID) as (keyof Snapshot)[];
  return fields.every((field) =>
    field === 'channel' ? isSameChannel(a.channel, b.channel) : a[field] === b[field],
  );
}

function isSameChannel(a: Channel | null, b: Channel | null): boolean {
  if (a === null || b === null) return a === b;
  return (
    a.kind === b.kind &&
    a.async_delivery === b.async_delivery &&
    a.history_delivery === b.history_delivery &&
    a.route === b.route
  );
}
