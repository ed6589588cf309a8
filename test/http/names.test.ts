import { describe, expect, test } from 'vitest';
import { useDatabase } from '../support/database.ts';
import { freshId, path } from '../support/delivery.ts';
import { useService } from '../support/service.ts';

const database = useDatabase();
const service = useService(database);

const put = (id: string, body: object) => service.request('PUT', path(id), body);

describe.each([[''], ['   '], ['\t\u3000\n']])('the name %j is none', (blank) => {
  test('of a session', async () => {
    const id = freshId();
    const { body } = await put(id, { agent_name: blank, sub_agent_name: blank });
    expect(body).toMatchObject({ agent_name: null, sub_agent_name: null });
  });

  test.each([
    [{ agent_name: 'coder' }, 'coder'],
    [{ agent_name: 'coder', sub_agent_name: blank }, 'coder'],
    [{ sub_agent_name: 'reviewer' }, 'reviewer'],
    [{}, 'sub-agent'],
  ])('of work or of a task: the child %j keeps its own', async (snapshot, agent) => {
    const [parent, child] = [freshId('parent'), freshId('child')];
    await put(child, snapshot);
    const work = { child_session_id: child, agent: blank };
    const dispatched = await service.request('POST', `${path(parent)}/work`, work);
    expect(dispatched.body.agent).toBe(agent);
    await service.request('DELETE', `/v1/work/${dispatched.body.work_id}`);
    const tasks = [{ goal: 'x', ...work }];
    await service.request('POST', `${path(parent)}/delegations`, { tasks });
    expect((await put(child, {})).body.work).toMatchObject({ goal: 'x', agent });
  });

  test('of a group or a model', async () => {
    const parent = freshId('parent');
    const call = (said: object) => service.request('POST', `${path(parent)}/delegations`, said);
    const task = { goal: 'x', group: blank, model: blank };
    const of = { tasks: [task, task], independent_completions: true };
    const { body } = await call({ ...of, model: 'm1' });
    expect(body.units).toMatchObject([{ group: null }, { group: null }]);
    const { body: shown } = await service.request('GET', `/v1/delegations/${body.delegation_id}`);
    expect(shown.tasks).toMatchObject([{ model: 'm1' }, { model: 'm1' }]);
    const without = await call({ ...of, model: blank });
    const id = without.body.delegation_id;
    const { body: other } = await service.request('GET', `/v1/delegations/${id}`);
    expect(other).toMatchObject({ model: null, tasks: [{ model: null }, { model: null }] });
  });
});

describe('an empty key is none', () => {
  test('of a session', async () => {
    const id = freshId();
    await put(id, { agent_id: 'a', runner_id: 'r' });
    const { body } = await put(id, { agent_id: '', runner_id: '' });
    expect(body).toMatchObject({ agent_id: null, runner_id: null });
  });

  test('of a delegation, or of work', async () => {
    const [parent, child] = [freshId('parent'), freshId('child')];
    const said = { tasks: [{ goal: 'x' }], session_key: '', origin_ui_session_id: '' };
    const call = await service.request('POST', `${path(parent)}/delegations`, said);
    const { body } = await service.request('GET', `/v1/delegations/${call.body.delegation_id}`);
    expect(body).toMatchObject({ session_key: null, origin_ui_session_id: null });
    const work = { child_session_id: child, created_by: '' };
    const dispatched = await service.request('POST', `${path(parent)}/work`, work);
    const shown = await service.request('GET', `/v1/work/${dispatched.body.work_id}`);
    expect(shown).toMatchObject({ status: 200, body: { created_by: null } });
  });
});
