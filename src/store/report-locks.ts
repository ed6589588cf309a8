import { instantToWire } from './column-types.ts';
import type { LaneSql } from './database.ts';
import { reportPath, type Fragment } from './report-path.ts';

/* The locks of the ingest transaction, in the one order that everyone keeps: sessions, then calls. */

export interface LockedRow {
  /** child: for writing, which holds an inbox, too; inbox: against closing and deleting only. */
  kind: 'child' | 'inbox' | 'call';
  tenant_id: string;
  id: string;
}

/**
 * A batch never waits for a session, so it cannot be part of a deadlock. A report equal to the last
 * one applied is not locked at all: repeats are read-only. The parents' rows are locked against
 * closing, continuing and deleting, not against each other's deliveries. Calls are waited for:
 * whoever holds one waits for nothing else.
 */
export function lockSkipping(sql: LaneSql, keys: Fragment): PromiseLike<LockedRow[]>[] {
  return [
    sql<LockedRow[]>`
      with children as materialized (
        select s.tenant_id, s.id, s.current_work_id, s.parent_session_id, r.terminal,
          r.work_id, r.response_id
        from ${keys}
        join sessions s on s.tenant_id = r.tenant_id and s.id = r.id
        where s.last_report is distinct from r.fingerprint
        order by s.tenant_id, s.id for no key update of s skip locked
      ), parent_keys as materialized (
        select c.tenant_id, coalesce(w.parent_session_id, c.parent_session_id) as id,
          w.delegation_id
        from children c
        left join lateral (
          select * from work q
          where q.tenant_id = c.tenant_id and q.work_id = c.current_work_id limit 1
        ) w on true
        where c.terminal
      ), parents as materialized (
        select p.tenant_id, p.id, p.tip_session_id
        from parent_keys k join sessions p on p.tenant_id = k.tenant_id and p.id = k.id
        for key share of p skip locked
      ), tips as materialized (
        select t.tenant_id, t.id from parents p
        join sessions t on t.tenant_id = p.tenant_id and t.id = p.tip_session_id
        where p.tip_session_id is not null for key share of t skip locked
      ), calls as materialized (
        select d.tenant_id, d.delegation_id as id
        from (select distinct tenant_id, delegation_id from parent_keys
          where delegation_id is not null) k
        join delegations d on d.tenant_id = k.tenant_id and d.delegation_id = k.delegation_id
        order by d.tenant_id, d.delegation_id for no key update of d
      )
      select 'child' as kind, tenant_id, id from children
      union all select 'inbox', tenant_id, id from parents
      union all select 'inbox', tenant_id, id from tips
      union all select 'call', tenant_id, id from calls`,
  ];
}

/**
 * A single report waits: for its child's row and its parent's in one statement, in id order. A
 * session of which not even the name was known gets its row here, so that there is one to lock.
 *
 * What is wanted stands apart, and is joined: of a row that has changed while its lock was waited for,
 * PostgreSQL looks at the join again, and behind an `in (…)` it may find nothing and leave it out.
 */
export function lockWaiting(sql: LaneSql, keys: Fragment, now: number): PromiseLike<LockedRow[]>[] {
  return [
    sql<LockedRow[]>`
      insert into sessions (tenant_id, id, created_at)
      select r.tenant_id, r.id, ${instantToWire(now)}::timestamptz from ${keys} where r.terminal
      on conflict do nothing returning 'child' as kind, tenant_id, id`,
    sql<LockedRow[]>`
      with wanted as materialized (
        select r.tenant_id, r.id from ${keys}
        union
        select p.tenant_id, coalesce(p.tip_session_id, p.id)
        from ${reportPath(sql, keys)} where p.id is not null
      )
      select 'child' as kind, l.tenant_id, l.id
      from wanted k join sessions l on l.tenant_id = k.tenant_id and l.id = k.id
      order by l.tenant_id, l.id for no key update of l`,
    sql<LockedRow[]>`
      with wanted as materialized (
        select distinct r.tenant_id, coalesce(nw.delegation_id, w.delegation_id) as id
        from ${reportPath(sql, keys)} where s.id is not null
      )
      select 'call' as kind, d.tenant_id, d.delegation_id as id
      from wanted k join delegations d on d.tenant_id = k.tenant_id and d.delegation_id = k.id
      order by d.tenant_id, d.delegation_id for no key update of d`,
  ];
}
