import { sql } from 'drizzle-orm';
import type { Queryable } from './database.ts';
import { webhooks } from './schema.ts';

export type WebhookFormat = 'standard' | 'session_message';

export interface WebhookOf {
  tenantId: string;
  /** The last session of the chain. */
  sessionId: string;
}

/** Where the session is woken from outside; takes the place of what was there. */
export async function putWebhook(
  tx: Queryable,
  hook: WebhookOf & { url: string; secret: string | null; format: WebhookFormat; now: number },
): Promise<void> {
  const { tenantId, sessionId, url, secret, format, now } = hook;
  await tx
    .insert(webhooks)
    .values({ tenantId, sessionId, url, secret, format, createdAt: now })
    .onConflictDoUpdate({
      target: [webhooks.tenantId, webhooks.sessionId],
      set: { url, secret, format, createdAt: now },
    });
}

/** Removes the webhook and what is on its way to it; with `putAt` only if none was put since. */
export async function deleteWebhook(
  tx: Queryable,
  { tenantId, sessionId, putAt = null }: WebhookOf & { putAt?: number | null },
): Promise<void> {
  await tx.execute(sql`
    with gone as (
      delete from webhooks where tenant_id = ${tenantId} and session_id = ${sessionId}
        and created_at = coalesce(${putAt}::timestamptz, created_at)
      returning 1
    )
    delete from webhook_wakes where tenant_id = ${tenantId} and session_id = ${sessionId}
      and exists (select 1 from gone)`);
}

/** Removes the webhooks of these sessions and what is on its way to them. */
export async function deleteWebhooksOf(
  tx: Queryable,
  of: { tenantId: string; ids: string[] },
): Promise<void> {
  const ofThese = sql`tenant_id = ${of.tenantId} and session_id = any(${sql.param(of.ids)}::text[])`;
  await tx.execute(sql`delete from webhook_wakes where ${ofThese}`);
  await tx.execute(sql`delete from webhooks where ${ofThese}`);
}

/** The session that goes on is woken where this one was, unless it has a webhook of its own. */
export async function moveWebhook(
  tx: Queryable,
  move: { tenantId: string; fromId: string; toId: string },
): Promise<void> {
  await tx.execute(sql`
    insert into webhooks (tenant_id, session_id, url, secret, format, created_at)
    select tenant_id, ${move.toId}, url, secret, format, created_at from webhooks
    where tenant_id = ${move.tenantId} and session_id = ${move.fromId}
    on conflict do nothing`);
  await deleteWebhooksOf(tx, { tenantId: move.tenantId, ids: [move.fromId] });
}

// ---- what is on its way

/** A wake for the session's webhook. */
export interface NewWebhookWake extends WebhookOf {
  id: string;
  number: number;
  notice: string;
  pending: number;
  itemId: string | null;
  createdBy: string | null;
}

/** Has the webhooks of these sessions called; what was on its way to one gives way to its newer. */
export async function putWebhookWakes(
  tx: Queryable,
  rows: readonly NewWebhookWake[],
  now: number,
): Promise<void> {
  await tx.execute(sql`
    insert into webhook_wakes (tenant_id, session_id, id, number, notice, pending, item_id,
      created_by, due_at, created_at)
    select r.*, ${now}::timestamptz, ${now}::timestamptz
    from unnest(
      ${sql.param(rows.map((r) => r.tenantId))}::text[],
      ${sql.param(rows.map((r) => r.sessionId))}::text[],
      ${sql.param(rows.map((r) => r.id))}::text[],
      ${sql.param(rows.map((r) => r.number))}::int[],
      ${sql.param(rows.map((r) => r.notice))}::text[],
      ${sql.param(rows.map((r) => r.pending))}::int[],
      ${sql.param(rows.map((r) => r.itemId))}::text[],
      ${sql.param(rows.map((r) => r.createdBy))}::text[]
    ) as r(tenant_id, session_id, id, number, notice, pending, item_id, created_by)
    order by r.tenant_id, r.session_id
    on conflict (tenant_id, session_id) do update set id = excluded.id, number = excluded.number,
      notice = excluded.notice, pending = excluded.pending, item_id = excluded.item_id,
      created_by = excluded.created_by, with_created_by = true, tries = 0,
      due_at = excluded.due_at, created_at = excluded.created_at`);
}

/** A wake that this replica is to send, with where to. */
export interface ClaimedWake extends NewWebhookWake {
  withCreatedBy: boolean;
  /** This one included. */
  tries: number;
  createdAt: number;
  /** When the webhook was put. */
  putAt: number;
  url: string;
  secret: string | null;
  format: WebhookFormat;
}

/**
 * Takes wakes that are due, longest first, at most `limit`: nobody else does before `leasedUntil`,
 * when whoever took them must have died. One whose webhook was removed while it was announced stays.
 */
export async function claimWebhookWakes(
  db: Queryable,
  { now, leasedUntil, limit }: { now: number; leasedUntil: number; limit: number },
): Promise<ClaimedWake[]> {
  return await db.execute<ClaimedWake & Record<string, unknown>>(sql`
    with due as materialized (
      select w.tenant_id, w.session_id, h.created_at as put_at, h.url, h.secret, h.format
      from webhook_wakes w
      join webhooks h on h.tenant_id = w.tenant_id and h.session_id = w.session_id
      where w.due_at <= ${now}::timestamptz
      order by w.due_at limit ${limit} for update of w skip locked
    )
    update webhook_wakes w set due_at = ${leasedUntil}::timestamptz, tries = w.tries + 1
    from due d
    where w.tenant_id = d.tenant_id and w.session_id = d.session_id
    returning w.tenant_id as "tenantId", w.session_id as "sessionId", w.id, w.number, w.notice,
      w.pending, w.item_id as "itemId", w.created_by as "createdBy",
      w.with_created_by as "withCreatedBy", w.tries, w.created_at as "createdAt",
      d.put_at as "putAt", d.url, d.secret, d.format`);
}

/** This wake has come to its end; not if a newer one has taken its place. */
export async function deleteWebhookWake(
  db: Queryable,
  { tenantId, sessionId, id }: WebhookOf & { id: string },
): Promise<void> {
  await db.execute(sql`
    delete from webhook_wakes
    where tenant_id = ${tenantId} and session_id = ${sessionId} and id = ${id}`);
}

/** What is on its way to the webhooks of these sessions is not sent any more. */
export async function deleteWebhookWakesOf(
  tx: Queryable,
  sessions: readonly WebhookOf[],
): Promise<void> {
  await tx.execute(sql`
    delete from webhook_wakes where (tenant_id, session_id) in (
      select * from unnest(
        ${sql.param(sessions.map((of) => of.tenantId))}::text[],
        ${sql.param(sessions.map((of) => of.sessionId))}::text[]))`);
}

/** This wake is tried again then; not if someone else has tried it since. */
export async function retryWebhookWake(
  db: Queryable,
  wake: WebhookOf & { id: string; tries: number; dueAt: number; withCreatedBy: boolean },
): Promise<void> {
  await db.execute(sql`
    update webhook_wakes set due_at = ${wake.dueAt}::timestamptz,
      with_created_by = ${wake.withCreatedBy}
    where tenant_id = ${wake.tenantId} and session_id = ${wake.sessionId} and id = ${wake.id}
      and tries = ${wake.tries}`);
}
