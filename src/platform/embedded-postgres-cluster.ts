import { createHash, randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdtemp, open, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { chooseUser, runProgram, type Binaries } from './embedded-postgres-binaries.ts';

/** A database cluster on disk that PostgreSQL can be started on. */
export interface Cluster {
  readonly binaries: Binaries;
  /** PostgreSQL's own data directory. */
  readonly pgdata: string;
  /** Also its cluster_name, by which the processes of this folder are known among all others. */
  readonly name: string;
  readonly password: string;
}

/** The database, and the role that owns it: no superuser, but free to create databases. */
export const DATABASE = 'subagent_inbox';

const DRAFT_PREFIX = 'postgres.new-';

/** Opens the cluster in the folder, making it first when there is none; the folder must be locked. */
export async function openCluster(
  binaries: Binaries,
  folder: string,
  options: { durable: boolean; giveUp: AbortSignal },
): Promise<Cluster> {
  const home = join(folder, 'postgres');
  await removeDrafts(folder);
  const usable = existsSync(home)
    ? await chooseUser(binaries, home)
    : await makeCluster(binaries, { folder, home, ...options });
  const pgdata = join(home, 'data');
  const digest = createHash('sha256').update(pgdata).digest('hex');
  return {
    binaries: usable,
    pgdata,
    name: `subagent_inbox_${digest.slice(0, 16)}`,
    password: (await readFile(join(home, 'password'), 'utf8')).trim(),
  };
}

/**
 * Makes PostgreSQL believe that a pid file naming another process is stale when it is.
 *
 * PostgreSQL refuses to start while the pid in that file runs, even when it has become somebody
 * else's or is a zombie. The file is not removed, because it also says which shared memory to
 * check for survivors: its pid is replaced by that of this process, which PostgreSQL, started by
 * it, knows not to be a server. The cluster's processes must have been stopped before.
 */
export async function disownPidFile(cluster: Cluster): Promise<void> {
  const path = join(cluster.pgdata, 'postmaster.pid');
  if (!existsSync(path)) return;
  const [, ...rest] = (await readFile(path, 'utf8')).split('\n');
  // An empty file is what a power failure leaves; PostgreSQL refuses that one as well.
  if (rest.length === 0) await rm(path);
  else await writeFile(path, [String(process.pid), ...rest].join('\n'));
}

/** The pid of the server that says it accepts connections on this cluster, if one does. */
export async function readyPid(cluster: Cluster): Promise<number | undefined> {
  try {
    const lines = (await readFile(join(cluster.pgdata, 'postmaster.pid'), 'utf8')).split('\n');
    return lines[7]?.trim() === 'ready' ? Number(lines[0]) : undefined;
  } catch {
    return undefined;
  }
}

/**
 * The cluster appears under its name only when it is whole: an initdb that was interrupted leaves
 * a draft, which the next start removes.
 */
async function makeCluster(
  binaries: Binaries,
  {
    folder,
    home,
    durable,
    giveUp,
  }: { folder: string; home: string; durable: boolean; giveUp: AbortSignal },
): Promise<Binaries> {
  const draft = await mkdtemp(join(folder, DRAFT_PREFIX));
  const usable = await chooseUser(binaries, draft);
  const pgdata = join(draft, 'data');
  const initdb = [
    `--pgdata=${pgdata}`,
    '--username=postgres',
    '--encoding=UTF8',
    // Sorts by code point on every machine alike, as C does, but knows the letters of Unicode.
    '--locale=C',
    '--locale-provider=builtin',
    '--builtin-locale=C.UTF-8',
    '--auth=reject',
    '--no-instructions',
    ...(durable ? [] : ['--no-sync']),
  ];
  await runProgram(usable, 'initdb', initdb, { giveUp });
  const password = randomBytes(24).toString('hex');
  // Before the first start of a server, so that nobody ever gets in without the password. The
  // superuser has none and no line here: it exists in single-user mode only.
  await writeFile(
    join(pgdata, 'pg_hba.conf'),
    `# host of the connection: loopback only\nhost all ${DATABASE} 127.0.0.1/32 scram-sha-256\n`,
  );
  // A failed statement would be printed with the password in it.
  const settings = ['exit_on_error=on', 'log_min_error_statement=panic'];
  const single = ['--single', '-D', pgdata, ...settings.flatMap((it) => ['-c', it]), 'postgres'];
  const input =
    `CREATE ROLE ${DATABASE} LOGIN CREATEDB PASSWORD '${password}'\n` +
    `CREATE DATABASE ${DATABASE} OWNER ${DATABASE}\n`;
  await runProgram(usable, 'postgres', single, { giveUp, input });
  await writeFile(join(draft, 'password'), `${password}\n`, { mode: 0o600, flush: durable });
  await rename(draft, home);
  if (durable) await syncFolder(folder);
  return usable;
}

/** What a later start cannot remove either (an initdb may still be writing) does not disturb it. */
async function removeDrafts(folder: string): Promise<void> {
  for (const name of await readdir(folder)) {
    if (!name.startsWith(DRAFT_PREFIX)) continue;
    await rm(join(folder, name), { recursive: true, force: true }).catch(() => {});
  }
}

async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder);
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
