import { execFile } from 'node:child_process';
import { readdir, readFile } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';

interface RunningProcess {
  pid: number;
  /** The command line with its arguments separated by single spaces. */
  command: string;
}

/** Long enough for the checkpoint of a fast shutdown; after it a server is made to recover instead. */
const FAST_SHUTDOWN_MS = 10_000;
/** What is left of an immediate shutdown after this is killed. */
const IMMEDIATE_SHUTDOWN_MS = 3_000;
const POLL_MS = 20;

/**
 * Tells one process from every other that had or will have its pid; undefined when no such process
 * runs. A zombie does not run: it holds nothing, and containers without an init never reap it.
 */
export async function processIdentity(pid: number): Promise<string | undefined> {
  if (process.platform !== 'linux') {
    const line = await ps(['-o', 'state=,lstart=', '-p', String(pid)]);
    return line === '' || line.startsWith('Z') ? undefined : line.replace(/^\S+\s+/, '');
  }
  const stat = await readIfThere(`/proc/${pid}/stat`);
  // The name, in brackets, may itself hold spaces and brackets: fields are counted from the last one.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  const [state, startTicks] = [fields[0], fields[19]];
  if (startTicks === undefined || state === 'Z' || state === 'X') return undefined;
  const boot = await readIfThere('/proc/sys/kernel/random/boot_id');
  return `${boot.trim()}/${startTicks}`;
}

/**
 * Ends every PostgreSQL process whose cluster_name is the given one, gently first, and returns when
 * none is left; returns how many there were.
 */
export async function stopCluster(clusterName: string): Promise<number> {
  const found = await clusterProcesses(clusterName);
  if (found.length === 0) return 0;
  // A fast shutdown is asked of the postmaster alone (a backend would take it for a cancelled
  // query). Backends that lost their postmaster end by themselves as soon as they look up.
  signal(found.filter(isPostmaster), 'SIGINT');
  if (await clusterEnds(clusterName, FAST_SHUTDOWN_MS)) return found.length;
  signal(await clusterProcesses(clusterName), 'SIGQUIT');
  if (await clusterEnds(clusterName, IMMEDIATE_SHUTDOWN_MS)) return found.length;
  signal(await clusterProcesses(clusterName), 'SIGKILL');
  if (await clusterEnds(clusterName, IMMEDIATE_SHUTDOWN_MS)) return found.length;
  const left = (await clusterProcesses(clusterName)).map(({ pid }) => pid).join(', ');
  throw new Error(`PostgreSQL processes of an earlier run cannot be stopped: ${left}`);
}

async function clusterEnds(clusterName: string, limitMs: number): Promise<boolean> {
  const deadline = performance.now() + limitMs;
  while ((await clusterProcesses(clusterName)).length > 0) {
    if (performance.now() > deadline) return false;
    await delay(POLL_MS);
  }
  return true;
}

/**
 * The cluster name stands in the postmaster's arguments and in the title of each of its children, so
 * one look finds orphans too. A zombie has no command line and is not found.
 */
async function clusterProcesses(clusterName: string): Promise<RunningProcess[]> {
  const running = process.platform === 'linux' ? await listProc() : await listPs();
  return running.filter(
    (it) =>
      it.command.includes(`postgres: ${clusterName}: `) ||
      (isPostmaster(it) && it.command.includes(`cluster_name=${clusterName}`)),
  );
}

function isPostmaster({ command }: RunningProcess): boolean {
  return /\/postgres -D /.test(command);
}

async function listProc(): Promise<RunningProcess[]> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name)).map(Number);
  return Promise.all(
    pids.map(async (pid) => {
      const raw = await readIfThere(`/proc/${pid}/cmdline`);
      return { pid, command: raw.replaceAll('\0', ' ') };
    }),
  );
}

async function listPs(): Promise<RunningProcess[]> {
  const lines = (await ps(['-axww', '-o', 'pid=,command='])).split('\n');
  return lines.map((line) => {
    const [, pid, command] = /^\s*(\d+)\s+(.*)$/.exec(line) ?? [];
    return { pid: Number(pid), command: `${command ?? ''} ` };
  });
}

/** What `ps` prints, trimmed; empty when it finds nothing (it then fails). */
async function ps(args: string[]): Promise<string> {
  try {
    const { stdout } = await promisify(execFile)('/bin/ps', args, { env: { LC_ALL: 'C' } });
    return stdout.trim();
  } catch {
    return '';
  }
}

/** Processes end between being listed and being read: that is an empty answer, not an error. */
async function readIfThere(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8');
  } catch {
    return '';
  }
}

function signal(processes: RunningProcess[], name: NodeJS.Signals): void {
  for (const { pid } of processes) {
    try {
      process.kill(pid, name);
    } catch {
      // It ended meanwhile, or belongs to another user: then it is still listed at the deadline.
    }
  }
}
