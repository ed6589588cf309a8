import { invalid, notFound } from '../domain/refusal.ts';
import type { WorkStatus } from '../domain/work.ts';
import type { Resources } from '../resources.ts';
import { selectWork, selectWorkPage, type ListedWork, type WorkDetail } from '../store/work.ts';
import { inboxesOf } from './ack-items.ts';
import { ANSWER_MAX_BYTES } from './read-inbox.ts';

export type { ListedWork, WorkDetail };

/** The entry with its whole output and what came too late for it. */
export async function readWork(
  resources: Resources,
  of: { tenantId: string; workId: string },
): Promise<WorkDetail> {
  const work = await resources.database.run((db) => selectWork(db, of));
  if (work === null) throw notFound(`Work ${of.workId}`);
  return work;
}

export interface WorkPage {
  tenantId: string;
  parentId: string;
  /** null: whatever their status. */
  status: WorkStatus | null;
  /** The id of the entry after which the page begins; null: the newest. */
  after: string | null;
  limit: number;
}

/** A page of what the session and the others of its chain have dispatched, newest first. */
export async function listWork(
  resources: Resources,
  { tenantId, parentId, status, after, limit }: WorkPage,
): Promise<{ work: ListedWork[]; hasMore: boolean }> {
  if (after !== null && !after.startsWith('subagent_')) {
    throw invalid('after', 'is not the id of a work entry');
  }
  const [parentTip] = await inboxesOf(resources, { tenantId, sessionId: parentId });
  const of = { tenantId, parentTip, status, before: after };
  const page = { ...of, limit, maxBytes: ANSWER_MAX_BYTES };
  const { rows, hasMore } = await resources.database.run((db) => selectWorkPage(db, page));
  return { work: rows, hasMore };
}
