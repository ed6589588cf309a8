import { randomBytes } from 'node:crypto';
import { link, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { processIdentity } from './embedded-postgres-processes.ts';

interface Holder {
  pid: number;
  identity: string;
}

const PREFIX = 'service.lock.';
/** Each round is lost to a competitor that made progress, so this many are never needed. */
const MAX_ROUNDS = 100;

/**
 * Makes this process the only service on the folder until the returned function is called or the
 * process dies; throws, naming the folder and the pid, when another process is.
 *
 * Node has no flock, and "remove the dead holder's file, create mine" lets two processes win: the
 * slower one removes the file of the faster. So a lock file is never removed to be taken over.
 * Files are numbered, the highest number holds, and whoever takes over a dead holder creates the
 * next number, which the file system grants once. Lower numbers are then swept.
 */
export async function lockFolder(folder: string): Promise<() => Promise<void>> {
  const identity = await processIdentity(process.pid);
  if (identity === undefined) throw new Error('Cannot find this process in the process table');
  const me: Holder = { pid: process.pid, identity };

  for (let round = 0; round < MAX_ROUNDS; round++) {
    const highest = await highestNumber(folder);
    const holder = await readHolder(lockPath(folder, highest));
    if (holder !== undefined && (await processIdentity(holder.pid)) === holder.identity) {
      throw new Error(
        `The data folder ${folder} is in use by another subagent-inbox process (pid ${holder.pid}). ` +
          'Stop that one, or give this one a folder of its own or a DATABASE_URL.',
      );
    }
    const number = highest + 1;
    if (!(await createWhole(lockPath(folder, number), JSON.stringify(me)))) continue;
    if ((await highestNumber(folder)) !== number) {
      // The look before was out of date: a later holder had already swept this number.
      await rm(lockPath(folder, number), { force: true });
      continue;
    }
    await sweep(folder, number);
    // Emptied, not removed: the number must stay the highest for whoever looks at an old listing.
    return () => replaceWhole(lockPath(folder, number), '');
  }
  throw new Error(`The data folder ${folder} could not be locked`);
}

function lockPath(folder: string, number: number): string {
  return join(folder, `${PREFIX}${number}`);
}

async function highestNumber(folder: string): Promise<number> {
  const numbers = (await readdir(folder))
    .filter((name) => name.startsWith(PREFIX))
    .map((name) => Number(name.slice(PREFIX.length)))
    .filter(Number.isInteger);
  return Math.max(0, ...numbers);
}

/** Undefined when the file is empty (released) or gone. */
async function readHolder(path: string): Promise<Holder | undefined> {
  try {
    const content = await readFile(path, 'utf8');
    return content === '' ? undefined : (JSON.parse(content) as Holder);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}

/** Creates a file that is complete from the moment it is seen; false when its name is taken. */
async function createWhole(path: string, content: string): Promise<boolean> {
  const draft = await writeDraft(path, content);
  try {
    await link(draft, path);
    return true;
  } catch (error) {
    // ENOENT: a competitor that won swept the draft.
    const code = (error as NodeJS.ErrnoException).code;
    if (code === 'EEXIST' || code === 'ENOENT') return false;
    throw error;
  } finally {
    await rm(draft, { force: true });
  }
}

async function replaceWhole(path: string, content: string): Promise<void> {
  await rename(await writeDraft(path, content), path);
}

async function writeDraft(path: string, content: string): Promise<string> {
  const draft = `${path}.draft-${randomBytes(6).toString('hex')}`;
  await writeFile(draft, content, { flag: 'wx' });
  return draft;
}

async function sweep(folder: string, number: number): Promise<void> {
  for (const name of await readdir(folder)) {
    if (!name.startsWith(PREFIX)) continue;
    // Parsed, so that drafts (even of a higher number) go and later holders stay.
    const other = Number(name.slice(PREFIX.length));
    if (Number.isNaN(other) || other < number) await rm(join(folder, name), { force: true });
  }
}
