import { notFound } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import { dispatchTasks } from './dispatch-tasks.ts';

export interface Dispatch {
  tenantId: string;
  parentId: string;
  childId: string;
  /** null: the child's own name. */
  agent: string | null;
  title: string | null;
  createdBy: string | null;
  deadlineSeconds: number | null;
}

export interface DispatchedWork {
  workId: string;
  parentSessionId: string;
  childSessionId: string;
  agent: string;
  title: string;
  createdAt: number;
}

/**
 * Gives the child a new turn of work, for the last session of the parent's chain; both sessions are
 * made if they are not there. A repeat with the same key gets the first answer again. Refusals
 * change nothing.
 */
export async function dispatchWork(
  resources: Resources,
  dispatch: Dispatch,
  request: { path: string; key: string | null },
): Promise<DispatchedWork & { replayed: boolean }> {
  const { tenantId, parentId, childId, agent, title, createdBy, deadlineSeconds } = dispatch;
  const deadlineMs = deadlineSeconds === null ? null : Math.ceil(deadlineSeconds * 1000);
  return await dispatchTasks<DispatchedWork>(resources, {
    ...request,
    tenantId,
    parentId,
    body: dispatch,
    tasks: [{ childId, agent, title, task: null, path: 'child_session_id' }],
    terms: { createdBy, deadlineMs, childTimeoutMs: null, stall: null },
    route: null,
    // Plain work does not count towards the capacity.
    admit: async (_, parent) => {
      if (parent.deleted) throw notFound(`Session ${parent.id}`);
    },
    record: async (_, { parent, rows: [row], now }) => {
      if (row === undefined) throw new Error('one task is one entry');
      const value = {
        workId: row.workId,
        parentSessionId: parent.id,
        childSessionId: row.childSessionId,
        agent: row.agent,
        title: row.title,
        createdAt: now,
      };
      return { status: 201, value };
    },
  });
}
