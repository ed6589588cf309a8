import { expect, test } from 'vitest';
import { NAME_MAX } from '../../src/domain/names.ts';
import { SESSION_ID_MAX } from '../../src/domain/session-id.ts';
import { useDatabase } from '../support/database.ts';

const database = useDatabase();

/** A B-tree refuses a row of more. */
const ROW_MAX_BYTES = 2_704;
/** Its head, and columns of fixed size. */
const REST_BYTES = 64;
const UTF8_MAX = 4;
const SESSION_ID = SESSION_ID_MAX * UTF8_MAX;
const NAME = NAME_MAX * UTF8_MAX;
/** Made here: ids, words of a status, hashes. */
const OURS = 128;

/** How long what stands in an indexed column may be, by the column's name. */
const BYTES: Record<string, number> = {
  tenant_id: OURS,
  id: SESSION_ID,
  session_id: SESSION_ID,
  child_session_id: SESSION_ID,
  parent_session_id: SESSION_ID,
  tip_session_id: SESSION_ID,
  runner_id: NAME,
  session_key: NAME,
  "(channel ->> 'route'::text)": NAME,
  work_id: OURS,
  unit_id: OURS,
  delegation_id: OURS,
  viewer_id: OURS,
  source: OURS,
  state: OURS,
  request_key: OURS,
  response_key: OURS,
  digest: OURS,
};

test('every index has room for whatever may stand in its columns', async () => {
  const indexes = await database.sql<{ name: string; columns: string[] }[]>`
    select i.indexrelid::regclass::text as name,
      array_agg(pg_get_indexdef(i.indexrelid, a.attnum, true)) as columns
    from pg_index i
    join pg_class t on t.oid = i.indrelid and t.relnamespace = 'public'::regnamespace
    join pg_attribute a on a.attrelid = i.indexrelid and a.attlen = -1
    group by 1 order by 1`;
  expect(indexes.length).toBeGreaterThan(30);
  for (const { name, columns } of indexes) {
    expect(
      columns.filter((column) => BYTES[column] === undefined),
      name,
    ).toEqual([]);
    const bytes = columns.reduce((sum, column) => sum + (BYTES[column] ?? 0), REST_BYTES);
    expect(bytes, name).toBeLessThanOrEqual(ROW_MAX_BYTES);
  }
});
