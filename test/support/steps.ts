import { expect } from 'vitest';
import { freshId, path } from './delivery.ts';
import type { Answer } from './http-client.ts';
import type { TestService } from './service.ts';

/*
 * The steps of which the rows of a table of behaviours consist: each sends a request for a parent
 * and its child and compares the answer.
 */

/** Whom the steps of one row are about; nobody has heard of either. */
export interface Pair {
  service: Pick<TestService, 'request'>;
  parent: string;
  child: string;
}

export type Step = (pair: Pair) => Promise<unknown>;

/** A parent and a child of their own for one row. */
export function newPair(service: Pick<TestService, 'request'>): Pair {
  return { service, parent: freshId('parent'), child: freshId('child') };
}

/** Takes the steps one after the other. */
export async function take(pair: Pair, steps: readonly Step[]): Promise<void> {
  for (const step of steps) await step(pair);
}

/** An answer to a report in short: its status, its Delivery-Outcome, its reason. */
export function inShort(answer: Answer): string {
  const outcome = answer.headers['delivery-outcome'];
  const parts = [answer.status, outcome, answer.body?.reason].filter((part) => part != null);
  return parts.map(String).join(' ');
}

/** The child reports a status; `answer` as of `inShort`. */
export function says(data: unknown, answer: string): Step {
  return async (pair) => {
    expect(inShort(await status(pair, data))).toBe(answer);
  };
}

/** Posts a status report of the child. */
export function status({ service, child }: Pair, data: unknown): Promise<Answer> {
  const body = { type: 'external_session_status', data };
  return service.request('POST', `${path(child)}/events`, body);
}

/** The child's agent writes a message. */
export function writes(text: string, item: object = {}, data: object = {}): Step {
  return async ({ service, child }) => {
    const content = [{ type: 'output_text', text }];
    const answer = await service.request('POST', `${path(child)}/events`, {
      type: 'external_conversation_item',
      data: { item_type: 'message', item_data: { role: 'assistant', content, ...item }, ...data },
    });
    expect(answer).toMatchObject({ status: 202, body: { queued: false } });
  };
}

/** The parent dispatches work to the child. */
export function dispatches(body: object = {}, refusal?: object): Step {
  return async ({ service, parent, child }) => {
    const work = { child_session_id: child, ...body };
    const answer = await service.request('POST', `${path(parent)}/work`, work);
    expect(answer).toMatchObject(refusal ?? { status: 201 });
  };
}

/** The child is described as this parent's. */
export function isChild(snapshot: object = { sub_agent_name: 'reviewer' }): Step {
  return async ({ service, parent, child }) => {
    const body = { parent_session_id: parent, ...snapshot };
    const answer = await service.request('PUT', path(child), body);
    expect(answer.status).toBeLessThan(300);
  };
}

/** The session is described, and its parent is not. */
export function isDescribed(snapshot: (pair: Pair) => object): Step {
  return async (pair) => {
    const answer = await pair.service.request('PUT', path(pair.child), snapshot(pair));
    expect(answer.status).toBeLessThan(300);
  };
}

/** The parent's inbox is opened. */
export async function opens({ service, parent }: Pair): Promise<void> {
  const answer = await service.request('PUT', `${path(parent)}/inbox`);
  expect(answer).toMatchObject({ status: 200, body: { open: true } });
}

/** … and closed. */
export async function closes({ service, parent }: Pair): Promise<void> {
  expect((await service.request('DELETE', `${path(parent)}/inbox`)).status).toBe(204);
}

/** The parent reads and acks what is there: these outputs. */
export function reads(...outputs: string[]): Step {
  return async ({ service, parent }) => {
    const answer = await service.request('POST', `${path(parent)}/inbox/read`, { drain: true });
    expect(answer.status).toBe(200);
    expect(answer.body.items.map((item: { output: string }) => item.output)).toEqual(outputs);
  };
}

/** The parent or the child is deleted. */
export function deletes(whom: 'parent' | 'child'): Step {
  return async (pair) => {
    expect((await pair.service.request('DELETE', path(pair[whom]))).status).toBe(204);
  };
}

/** The child shows itself as a session with these members. */
export function shows(members: object): Step {
  return async ({ service, child }) => {
    expect((await service.request('GET', path(child))).body).toMatchObject(members);
  };
}

/** All that was ever delivered to the parent, read or not, in order. */
export async function inboxOf({ service, parent }: Pair): Promise<Record<string, unknown>[]> {
  const answer = await service.request('GET', `${path(parent)}/inbox?state=all&limit=1000`);
  return answer.status === 404 ? [] : answer.body.data;
}
