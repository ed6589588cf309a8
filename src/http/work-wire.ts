import { z } from '@hono/zod-openapi';
import { instant, instantOrNull, instantOut } from './wire.ts';

/* A work entry as answers have it. */

export const workOut = z
  .object({
    work_id: z.string(),
    parent_session_id: z.string(),
    child_session_id: z.string(),
    agent: z.string(),
    title: z.string(),
    status: z.string(),
    recovered: z.boolean(),
    created_by: z.string().nullable(),
    created_at: instant,
    ended_at: instant.nullable(),
    deadline_at: instant.nullable(),
  })
  .openapi('Work');

export interface WorkEntry {
  workId: string;
  parentSessionId: string;
  childSessionId: string;
  agent: string;
  title: string;
  status: string;
  recovered: boolean;
  createdBy: string | null;
  createdAt: number;
  endedAt: number | null;
  deadlineAt: number | null;
}

/** The entry as an answer has it. */
export function renderWork(entry: WorkEntry): z.output<typeof workOut> {
  return {
    work_id: entry.workId,
    parent_session_id: entry.parentSessionId,
    child_session_id: entry.childSessionId,
    agent: entry.agent,
    title: entry.title,
    status: entry.status,
    recovered: entry.recovered,
    created_by: entry.createdBy,
    created_at: instantOut(entry.createdAt),
    ended_at: instantOrNull(entry.endedAt),
    deadline_at: instantOrNull(entry.deadlineAt),
  };
}
