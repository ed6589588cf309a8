import type { Report } from '../domain/report.ts';
import { isTerminal } from '../domain/session.ts';
import type { LaneSql } from './database.ts';

/* The reports of a batch as rows, and the way from each to all that it concerns. */

export type Fragment = ReturnType<typeof reportKeys>;

/** The reports as rows (r), in their order (n). */
export function reportKeys(sql: LaneSql, reports: readonly Report[]) {
  return sql`unnest(
    ${reports.map((r) => r.tenantId)}::text[],
    ${reports.map((r) => r.sessionId)}::text[],
    ${reports.map((r) => r.fingerprint)}::text[],
    ${reports.map((r) => r.workId)}::text[],
    ${reports.map((r) => r.responseId)}::text[],
    ${reports.map((r) => (r.origin.kind === 'parked' ? r.origin.id : null))}::text[],
    ${reports.map((r) => isTerminal(r.status))}::boolean[]
  ) with ordinality as
    r(tenant_id, id, fingerprint, work_id, response_id, parked_id, terminal, n)`;
}

/**
 * From each report to its session (s), current work (w), the turn its response_id names (tr), the
 * entry that it names (nw) and the parent (p). Each step is one look-up by key and cannot be planned
 * otherwise: a plan made while the tables were small would read them whole.
 */
export function reportPath(sql: LaneSql, keys: Fragment) {
  return sql`${keys}
    left join lateral (
      select * from sessions q where q.tenant_id = r.tenant_id and q.id = r.id limit 1
    ) s on true
    left join lateral (
      select * from work q
      where q.tenant_id = r.tenant_id and q.work_id = s.current_work_id limit 1
    ) w on true
    left join lateral (
      select * from turn_responses q
      where q.tenant_id = r.tenant_id and q.child_session_id = r.id and q.response_key =
        sha256(convert_to(coalesce(r.response_id, s.response_id), 'UTF8')) limit 1
    ) tr on true
    left join lateral (
      select * from work q
      where coalesce(r.work_id, tr.work_id) is not null and q.tenant_id = r.tenant_id
        and q.work_id = any(array[r.work_id, tr.work_id]) and not q.retired
      order by q.work_id = r.work_id desc nulls last limit 1
    ) nw on true
    left join lateral (
      select * from sessions q where q.tenant_id = r.tenant_id and q.id =
        coalesce(nw.parent_session_id, w.parent_session_id, s.parent_session_id) limit 1
    ) p on true`;
}
