import type postgres from 'postgres';
import { path } from './delivery.ts';
import type { TestService } from './service.ts';

type Service = Pick<TestService, 'request'>;

/** Attaches a viewer to the session; answers its id. */
export async function attach(service: Service, session: string): Promise<string> {
  const answer = await service.request('POST', `${path(session)}/viewers`);
  if (answer.status !== 201) throw new Error(`not attached: ${JSON.stringify(answer.body)}`);
  return answer.body.viewer_id;
}

/** The viewer leaves; without a reason it only looks away. */
export function leave(service: Service, session: string, viewer: string, endReason?: string) {
  const query = endReason === undefined ? '' : `?end_reason=${endReason}`;
  return service.request('DELETE', `${path(session)}/viewers/${viewer}${query}`);
}

/** As if the viewer had died more than a lease ago, and the service had been there all the time. */
export async function forgetLease(sql: postgres.Sql, viewer: string): Promise<void> {
  await sql`
    insert into service_watch (tenant_id, observed_at, uninterrupted_since)
    values ('', now(), now() - interval '1 hour')
    on conflict (tenant_id) do update set observed_at = excluded.observed_at,
      uninterrupted_since = excluded.uninterrupted_since`;
  await sql`
    update viewers set renewed_at = now() - lease_ms * interval '1.1 milliseconds'
    where viewer_id = ${viewer}`;
}
