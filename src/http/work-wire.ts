import { z } from '@hono/zod-openapi';
import { itemId } from '../domain/item-id.ts';
import type { WorkDetail, WorkRow } from '../operations/read-work.ts';
import { instant, instantOrNull, instantOut } from './wire.ts';

/** A work entry as answers show it. */
export const workOut = z
  .object({
    work_id: z.string(),
    parent_session_id: z.string(),
    child_session_id: z.string(),
    agent: z.string(),
    title: z.string(),
    status: z.string(),
    created_by: z.string().nullable(),
    recovered: z.boolean().openapi({ description: "Rebuilt from the child's snapshot" }),
    revision: z.int().min(0).openapi({ description: 'How many items it has delivered' }),
    item_id: z.string().nullable().openapi({ description: 'The newest of these items' }),
    created_at: instant,
    ended_at: instant.nullable(),
    deadline_at: instant.nullable(),
  })
  .openapi('Work');

/** The entry's JSON. */
export function renderWork(work: Omit<WorkRow, 'status'> & { status: string }) {
  return {
    work_id: work.workId,
    parent_session_id: work.parentSessionId,
    child_session_id: work.childSessionId,
    agent: work.agent,
    title: work.title,
    status: work.status,
    created_by: work.createdBy,
    recovered: work.recovered,
    revision: work.revision,
    item_id: work.lastItemSeq === null ? null : itemId(work.lastItemSeq),
    created_at: instantOut(work.createdAt),
    ended_at: instantOrNull(work.endedAt),
    deadline_at: instantOrNull(work.deadlineAt),
  };
}

/** An entry with all that it has to say. */
export const workDetailOut = z
  .object({
    ...workOut.shape,
    output: z.string().nullable().openapi({ description: 'Whole, of its newest item' }),
    item_ids: z.array(z.string()),
    late_results: z
      .array(
        z.object({
          status: z.string(),
          output: z.string(),
          response_id: z.string().nullable(),
          reported_at: instant,
        }),
      )
      .openapi({ description: 'What came after its end and was not delivered, oldest first' }),
  })
  .openapi('WorkDetail');

/** Its JSON. */
export function renderWorkDetail(work: WorkDetail) {
  return {
    ...renderWork(work),
    output: work.output,
    item_ids: work.itemSeqs.map(itemId),
    late_results: work.lateResults,
  };
}
