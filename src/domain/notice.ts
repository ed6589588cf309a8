import { quoteName } from './text.ts';

/* The line that tells a parent that its inbox has something. */

/** What a notice names: that which has ended last. */
export type WakeSubject =
  /** A child that was dispatched alone, or the failed task of a unit that still runs. */
  | { kind: 'sub_agent'; agent: string; title: string; status: string }
  /** A unit of a delegation, by the unit's id. */
  | { kind: 'delegation'; id: string; status: string };

/** The notice; `pending` counts the items that are not acked, of whatever kind. */
export function wakeNotice(subject: WakeSubject, pending: number): string {
  const results = pending === 1 ? 'result' : 'results';
  const waiting = `${pending} ${results} waiting in inbox. Call sys_read_inbox to collect.`;
  return `[System: ${named(subject)} finished (${quoteName(subject.status)}) — ${waiting}]`;
}

function named(subject: WakeSubject): string {
  switch (subject.kind) {
    case 'sub_agent':
      return `sub-agent ${target(subject)}`;
    case 'delegation':
      return `delegation ${quoteName(subject.id)}`;
  }
}

function target({ agent, title }: { agent: string; title: string }): string {
  return title === '' ? quoteName(agent) : `${quoteName(agent)}/${quoteName(title)}`;
}
