import {
  linkAfter,
  type describeSession,
  type Kinship,
  type KnownSession,
  type Snapshot,
  type SnapshotDecision,
  type SnapshotPatch,
} from '../domain/snapshot.ts';
import type { Resources } from '../resources.ts';
import type { Queryable } from '../store/database.ts';
import { setDeadLettersApart } from '../store/deleted-sessions.ts';
import { setInboxOpened } from '../store/inboxes.ts';
import {
  countMove,
  countUnreadItems,
  describeStub,
  insertStubs,
  lockSessions,
  moveUnreadItems,
  recreateSession,
  selectAncestry,
  selectPredecessors,
  selectSession,
  selectShownSession,
  updateSnapshot,
  updateTips,
  type SessionKey,
  type SessionRow,
  type ShownSession,
} from '../store/sessions.ts';
import { StorageUnavailable } from '../store/unavailable.ts';
import { moveViewers } from '../store/viewers.ts';
import { deleteWakesOf } from '../store/wakes.ts';
import { moveWebhook } from '../store/webhooks.ts';

/*
 * One transaction: make stubs of the sessions that are named, lock those that the change touches,
 * decide, write. What it touches is certain only behind the locks; if it has become more by then,
 * it all begins anew.
 */

/** Each further try means that someone else has just changed the chain or the family. */
const TRIES_MAX = 10;
/** So many unread items are moved by one statement, and within the time that every request has. */
const MOVED_AT_A_TIME = 5_000;
/** More may take longer, as they all move in one transaction: a full inbox takes some seconds. */
const LONG_MOVE_MS = 60_000;

export interface SnapshotWrite extends SessionKey {
  patch: SnapshotPatch;
  /** Whose word it is: a client's or upstream's. */
  decide: typeof describeSession;
}

export interface SnapshotWritten {
  kind: Exclude<SnapshotDecision['kind'], 'refuse'>;
  /** As the transaction left it; null for upstream's word on a session that was deleted here. */
  shown: ShownSession | null;
  /** The session, or its parent, is known from now on: what is parked for it may be delivered. */
  isKnownAnew: boolean;
  /** The inbox that was opened: what is parked for it may be delivered. */
  openedInbox: string | null;
  /** Unread items have moved, and so will what is parked for the former inbox. */
  moved: { fromId: string; toId: string } | null;
}

/** Applies the patch to the session, or refuses it; the sessions that it names become stubs. */
export async function writeSnapshot(
  resources: Resources,
  write: SnapshotWrite,
): Promise<SnapshotWritten> {
  const now = resources.clock.now();
  let limits: { deadlineMs?: number } = {};
  for (let tries = 0; tries < TRIES_MAX; tries += 1) {
    const attempt = { write, now, mayTakeLong: limits.deadlineMs !== undefined };
    const written = await resources.database.transaction((tx) => tryWrite(tx, attempt), limits);
    if (written === 'takes_long') limits = { deadlineMs: LONG_MOVE_MS };
    else if (written !== 'touches_more') return written;
  }
  throw new StorageUnavailable('contended');
}

interface Attempt {
  write: SnapshotWrite;
  now: number;
  mayTakeLong: boolean;
}

async function tryWrite(
  tx: Queryable,
  { write, now, mayTakeLong }: Attempt,
): Promise<SnapshotWritten | 'touches_more' | 'takes_long'> {
  const { tenantId, sessionId, patch } = write;
  const before = await selectSession(tx, write);
  if (before && saysNothingNew(write, before)) {
    const shown = await selectShownSession(tx, write);
    // Nothing is locked, so it may have been deleted since.
    if (shown !== null) return { ...UNCHANGED, shown };
  }
  const named = [sessionId, patch.parentSessionId, patch.continuedAs].filter((id) => id != null);
  const made = await insertStubs(tx, { tenantId, ids: [...new Set(named)], now });

  // Nobody else sees a row that this very transaction has made, and nobody descends from it.
  const isNew = made.includes(sessionId);
  let family = await loadFamily(tx, write, isNew);
  const touched = idsOf(family);
  if (!isNew || touched.length > 1) {
    await lockSessions(tx, { tenantId, ids: touched });
    family = await loadFamily(tx, write, isNew);
    if (idsOf(family).some((id) => !touched.includes(id))) return 'touches_more';
  }
  if (!mayTakeLong && (await movesMuch(tx, family))) return 'takes_long';

  const decision = write.decide(sessionId, patch, knownOf(family.row), family.kin);
  if (decision.kind === 'refuse') throw decision.refusal;
  const change =
    decision.kind === 'unchanged' ? UNCHANGED : await apply(tx, { write, family, decision, now });
  return { ...change, shown: await selectShownSession(tx, write) };
}

type Change = Omit<SnapshotWritten, 'shown'>;

const UNCHANGED: Change = {
  kind: 'unchanged',
  isKnownAnew: false,
  openedInbox: null,
  moved: null,
};

async function movesMuch(tx: Queryable, { row, chain }: Family): Promise<boolean> {
  if (!chain.changes) return false;
  const inbox = { tenantId: row.tenantId, sessionId: chain.oldTip.id, limit: MOVED_AT_A_TIME + 1 };
  return (await countUnreadItems(tx, inbox)) > MOVED_AT_A_TIME;
}

/** True for a repeat, which locks nothing. */
function saysNothingNew({ sessionId, patch, decide }: SnapshotWrite, row: SessionRow): boolean {
  const kin = { parentDescends: false, chainReturns: false, inboxOpen: false };
  return decide(sessionId, patch, knownOf(row), kin).kind === 'unchanged';
}

function knownOf(row: SessionRow): KnownSession {
  return {
    ...row,
    channel: row.channel as Snapshot['channel'],
    described: row.describedAt !== null,
    deleted: row.deletedAt !== null,
  };
}

/** The session and those by which its change is decided, or which it changes. */
interface Family {
  row: SessionRow;
  kin: Kinship;
  /** The topmost ancestor of the parent to be set: nobody else may hang it under this session. */
  rootId: string | null;
  chain: Chain;
}

interface Chain {
  /** The session goes on as another one than before. */
  changes: boolean;
  /** The sessions whose chains pass through this one; only if it changes. */
  predecessorIds: string[];
  /** The sessions in whose inboxes the items for these lie, and where they will. */
  oldTip: SessionRow;
  newTip: SessionRow;
}

async function loadFamily(tx: Queryable, write: SnapshotWrite, isNew: boolean): Promise<Family> {
  const { tenantId, sessionId, patch } = write;
  const row = await selectNamed(tx, { tenantId, sessionId });
  const ancestry = isNew ? null : await loadAncestry(tx, row, patch.parentSessionId ?? null);
  const chain = await loadChain(tx, row, linkAfter(patch, knownOf(row)));
  const link = patch.continuedAs ?? null;
  const kin = {
    parentDescends: ancestry?.passesSought ?? false,
    chainReturns: link !== null && chain.predecessorIds.includes(link),
    inboxOpen: isOpen(chain.newTip),
  };
  return { row, kin, rootId: ancestry?.rootId ?? null, chain };
}

async function loadAncestry(tx: Queryable, row: SessionRow, parentId: string | null) {
  if (parentId === null || parentId === row.parentSessionId || parentId === row.id) return null;
  const parent = { tenantId: row.tenantId, sessionId: parentId };
  return await selectAncestry(tx, { ...parent, soughtId: row.id });
}

async function loadChain(tx: Queryable, row: SessionRow, link: string | null): Promise<Chain> {
  const { tenantId } = row;
  const oldTip = await selectTip(tx, row);
  if (link === row.continuedAs) {
    return { changes: false, predecessorIds: [], oldTip, newTip: oldTip };
  }
  const predecessorIds = await selectPredecessors(tx, {
    tenantId,
    sessionId: row.id,
    tipId: oldTip.id,
  });
  const newTip =
    link === null ? row : await selectTip(tx, await selectNamed(tx, { tenantId, sessionId: link }));
  return { changes: true, predecessorIds, oldTip, newTip };
}

async function selectTip(tx: Queryable, row: SessionRow): Promise<SessionRow> {
  if (row.tipSessionId === null) return row;
  return await selectNamed(tx, { tenantId: row.tenantId, sessionId: row.tipSessionId });
}

async function selectNamed(tx: Queryable, key: SessionKey): Promise<SessionRow> {
  const row = await selectSession(tx, key);
  if (row === null) throw new Error('a session that is named has a row');
  return row;
}

function isOpen(row: SessionRow): boolean {
  return row.inboxOpenedAt !== null && row.inboxClosedAt === null;
}

function idsOf({ row, rootId, chain }: Family): string[] {
  const { predecessorIds, oldTip, newTip } = chain;
  const ids = [row.id, ...predecessorIds, oldTip.id, newTip.id];
  return [...new Set(rootId === null ? ids : [...ids, rootId])];
}

interface Application {
  write: SnapshotWrite;
  family: Family;
  decision: Exclude<SnapshotDecision, { kind: 'refuse' | 'unchanged' }>;
  now: number;
}

async function apply(tx: Queryable, application: Application): Promise<Change> {
  const { family, decision } = application;
  const { row, chain } = family;
  await writeRow(tx, application);
  if (chain.changes) await moveToNewTip(tx, application);
  const opens = opensNewTip(application);
  if (opens) {
    const inbox = { tenantId: row.tenantId, sessionId: chain.newTip.id, now: application.now };
    await setInboxOpened(tx, inbox);
  }
  return {
    kind: decision.kind,
    isKnownAnew:
      decision.kind !== 'update' || decision.snapshot.parentSessionId !== row.parentSessionId,
    openedInbox: opens ? chain.newTip.id : null,
    moved: chain.changes ? { fromId: chain.oldTip.id, toId: chain.newTip.id } : null,
  };
}

async function writeRow(tx: Queryable, { write, family, decision, now }: Application) {
  const { tenantId, sessionId } = write;
  const { snapshot } = decision;
  const to = { tenantId, sessionId, snapshot, tipId: family.chain.newTip.id, now };
  switch (decision.kind) {
    case 'create':
      return await describeStub(tx, to);
    case 'recreate':
      await setDeadLettersApart(tx, to);
      return await recreateSession(tx, to);
    case 'update':
      return await updateSnapshot(tx, to);
  }
}

async function moveToNewTip(tx: Queryable, { write, family }: Application): Promise<void> {
  const { tenantId, sessionId } = write;
  const { predecessorIds, oldTip, newTip } = family.chain;
  if (predecessorIds.length > 0) {
    await updateTips(tx, { tenantId, ids: predecessorIds, tipId: newTip.id });
  }
  if (oldTip.id === newTip.id) return;
  const some = {
    tenantId,
    fromId: oldTip.id,
    toId: newTip.id,
    // In its own inbox there is nothing but what is for it and those before it.
    owners: oldTip.id === sessionId ? ('all' as const) : ('named' as const),
    ownerIds: [sessionId, ...predecessorIds],
    limit: MOVED_AT_A_TIME,
  };
  while ((await moveUnreadItems(tx, some)) > 0);
  await countMove(tx, { tenantId, sessionId: newTip.id });
  if (some.owners !== 'all') return;
  // Who watches it, and who is woken for it, does so for the one that goes on.
  await moveViewers(tx, some);
  await deleteWakesOf(tx, { tenantId, ids: [some.fromId] });
  await moveWebhook(tx, some);
}

/** An inbox that was open goes on with its session, unless the other was closed on purpose. */
function opensNewTip({ write, family, decision }: Application): boolean {
  const { changes, oldTip, newTip } = family.chain;
  const begins = decision.kind === 'recreate';
  if (newTip.deletedAt !== null && !(begins && newTip.id === write.sessionId)) return false;
  if (decision.opensInbox) return true;
  const goesOn = changes && decision.snapshot.continuedAs !== null && !begins;
  return goesOn && isOpen(oldTip) && newTip.inboxOpenedAt === null;
}
