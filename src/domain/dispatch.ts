import { conflict, invalid, notFound, Refusal } from './refusal.ts';
import { isLive, labelFromSnapshot, type WorkStatus } from './work.ts';

/*
 * What becomes of a dispatch: a parent gives its child a turn of work. Everything that bears on it
 * has been loaded under the locks of both sessions.
 */

export interface DispatchRequest {
  /** null: the name comes from the child's snapshot. */
  agent: string | null;
  title: string | null;
}

/** The parent is the last session of its chain: that is where the results will go. */
export interface DispatchingParent {
  id: string;
  deleted: boolean;
  closed: boolean;
  inboxEverOpened: boolean;
}

export interface DispatchedChild {
  id: string;
  described: boolean;
  deleted: boolean;
  /** The last session of the chain of its parent; null: it has no parent. */
  parentTip: string | null;
  agentName: string | null;
  subAgentName: string | null;
  /** The current entry. */
  work: { status: WorkStatus } | null;
  /** A result of it is parked. */
  hasParked: boolean;
}

/** What the child's snapshot gets: its parent, and names if it was not described before. */
export interface Adoption {
  parentSessionId: string;
  names: DispatchRequest | null;
}

export type DispatchDecision =
  | { kind: 'refuse'; refusal: Refusal }
  /** A parked result may become deliverable by this; then the dispatch is decided anew. */
  | { kind: 'deliver_parked_first'; adoption: Adoption | null; opensInbox: boolean }
  /** A new entry becomes the child's current one. */
  | {
      kind: 'dispatch';
      agent: string;
      title: string;
      adoption: Adoption | null;
      opensInbox: boolean;
    };

/** A child that does not exist yet. */
export function newChild(id: string): DispatchedChild {
  return {
    id,
    described: false,
    deleted: false,
    parentTip: null,
    agentName: null,
    subAgentName: null,
    work: null,
    hasParked: false,
  };
}

/** Why a call of the parent is refused as a whole; null: it is not. */
export function refuseCall(
  parent: DispatchingParent,
  calls: { active: number; max: number },
): Refusal | null {
  const outcome = 'rejected';
  if (parent.deleted) return notFound(`Session ${parent.id}`);
  if (parent.closed) {
    const { code, message, details } = closedRefusal(parent);
    return new Refusal(code, message, { ...details, outcome });
  }
  if (calls.active < calls.max) return null;
  const detail = `Delegation capacity reached: ${calls.active} of ${calls.max} calls are active.`;
  return new Refusal('capacity_reached', detail, { outcome });
}

/**
 * The refusal of a dispatch of several tasks: that of the first task which is refused, with all that
 * are refused for the same reason.
 */
export function refuseTasks(refused: readonly { path: string; refusal: Refusal }[]): Refusal {
  const [first] = refused;
  if (first === undefined) throw new Error('something was refused');
  const { code, message, details } = first.refusal;
  // That is no fault of any task.
  if (details.reason === 'session_closed') return first.refusal;
  const errors = refused
    .filter(({ refusal }) => refusal.code === code && refusal.details.reason === details.reason)
    .slice(0, ERRORS_MAX)
    .map(({ path, refusal }) => ({
      path,
      message: refusal.details.errors?.[0]?.message ?? refusal.message,
    }));
  return new Refusal(code, message, { ...details, errors });
}

/** A call of a thousand tasks needs no answer of a thousand lines. */
const ERRORS_MAX = 20;

/** What becomes of the dispatch. `parentDescends`: the child is the parent, or its ancestor. */
export function decideDispatch(
  request: DispatchRequest,
  parent: DispatchingParent,
  child: DispatchedChild,
  parentDescends: boolean,
): DispatchDecision {
  if (parent.deleted) return refuse(notFound(`Session ${parent.id}`));
  if (child.deleted) return refuse(notFound(`Session ${child.id}`));
  if (parentDescends) {
    return refuse(invalid('child_session_id', 'the parent descends from this session'));
  }
  if (child.parentTip !== null && child.parentTip !== parent.id) {
    return refuse(conflict('parent_mismatch', `Session ${child.id} has another parent.`));
  }
  if (parent.closed) return refuse(closedRefusal(parent));
  if (child.work !== null && isLive(child.work.status)) {
    return refuse(conflict('child_busy', `Session ${child.id} has not ended its current work.`));
  }
  const adoption = adoptionOf(request, parent, child);
  const opensInbox = !parent.inboxEverOpened;
  if (child.hasParked) {
    if (adoption === null && !opensInbox) {
      const detail = `A result of session ${child.id} still waits to be delivered.`;
      return refuse(conflict('child_busy', detail));
    }
    return { kind: 'deliver_parked_first', adoption, opensInbox };
  }
  return {
    kind: 'dispatch',
    ...namesOf(request, child),
    adoption,
    opensInbox,
  };
}

function closedRefusal({ id }: DispatchingParent): Refusal {
  return conflict('session_closed', `Session ${id} is closed.`);
}

function refuse(refusal: Refusal): DispatchDecision {
  return { kind: 'refuse', refusal };
}

function adoptionOf(
  { agent, title }: DispatchRequest,
  parent: DispatchingParent,
  child: DispatchedChild,
): Adoption | null {
  if (!child.described) return { parentSessionId: parent.id, names: { agent, title } };
  return child.parentTip === null ? { parentSessionId: parent.id, names: null } : null;
}

function namesOf(
  { agent, title }: DispatchRequest,
  child: DispatchedChild,
): { agent: string; title: string } {
  const label = labelFromSnapshot(child);
  return { agent: agent ?? label.agent, title: title ?? label.title };
}
