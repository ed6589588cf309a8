import { sql, type SQL } from 'drizzle-orm';
import type { Queryable } from './database.ts';
import { chainOf } from './delegations.ts';

/* Tasks, and other turns, that may be stopped: they have not ended. */

/** A live turn of a child, as far as it is known before it ends. */
export interface LiveTurn {
  tenantId: string;
  workId: string;
  childSessionId: string;
  model: string | null;
  /** As its heartbeats have it; null: they do not. */
  apiCalls: number | null;
}

function selectLive(where: SQL): SQL {
  return sql`
    select w.tenant_id as "tenantId", w.work_id as "workId", w.child_session_id as "childSessionId",
      w.model, h.api_calls as "apiCalls"
    from work w
    left join lateral (
      select * from heartbeats q where q.tenant_id = w.tenant_id
        and q.child_session_id = w.child_session_id and q.work_id = w.work_id limit 1
    ) h on true
    where w.ended_at is null and ${where}`;
}

/** The live tasks of the call, or of the unit, with this id. */
export async function selectLiveTasks(
  db: Queryable,
  of: { tenantId: string; id: string },
): Promise<LiveTurn[]> {
  return await db.execute<LiveTurn & Record<string, unknown>>(sql`
    ${selectLive(sql`w.tenant_id = ${of.tenantId} and w.delegation_id = ${of.id}`)}
    union
    ${selectLive(sql`w.tenant_id = ${of.tenantId} and w.unit_id = ${of.id}`)}`);
}

/** The live tasks of all calls of the chain that ends with the parent. */
export async function selectLiveTasksOfParent(
  db: Queryable,
  of: { tenantId: string; tipId: string },
): Promise<LiveTurn[]> {
  return await db.execute<LiveTurn & Record<string, unknown>>(
    selectLive(sql`w.tenant_id = ${of.tenantId} and w.delegation_id = any(array(
      select d.delegation_id from ${chainOf(of.tenantId, of.tipId)} chain
      join delegations d on d.parent_session_id = chain.id and d.tenant_id = ${of.tenantId}
        and d.ended_at is null))`),
  );
}

/** The live tasks of these children. */
export async function selectLiveTasksOfChildren(
  db: Queryable,
  of: { tenantId: string; ids: string[] },
): Promise<LiveTurn[]> {
  return await db.execute<LiveTurn & Record<string, unknown>>(
    selectLive(sql`w.tenant_id = ${of.tenantId} and w.delegation_id is not null
      and w.child_session_id = any(${sql.param(of.ids)}::text[])`),
  );
}

/** The task with this entry, while it lives; null: it does not, or is plain work. */
export async function selectLiveTask(
  db: Queryable,
  of: { tenantId: string; workId: string },
): Promise<LiveTurn | null> {
  const rows = await db.execute<LiveTurn & Record<string, unknown>>(
    selectLive(sql`w.tenant_id = ${of.tenantId} and w.work_id = ${of.workId}
      and w.delegation_id is not null`),
  );
  return rows[0] ?? null;
}

/** The session's current entry, while it lives; null: none does. */
export async function selectLiveTurnOfSession(
  db: Queryable,
  of: { tenantId: string; sessionId: string },
): Promise<LiveTurn | null> {
  const rows = await db.execute<LiveTurn & Record<string, unknown>>(
    selectLive(sql`w.tenant_id = ${of.tenantId} and w.work_id = (
      select s.current_work_id from sessions s
      where s.tenant_id = ${of.tenantId} and s.id = ${of.sessionId})`),
  );
  return rows[0] ?? null;
}
