import { z } from '@hono/zod-openapi';
import type { StoredResult, TaskResult } from '../domain/delegation.ts';
import { itemId } from '../domain/item-id.ts';
import type { ListedWork, WorkDetail } from '../operations/read-work.ts';
import { taskResultOut } from './delegation-answers.ts';
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
    delegation_id: z.string().optional().openapi({ description: 'Of a task: its call' }),
    unit_id: z.string().optional().openapi({ description: 'Its result joins this unit' }),
    task_index: z.int().optional(),
    goal: z.string().optional(),
    model: z.string().nullable().optional(),
  })
  .openapi('Work');

/** The entry's JSON. */
export function renderWork(work: Omit<ListedWork, 'status'> & { status: string }) {
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
    ...(work.delegationId !== null &&
      work.unitId !== null &&
      work.taskIndex !== null && {
        delegation_id: work.delegationId,
        unit_id: work.unitId,
        task_index: work.taskIndex,
        goal: work.goal ?? '',
        model: work.model,
      }),
  };
}

/** An entry with all that it has to say. */
export const workDetailOut = z
  .object({
    ...workOut.shape,
    output: z
      .string()
      .nullable()
      .openapi({ description: 'Whole, of its newest item; the summary of a task' }),
    result: taskResultOut.optional().openapi({ description: 'Of a task that has ended, whole' }),
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
      .openapi({
        description:
          'The first different results that came after its end and were not delivered, oldest first: at most 100, and 16 MiB of text',
      }),
  })
  .openapi('WorkDetail');

/** Its JSON. */
export function renderWorkDetail(work: WorkDetail) {
  const { output: whole, ...result } = (work.result ?? {}) as Partial<StoredResult>;
  return {
    ...renderWork(work),
    output: work.delegationId === null ? work.output : (whole ?? result.summary ?? null),
    ...(work.result !== null && { result: result as TaskResult }),
    item_ids: work.itemSeqs.map(itemId),
    late_results: work.lateResults.map(({ status, output, responseId, reportedAt }) => ({
      status,
      output,
      response_id: responseId,
      reported_at: instantOut(reportedAt),
    })),
  };
}
