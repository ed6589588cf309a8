import { isLocalChannel } from './channel.ts';

/*
 * A result for a session of a local client is a turn only if somebody is there to see it: an
 * unattended client gets a note. Settled when the item is delivered, stored with it, and never
 * reckoned anew.
 */

/** What an item asks of its parent. */
export type Disposition =
  /** It lies in the inbox, and nobody is woken for it. */
  | 'note'
  /** The parent is to take a turn for it. */
  | 'turn';

/** Whether an item delivered now is a note or a turn; a session without a channel takes turns. */
export function disposition(parent: { channelKind: string | null; viewers: number }): Disposition {
  return isLocalChannel(parent.channelKind) && parent.viewers === 0 ? 'note' : 'turn';
}
