import type { CountedInbox } from '../store/report-load.ts';
import type { InboxKey } from './inbox-waiters.ts';

/*
 * To see whether an inbox is full its items must be counted, which costs what lies there: for some
 * hundred unread items, more than all else in the load of a batch. So a count is remembered, and
 * good for a share of the room that it found. Unread items that move into an inbox come beside all
 * shares: the inbox says how often that was, and a count from before is worth nothing to any replica.
 */

/** So many replicas may live on their counts at once, and overfill no inbox together. */
const REPLICAS = 16;
/** Two batches in flight bring at most so many items: less room than that is counted each time. */
const ROOM_MIN = 256;
/** Inboxes remembered at most: each batch asks with the whole list. */
const INBOXES_MAX = 512;

export interface InboxRoom {
  /** The inboxes that need not be counted for the next batch. */
  known(): CountedInbox[];
  /** A count has found so many pending items. */
  counted(inbox: CountedInbox, pending: number): void;
  /** An item has been delivered into the inbox. */
  delivered(inbox: InboxKey): void;
}

/** What this replica knows of the room in inboxes that hold at most `maxPendingItems`. */
export function createInboxRoom(maxPendingItems: number): InboxRoom {
  const rooms = new Map<string, { inbox: CountedInbox; left: number }>();

  return {
    known: () => Array.from(rooms.values(), ({ inbox }) => inbox),
    counted: (inbox, pending) => {
      const left = Math.floor((maxPendingItems - pending) / REPLICAS);
      rooms.delete(keyOf(inbox));
      if (left < ROOM_MIN) return;
      rooms.set(keyOf(inbox), { inbox, left });
      const [oldest] = rooms.keys();
      if (rooms.size > INBOXES_MAX && oldest !== undefined) rooms.delete(oldest);
    },
    delivered: (inbox) => {
      const room = rooms.get(keyOf(inbox));
      if (room === undefined) return;
      room.left -= 1;
      if (room.left < ROOM_MIN) rooms.delete(keyOf(inbox));
    },
  };
}

function keyOf({ tenantId, sessionId }: InboxKey): string {
  return `${tenantId}\0${sessionId}`;
}
