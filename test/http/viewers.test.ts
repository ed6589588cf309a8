import { describe, expect, test } from 'vitest';
import { END_REASONS } from '../../src/domain/closing.ts';
import { sweepViewers } from '../../src/operations/detach-viewer.ts';
import { useDatabase } from '../support/database.ts';
import { deliverTo, freshId, path } from '../support/delivery.ts';
import { attach, forgetLease, leave } from '../support/viewers.ts';
import { useService } from '../support/service.ts';

const database = useDatabase();
const service = useService(database);

const sessionOf = async (id: string) => (await service.request('GET', path(id))).body;
const describeSession = (id: string, body: object = {}) => service.request('PUT', path(id), body);
const runsOut = (viewer: string) => forgetLease(database.sql, viewer);

describe('attaching', () => {
  test('answers the viewer and its lease, for a session of which nobody has heard too', async () => {
    const answer = await service.request('POST', `${path(freshId())}/viewers`);
    expect(answer).toMatchObject({
      status: 201,
      body: { viewer_id: expect.stringMatching(/^viewer_[0-9a-f]{12,}$/), lease_seconds: 60 },
    });
  });

  test('is refused for a deleted session', async () => {
    const id = freshId();
    await describeSession(id);
    await service.request('DELETE', path(id));
    expect((await service.request('POST', `${path(id)}/viewers`)).status).toBe(404);
  });
});

describe('renewing', () => {
  test('begins the lease anew', async () => {
    const id = freshId();
    const viewer = await attach(service, id);
    const answer = await service.request('PUT', `${path(id)}/viewers/${viewer}`);
    expect(answer).toMatchObject({ status: 200, body: { viewer_id: viewer, lease_seconds: 60 } });
  });

  test.each(['whose lease has run out', 'of another session', 'that never was'])(
    'is refused to a viewer %s',
    async (which) => {
      const id = freshId();
      const viewer = await attach(service, which === 'of another session' ? freshId() : id);
      if (which === 'whose lease has run out') await forgetLease(database.sql, viewer);
      const named = which === 'that never was' ? freshId('viewer') : viewer;
      expect((await service.request('PUT', `${path(id)}/viewers/${named}`)).status).toBe(404);
    },
  );
});

describe('leaving', () => {
  test.each(END_REASONS)('as the last viewer, for %s, closes the session', async (reason) => {
    const id = freshId();
    await describeSession(id);
    expect((await leave(service, id, await attach(service, id), reason)).status).toBe(204);
    expect(await sessionOf(id)).toMatchObject({
      closed_at: expect.any(String),
      end_reason: reason,
    });
  });

  test.each([undefined, ''])('without a reason (%j) closes nothing', async (reason) => {
    const id = freshId();
    await describeSession(id);
    const viewer = await attach(service, id);
    expect((await leave(service, id, viewer, reason)).status).toBe(204);
    expect((await service.request('PUT', `${path(id)}/viewers/${viewer}`)).status).toBe(404);
    expect(await sessionOf(id)).toMatchObject({ closed_at: null, end_reason: null });
  });

  test('while somebody else watches closes nothing', async () => {
    const id = freshId();
    await describeSession(id);
    await attach(service, id);
    await leave(service, id, await attach(service, id), 'cli_close');
    expect(await sessionOf(id)).toMatchObject({ closed_at: null });
  });

  test('closes when the others have only been forgotten', async () => {
    const id = freshId();
    await describeSession(id);
    const dead = await attach(service, id);
    const viewer = await attach(service, id);
    await forgetLease(database.sql, dead);
    await leave(service, id, viewer, 'cli_close');
    expect(await sessionOf(id)).toMatchObject({ end_reason: 'cli_close' });
    expect((await service.request('PUT', `${path(id)}/viewers/${dead}`)).status).toBe(404);
  });

  test.each<[string, (viewer: string, id: string) => Promise<unknown>]>([
    ['left before', (viewer, id) => leave(service, id, viewer)],
    ['let its lease run out', runsOut],
    ['was swept away', (viewer) => runsOut(viewer).then(() => sweepViewers(service.resources))],
  ])('is harmless, and closes nothing, for a viewer that %s', async (_, goes) => {
    const id = freshId();
    await describeSession(id);
    const viewer = await attach(service, id);
    await goes(viewer, id);
    expect((await service.request('PUT', `${path(id)}/viewers/${viewer}`)).status).toBe(404);
    expect((await leave(service, id, viewer, 'cli_close')).status).toBe(204);
    expect(await sessionOf(id)).toMatchObject({ closed_at: null, end_reason: null });
  });

  test('is harmless, and closes nothing, for a viewer of another session, or of none', async () => {
    const id = freshId();
    await describeSession(id);
    for (const viewer of [await attach(service, freshId()), freshId('viewer')]) {
      expect((await leave(service, id, viewer, 'cli_close')).status).toBe(204);
      expect(await sessionOf(id)).toMatchObject({ closed_at: null, end_reason: null });
    }
  });

  test('is refused with a reason that nobody knows, which changes nothing', async () => {
    const id = freshId();
    const viewer = await attach(service, id);
    for (const reason of [
      'bored',
      '%20',
      'CLI_CLOSE',
      'cli_close%20',
      'compression',
      'constructor',
    ]) {
      const answer = await service.request(
        'DELETE',
        `${path(id)}/viewers/${viewer}?end_reason=${reason}`,
      );
      expect(answer).toMatchObject({ status: 400, body: { error: 'invalid_input' } });
    }
    expect((await service.request('PUT', `${path(id)}/viewers/${viewer}`)).status).toBe(200);
  });

  test('is taken back by whoever attaches next', async () => {
    const id = freshId();
    await describeSession(id);
    await leave(service, id, await attach(service, id), 'tui_close');
    await attach(service, id);
    expect(await sessionOf(id)).toMatchObject({ closed_at: null, end_reason: null });
  });
});

test('a lease that runs out is a detach without a reason', async () => {
  const id = freshId();
  await describeSession(id);
  const [dead, alive] = [await attach(service, id), await attach(service, id)];
  await forgetLease(database.sql, dead);
  await sweepViewers(service.resources);
  const left = await database.sql`select viewer_id from viewers where session_id = ${id}`;
  expect(left).toEqual([{ viewer_id: alive }]);
  await forgetLease(database.sql, alive);
  await sweepViewers(service.resources);
  expect(await sessionOf(id)).toMatchObject({ closed_at: null });
});

test('the viewers of a session go on with it', async () => {
  const [before, after] = [freshId(), freshId()];
  await describeSession(before, { channel: { kind: 'tui' }, inbox: 'open' });
  await describeSession(after, { channel: { kind: 'tui' } });
  const viewer = await attach(service, before);
  await describeSession(before, { continued_as: after });
  for (const id of [before, after]) {
    expect((await service.request('PUT', `${path(id)}/viewers/${viewer}`)).status).toBe(200);
  }
  await leave(service, before, viewer, 'session_switch');
  expect(await sessionOf(after)).toMatchObject({ end_reason: 'session_switch' });
});

test('the viewers of a deleted session are gone, and none of them is there in the next one', async () => {
  const id = freshId();
  await describeSession(id);
  const viewer = await attach(service, id);
  await service.request('DELETE', path(id));
  await describeSession(id);
  expect((await service.request('PUT', `${path(id)}/viewers/${viewer}`)).status).toBe(404);
});

const dispositionOf = async (parent: string, itemId: string) => {
  const answer = await service.request('GET', `${path(parent)}/inbox/${itemId}`);
  return answer.body.disposition;
};

const parentOn = async (kind: string | null) => {
  const parent = freshId('parent');
  const channel = kind === null ? {} : { channel: { kind } };
  await describeSession(parent, { ...channel, inbox: 'open' });
  return parent;
};

describe('what a result is to its parent', () => {
  test.each(['cli', 'tui', 'desktop'])('a note in a %s session that nobody views', async (kind) => {
    const parent = await parentOn(kind);
    const { itemId } = await deliverTo(service, parent);
    expect(await dispositionOf(parent, itemId)).toBe('note');
    // Settled: whoever looks later does not make it a turn.
    await attach(service, parent);
    expect(await dispositionOf(parent, itemId)).toBe('note');
  });

  test.each(['cli', 'tui', 'desktop'])('a turn in a %s session that is viewed', async (kind) => {
    const parent = await parentOn(kind);
    const viewer = await attach(service, parent);
    const { itemId } = await deliverTo(service, parent);
    await leave(service, parent, viewer, 'cli_close');
    expect(await dispositionOf(parent, itemId)).toBe('turn');
  });

  test.each(['telegram', 'api_server', null])('a turn on %s, viewed or not', async (kind) => {
    const parent = await parentOn(kind);
    const { itemId } = await deliverTo(service, parent);
    expect(await dispositionOf(parent, itemId)).toBe('turn');
  });

  test('a note when the viewer is only one whose lease has run out', async () => {
    const parent = await parentOn('cli');
    await forgetLease(database.sql, await attach(service, parent));
    const { itemId } = await deliverTo(service, parent);
    expect(await dispositionOf(parent, itemId)).toBe('note');
  });
});
