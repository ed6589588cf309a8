import { sql } from 'drizzle-orm';
import type { WorkStatus } from '../domain/work.ts';
import type { Queryable } from './database.ts';

export interface RunnerKey {
  tenantId: string;
  runnerId: string;
}

/** Grants the runner a lease from now on, whether it had one or not. */
export async function renewLease(
  tx: Queryable,
  lease: RunnerKey & { leaseMs: number; now: number },
): Promise<void> {
  await tx.execute(sql`
    insert into runners (tenant_id, runner_id, lease_ms, renewed_at)
    values (${lease.tenantId}, ${lease.runnerId}, ${lease.leaseMs}, ${lease.now}::timestamptz)
    on conflict (tenant_id, runner_id) do update set
      lease_ms = excluded.lease_ms, renewed_at = excluded.renewed_at, lost_at = null`);
}

/** A child's current entry, as far as it says whether the child is to be stopped. */
export interface StoppableWork {
  sessionId: string;
  workId: string;
  status: WorkStatus;
  interruptReason: string | null;
}

/**
 * The children on the runner that may have to be stopped, by session id; those whose work ended
 * before `endedSince` are left out.
 */
export async function selectStoppableOfRunner(
  db: Queryable,
  of: RunnerKey & { endedSince: number; limit: number },
): Promise<StoppableWork[]> {
  return await db.execute<StoppableWork & Record<string, unknown>>(sql`
    select s.id as "sessionId", w.work_id as "workId", w.status,
      w.interrupt_reason as "interruptReason"
    from sessions s
    join work w on w.tenant_id = s.tenant_id and w.work_id = s.current_work_id
    where s.runner_id = ${of.runnerId} and s.tenant_id = ${of.tenantId}
      and w.interrupt_reason is not null
      and (w.ended_at is null or w.ended_at >= ${of.endedSince}::timestamptz)
    order by s.id limit ${of.limit}`);
}

export interface Lease extends RunnerKey {
  leaseMs: number;
  renewedAt: number;
}

/** Leases that may be over by the wall clock: not yet found lost, longest over first. */
export async function selectLeasesToJudge(
  db: Queryable,
  page: { now: number; limit: number },
): Promise<Lease[]> {
  return await db.execute<Lease & Record<string, unknown>>(sql`
    select tenant_id as "tenantId", runner_id as "runnerId", lease_ms as "leaseMs",
      (extract(epoch from renewed_at) * 1000)::float8 as "renewedAt"
    from runners
    where lost_at is null
      and (renewed_at + lease_ms * interval '1 millisecond' <= ${page.now}::timestamptz
        or renewed_at > ${page.now}::timestamptz)
    order by renewed_at limit ${page.limit}`);
}

export interface LiveWorkOfRunner {
  sessionId: string;
  workId: string;
  apiCalls: number | null;
  model: string | null;
}

/**
 * Work of children on the runner that has not ended, by session id; without that of which a result
 * is parked, whether the child's own or what was said in its place.
 */
export async function selectLiveWorkOfRunner(
  db: Queryable,
  of: RunnerKey & { limit: number },
): Promise<LiveWorkOfRunner[]> {
  return await db.execute<LiveWorkOfRunner & Record<string, unknown>>(sql`
    select s.id as "sessionId", w.work_id as "workId", h.api_calls as "apiCalls", w.model
    from sessions s
    join work w on w.tenant_id = s.tenant_id and w.work_id = s.current_work_id
    left join heartbeats h on h.tenant_id = w.tenant_id and h.child_session_id = s.id
      and h.work_id = w.work_id
    where s.runner_id = ${of.runnerId} and s.tenant_id = ${of.tenantId} and w.ended_at is null
      and not exists (select 1 from parked_reports k where k.tenant_id = w.tenant_id
        and k.child_session_id = s.id and k.work_id = w.work_id and k.state = 'parked')
    order by s.id limit ${of.limit}`);
}

/** Takes note that the lease has run out, unless it was renewed meanwhile. */
export async function markLost(db: Queryable, lease: Lease & { now: number }): Promise<void> {
  await db.execute(sql`
    update runners set lost_at = ${lease.now}::timestamptz
    where tenant_id = ${lease.tenantId} and runner_id = ${lease.runnerId} and lost_at is null
      and renewed_at = ${lease.renewedAt}::timestamptz`);
}

/** Forgets runners that were lost before `lostBefore`; says how many. */
export async function deleteLostRunners(
  db: Queryable,
  to: { lostBefore: number; limit: number },
): Promise<number> {
  const rows = await db.execute(sql`
    delete from runners where (tenant_id, runner_id) in (
      select tenant_id, runner_id from runners where lost_at < ${to.lostBefore}::timestamptz
      limit ${to.limit} for update skip locked)
    returning runner_id`);
  return rows.length;
}
