import { sql } from 'drizzle-orm';
import type { SessionStatus } from '../domain/session.ts';
import { TOLD_ERROR_MAX } from '../domain/stream-changes.ts';
import type { Queryable } from './database.ts';
import type { Told } from './wakes.ts';

/** A session as those see it who watch it, with nothing that need not be loaded for a comparison. */
export interface StreamedSession {
  tenantId: string;
  sessionId: string;
  /** The last session of its chain, whose inbox and wakes are its own. */
  tipId: string;
  deleted: boolean;
  status: SessionStatus;
  backgroundTaskCount: number;
  blockedOn: string | null;
  errorCode: string | null;
  errorMessage: string | null;
  /** Only where it was asked for. */
  pending: number | null;
  announcements: number;
  told: Told | null;
  wakePending: boolean;
  /** The newest children: id and fingerprint. */
  children: [string, string][] | null;
}

/** So many of a session's children are watched, the newest ones. */
const CHILDREN_MAX = 1_000;

/** These sessions as they stand, those that there are. Each step is a look-up by key. */
export async function selectStreamed(
  db: Queryable,
  of: readonly { tenantId: string; sessionId: string; wantsPending: boolean }[],
): Promise<StreamedSession[]> {
  return await db.execute<StreamedSession & Record<string, unknown>>(sql`
    select s.tenant_id as "tenantId", s.id as "sessionId", t.id as "tipId",
      s.deleted_at is not null or t.deleted_at is not null as deleted, s.status,
      s.background_task_count as "backgroundTaskCount", s.blocked_on as "blockedOn",
      s.error_code as "errorCode",
      left(s.error_message, ${TOLD_ERROR_MAX}) as "errorMessage",
      case when r.wants_pending then (
        select count(*)::int from items i where i.session_id = t.id
          and i.tenant_id = t.tenant_id and i.acked_at is null) end as pending,
      coalesce(w.announcements, 0) as announcements, w.told,
      coalesce(w.pending, false) as "wakePending",
      (
        select json_agg(json_build_array(c.id, md5(row(c.status, c.title, c.agent_id,
          c.error_code, c.error_message, k.work_id, k.status, x.received_at)::text)))
        from (
          select * from sessions q
          where q.parent_session_id = s.id and q.tenant_id = s.tenant_id and q.id <> s.id
          order by q.created_at desc limit ${CHILDREN_MAX}
        ) c
        left join lateral (
          select * from work q
          where q.tenant_id = c.tenant_id and q.work_id = c.current_work_id limit 1
        ) k on true
        left join lateral (
          select received_at from assistant_texts q
          where q.tenant_id = c.tenant_id and q.session_id = c.id limit 1
        ) x on true
      ) as children
    from unnest(
      ${sql.param(of.map((one) => one.tenantId))}::text[],
      ${sql.param(of.map((one) => one.sessionId))}::text[],
      ${sql.param(of.map((one) => one.wantsPending))}::boolean[]
    ) as r(tenant_id, id, wants_pending)
    cross join lateral (
      select * from sessions q where q.tenant_id = r.tenant_id and q.id = r.id limit 1
    ) s
    cross join lateral (
      select * from sessions q
      where q.tenant_id = s.tenant_id and q.id = coalesce(s.tip_session_id, s.id) limit 1
    ) t
    left join lateral (
      select * from wakes q where q.tenant_id = t.tenant_id and q.session_id = t.id limit 1
    ) w on true`);
}
