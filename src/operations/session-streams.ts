import { changesBetween, type SeenSession } from '../domain/stream-changes.ts';
import type { SessionStatus } from '../domain/session.ts';
import type { Resources } from '../resources.ts';
import { selectChildrenById, type ShownChild } from '../store/sessions.ts';
import { selectStreamed, type StreamedSession } from '../store/streams.ts';
import type { Told } from '../store/wakes.ts';
import { renewViewers } from '../store/viewers.ts';
import { sessionHash } from './session-hash.ts';
import { createTurns } from './turns.ts';

/*
 * Who streams a session is told how it differs from what was seen of it last. A hint is only a reason
 * to look, and a look compares: so what was missed while hints were lost is told by the next look,
 * and any replica can serve any session. All that are hinted at are looked at in one query.
 */

/** What a stream tells. */
export type StreamEvent =
  | { kind: 'snapshot'; status: SessionStatus; pending: number }
  | { kind: 'wake'; told: Told }
  | { kind: 'child_updated' | 'created'; parentId: string; child: ShownChild }
  | { kind: 'status'; session: SeenSession };

export interface Subscriber {
  /** What one look has found. */
  send(events: readonly StreamEvent[]): void;
  /** Keeps the connection alive. */
  ping(): void;
  /** There will be no more; `drains`: another replica is to be asked. */
  end(why: 'drains' | 'deleted'): void;
  /** Whose lease is renewed as long as this is subscribed. */
  viewerId: string | null;
}

export interface SessionStreams {
  /** For who opens a stream: the turn to look its session up; resolves with what gives it back. */
  takeTurn(left: AbortSignal): Promise<() => void>;
  /** The subscriber gets a snapshot first, then what changes, until the answered function is called. */
  subscribe(tenantId: string, sessionId: string, subscriber: Subscriber): () => void;
  /** Something about the session may have changed. */
  hint(tenantId: string, sessionId: string): void;
  hintHashed(hash: string): void;
  /** Anything may have changed: for the backstop, and when messages may have been lost. */
  hintAll(): void;
  /** Lets all connections show that they live, and renews the leases of those who watch. */
  ping(): Promise<void>;
  /** How many streams are open, for the metrics. */
  count(): number;
  /** Ends all streams; those that come get their snapshot first. */
  release(): void;
}

/** So many are opened at once: all clients of a replica that ended come to the others together. */
const OPENED_AT_ONCE = 50;
/** One query looks at so many sessions. */
const LOOKED_AT_ONCE = 200;
/** A query that failed is tried again after this. */
const RETRY_MS = 1_000;

interface Watched {
  tenantId: string;
  sessionId: string;
  /** Its own hash, and that of the last session of its chain. */
  hashes: Set<string>;
  /** null: nobody has looked yet. */
  seen: SeenSession | null;
  subscribers: Set<Subscriber>;
  /** Those who have got no snapshot yet. */
  fresh: Set<Subscriber>;
}

/** No stream is open yet; the resources are those that are handed in when one is. */
export function createSessionStreams(resourcesOf: () => Resources): SessionStreams {
  const sessions = new Map<string, Watched>();
  const byHash = new Map<string, Set<Watched>>();
  const turns = createTurns(OPENED_AT_ONCE);
  let dirty = new Set<Watched>();
  let looking = false;
  let released = false;
  let streams = 0;

  function subscribe(tenantId: string, sessionId: string, subscriber: Subscriber): () => void {
    const id = idOf(tenantId, sessionId);
    const watched = sessions.get(id) ?? add(id, tenantId, sessionId);
    watched.subscribers.add(subscriber);
    watched.fresh.add(subscriber);
    streams += 1;
    lookAt(watched);
    return () => {
      if (!watched.subscribers.delete(subscriber)) return;
      watched.fresh.delete(subscriber);
      streams -= 1;
      if (watched.subscribers.size === 0) remove(id, watched);
    };
  }

  function add(id: string, tenantId: string, sessionId: string): Watched {
    const watched: Watched = {
      tenantId,
      sessionId,
      hashes: new Set(),
      seen: null,
      subscribers: new Set(),
      fresh: new Set(),
    };
    sessions.set(id, watched);
    name(watched, sessionHash(tenantId, sessionId));
    return watched;
  }

  function name(watched: Watched, hash: string): void {
    watched.hashes.add(hash);
    byHash.set(hash, (byHash.get(hash) ?? new Set()).add(watched));
  }

  function remove(id: string, watched: Watched): void {
    sessions.delete(id);
    dirty.delete(watched);
    for (const hash of watched.hashes) {
      byHash.get(hash)?.delete(watched);
      if (byHash.get(hash)?.size === 0) byHash.delete(hash);
    }
  }

  function hintHashed(hash: string): void {
    for (const watched of byHash.get(hash) ?? []) lookAt(watched);
  }

  function lookAt(watched: Watched): void {
    dirty.add(watched);
    if (looking) return;
    looking = true;
    void look();
  }

  async function look(): Promise<void> {
    // What is hinted at in this turn of the event loop is looked at in one query.
    await new Promise((resolve) => setImmediate(resolve));
    while (dirty.size > 0) {
      const some = [...dirty].slice(0, LOOKED_AT_ONCE);
      for (const watched of some) dirty.delete(watched);
      try {
        await lookAtSome(some);
      } catch (error) {
        resourcesOf().log.debug({ err: error }, 'streams are looked after later');
        for (const watched of some) if (watched.subscribers.size > 0) dirty.add(watched);
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS).unref());
      }
      if (released) endAll('drains');
    }
    looking = false;
  }

  async function lookAtSome(some: readonly Watched[]): Promise<void> {
    const { database } = resourcesOf();
    // Who subscribes while the query runs has not been asked for, and waits for the next one.
    const fresh = new Map(some.map((watched) => [watched, [...watched.fresh]]));
    const wanted = some.map((watched) => ({ ...watched, wantsPending: watched.fresh.size > 0 }));
    const found = await database.run((db) => selectStreamed(db, wanted));
    const byId = new Map(found.map((row) => [idOf(row.tenantId, row.sessionId), row]));

    const changes = some.flatMap((watched) => {
      const row = byId.get(idOf(watched.tenantId, watched.sessionId));
      if (row === undefined || row.deleted) {
        for (const subscriber of watched.subscribers) subscriber.end('deleted');
        return [];
      }
      if (row.tipId !== watched.sessionId) name(watched, sessionHash(row.tenantId, row.tipId));
      const before = watched.seen;
      const after = seenOf(row);
      watched.seen = after;
      const told = [...watched.subscribers].filter((one) => !watched.fresh.has(one));
      for (const subscriber of fresh.get(watched) ?? []) {
        if (!watched.fresh.delete(subscriber)) continue;
        subscriber.send([{ kind: 'snapshot', status: row.status, pending: row.pending ?? 0 }]);
      }
      if (before === null || told.length === 0) return [];
      return [{ watched, told, after, ...changesBetween(before, after) }];
    });
    const children = await loadChildren(changes);
    for (const { watched, told, after, ...change } of changes) {
      const { tenantId, sessionId: parentId } = watched;
      const events: StreamEvent[] = [];
      if (change.statusChanged) events.push({ kind: 'status', session: after });
      const named = [
        ...change.createdChildren.map((id) => ({ kind: 'created' as const, id })),
        ...change.updatedChildren.map((id) => ({ kind: 'child_updated' as const, id })),
      ];
      for (const { kind, id } of named) {
        const child = children.get(idOf(tenantId, id));
        if (child !== undefined) events.push({ kind, parentId, child });
      }
      if (change.wake !== null) events.push({ kind: 'wake', told: change.wake });
      if (events.length > 0) for (const subscriber of told) subscriber.send(events);
    }
  }

  async function loadChildren(
    changes: readonly {
      watched: Watched;
      createdChildren: string[];
      updatedChildren: string[];
    }[],
  ): Promise<Map<string, ShownChild>> {
    const keys = changes.flatMap(({ watched: { tenantId }, createdChildren, updatedChildren }) =>
      [...createdChildren, ...updatedChildren].map((id) => ({ tenantId, id })),
    );
    if (keys.length === 0) return new Map();
    const of = { tenantIds: keys.map((key) => key.tenantId), ids: keys.map((key) => key.id) };
    const rows = await resourcesOf().database.run((db) => selectChildrenById(db, of));
    return new Map(rows.map((row) => [idOf(row.tenantId, row.id), row]));
  }

  async function ping(): Promise<void> {
    const all = [...sessions.values()];
    for (const { subscribers } of all) for (const subscriber of subscribers) subscriber.ping();
    const viewers = all.flatMap(({ tenantId, subscribers }) =>
      [...subscribers].flatMap(({ viewerId }) =>
        viewerId === null ? [] : [{ tenantId, viewerId }],
      ),
    );
    if (viewers.length === 0) return;
    const { clock, database } = resourcesOf();
    const of = {
      tenantIds: viewers.map((viewer) => viewer.tenantId),
      viewerIds: viewers.map((viewer) => viewer.viewerId),
      now: clock.now(),
    };
    await database.transaction((tx) => renewViewers(tx, of));
  }

  function endAll(why: 'drains'): void {
    for (const { subscribers } of sessions.values()) {
      for (const subscriber of subscribers) subscriber.end(why);
    }
  }

  return {
    takeTurn: (left) => turns.take(left),
    subscribe,
    hint: (tenantId, sessionId) => {
      if (sessions.size > 0) hintHashed(sessionHash(tenantId, sessionId));
    },
    hintHashed,
    hintAll: () => {
      for (const watched of sessions.values()) lookAt(watched);
    },
    ping,
    count: () => streams,
    release: () => {
      released = true;
      // Who has just come gets its snapshot before the end.
      if (!looking) endAll('drains');
    },
  };
}

function idOf(tenantId: string, sessionId: string): string {
  return `${tenantId}\0${sessionId}`;
}

function seenOf({ children, ...row }: StreamedSession): SeenSession {
  return { ...row, children: new Map(children) };
}
