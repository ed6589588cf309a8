import { setTimeout as pause } from 'node:timers/promises';
import type { MigratedDatabase } from './database.ts';

/**
 * How many deadlocks there have been in the test file's database. A connection may keep what it has
 * counted until it ends, so every other one is ended first; services make new ones.
 */
export async function countDeadlocks({ sql }: MigratedDatabase): Promise<number> {
  const ended = await sql<{ pid: number }[]>`
    select pid, pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend'
      and application_name <> current_setting('application_name')`;
  const pids = ended.map(({ pid }) => pid);
  while ((await sql`select 1 from pg_stat_activity where pid = any(${pids})`).length > 0) {
    await pause(5);
  }
  const [row] = await sql<{ deadlocks: number }[]>`
    select deadlocks::int from pg_stat_database where datname = current_database()`;
  return row?.deadlocks ?? NaN;
}
