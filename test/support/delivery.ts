import { randomUUID } from 'node:crypto';
import type { TestService } from './service.ts';

/** An id that no other test uses. */
export function freshId(what = 'conv'): string {
  return `${what}_${randomUUID().replaceAll('-', '').slice(0, 16)}`;
}

export interface Delivered {
  child: string;
  itemId: string;
  workId: string;
}

/** Has a new child of the parent report a result, which must be delivered. */
export async function deliverTo(
  service: Pick<TestService, 'request'>,
  parent: string,
  report: Record<string, unknown> = {},
): Promise<Delivered> {
  const child = freshId('child');
  await describeChild(service, parent, child);
  const answer = await reportIdle(service, child, report);
  const { headers } = answer;
  if (headers['delivery-outcome'] !== 'delivered') {
    throw new Error(`not delivered: ${answer.status} ${JSON.stringify(answer.body)}`);
  }
  return {
    child,
    itemId: String(headers['delivery-item-id']),
    workId: String(headers['delivery-work-id']),
  };
}

/** Makes a child of the parent known, as a reviewer. */
export async function describeChild(
  service: Pick<TestService, 'request'>,
  parent: string,
  child: string,
): Promise<void> {
  const body = { parent_session_id: parent, sub_agent_name: 'reviewer' };
  const answer = await service.request('PUT', path(child), body);
  if (answer.status >= 300) throw new Error(`not described: ${JSON.stringify(answer.body)}`);
}

/** Reports that the child's turn has ended, `idle` unless the report says otherwise. */
export function reportIdle(
  service: Pick<TestService, 'request'>,
  child: string,
  report: Record<string, unknown> = {},
) {
  const data = { status: 'idle', output: 'done', ...report };
  return service.request('POST', `${path(child)}/events`, {
    type: 'external_session_status',
    data,
  });
}

/** The session's path. */
export function path(session: string): string {
  return `/v1/sessions/${encodeURIComponent(session)}`;
}
