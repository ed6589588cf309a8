import { setTimeout as pause } from 'node:timers/promises';
import type { MigratedDatabase } from './database.ts';

/*
 * What PostgreSQL has counted in the test file's database. A connection may keep what it has counted
 * until it ends, so every other one is ended first; services make new ones. One that is only being
 * opened has counted nothing, and a service that loses it takes the database for down.
 */

/** How many deadlocks there have been. */
export async function countDeadlocks(database: MigratedDatabase): Promise<number> {
  await endOtherConnections(database);
  const [row] = await database.sql<{ deadlocks: number }[]>`
    select deadlocks::int from pg_stat_database where datname = current_database()`;
  return row?.deadlocks ?? NaN;
}

/** How many rows and index entries have been read, by which table, and pieces of large values. */
export async function countReads(database: MigratedDatabase): Promise<Map<string, number>> {
  await endOtherConnections(database);
  const rows = await database.sql<{ name: string; reads: number }[]>`
    select t.relname as name, (t.seq_tup_read + coalesce(sum(i.idx_tup_read), 0))::int as reads
    from pg_stat_user_tables t left join pg_stat_user_indexes i on i.relid = t.relid
    group by t.relid, t.relname, t.seq_tup_read
    union all
    select 'large values of ' || t.relname, coalesce(sum(i.idx_tup_read), 0)::int
    from pg_stat_user_tables t join pg_class c on c.oid = t.relid
    join pg_stat_all_indexes i on i.relid = c.reltoastrelid
    group by t.relname`;
  return new Map(rows.map(({ name, reads }) => [name, reads]));
}

async function endOtherConnections({ sql }: MigratedDatabase): Promise<void> {
  const ended = await sql<{ pid: number }[]>`
    select pid, pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend'
      and application_name <> current_setting('application_name')
      and query not in ('', 'select 1')`;
  const pids = ended.map(({ pid }) => pid);
  while ((await sql`select 1 from pg_stat_activity where pid = any(${pids})`).length > 0) {
    await pause(5);
  }
  // A backend closes its connection after it has left that list, as its process ends; the services
  // of this process must have seen it before they are asked anything.
  for (const pid of pids) await untilGone(pid);
  for (let turns = 0; turns < 5; turns += 1) await new Promise(setImmediate);
}

/** Waits for the process to end, where the server runs on this machine; for a second at most. */
async function untilGone(pid: number): Promise<void> {
  for (let tries = 0; tries < 200 && isRunning(pid); tries += 1) await pause(5);
}

function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
