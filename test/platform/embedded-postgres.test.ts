import { execFile, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import {
  chmod,
  chown,
  cp,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  rm,
  writeFile,
} from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { promisify } from 'node:util';
import postgres from 'postgres';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import {
  startEmbeddedPostgres,
  type EmbeddedPostgres,
} from '../../src/platform/embedded-postgres.ts';
import { lockFolder } from '../../src/platform/embedded-postgres-lock.ts';
import { processIdentity } from '../../src/platform/embedded-postgres-processes.ts';

const repository = join(import.meta.dirname, '../..');
const isRoot = process.getuid?.() === 0;
const NOBODY = 65534;
/** As whom the server runs: PostgreSQL only minds a pid in its file that belongs to its own user. */
const serverUser = isRoot ? { uid: NOBODY, gid: NOBODY } : {};

/** A copy of the launcher and its PostgreSQL that other users can be kept from or let into. */
let base: string;
const cleanups: (() => unknown)[] = [];

beforeAll(async () => {
  base = await mkdtemp(join(tmpdir(), 'embedded-postgres-'));
  await chmod(base, 0o755);
  await buildProject(join(base, 'project'));
}, 60_000);

afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

afterAll(() => rm(base, { recursive: true, force: true }));

describe('an embedded PostgreSQL', () => {
  test('starts on an empty folder, and what was written is there after a stop and a start', async () => {
    const dataDir = await emptyFolder();
    const first = await start(dataDir);
    await query(first.url, (sql) => sql`create table kept as select 'hällo' as word`);
    await first.stop();
    await first.stop();
    const second = await start(dataDir);
    expect(await query(second.url, (sql) => sql`select word from kept`)).toEqual([
      { word: 'hällo' },
    ]);
  });

  test('is durable when asked to be, and only then', async () => {
    const dataDir = await emptyFolder();
    const durable = await start(dataDir, { durable: true });
    expect(await durability(durable.url)).toEqual([{ fsync: 'on', pages: 'on', commits: 'on' }]);
    await durable.stop();
    const fast = await start(dataDir, { durable: false });
    expect(await durability(fast.url)).toEqual([{ fsync: 'off', pages: 'off', commits: 'off' }]);
  });

  test('lets nobody in without the password, and nobody in as superuser', async () => {
    const { url } = await start(await emptyFolder());
    const wrong = new URL(url);
    wrong.password = 'guess';
    await expect(query(wrong.href, (sql) => sql`select 1`)).rejects.toThrow(
      /authentication failed/,
    );
    const superuser = new URL(url);
    superuser.username = 'postgres';
    await expect(query(superuser.href, (sql) => sql`select 1`)).rejects.toThrow(
      /no pg_hba.conf entry/,
    );
    expect(await query(url, (sql) => sql`select current_setting('is_superuser') as it`)).toEqual([
      { it: 'off' },
    ]);
  });

  test('runs again under the same URL after kill -9 of all its processes', async () => {
    const notices = collector();
    const dataDir = await emptyFolder();
    const { url } = await start(dataDir, { durable: true, notify: notices.push });
    const sql = connect(url);
    await sql`create table kept as select 1 as number`;
    const pids = await serverPids(sql, dataDir);
    expect(pids.length).toBeGreaterThan(4);
    for (const pid of pids) process.kill(pid, 'SIGKILL');
    await notices.until(/runs again/);
    expect(await sql`select number from kept`).toEqual([{ number: 1 }]);
    expect(notices.all.join('\n')).not.toContain(new URL(url).password);
  });

  test('can be stopped while it is being started again', async () => {
    const notices = collector();
    const dataDir = await emptyFolder();
    const server = await start(dataDir, { notify: notices.push });
    const sql = connect(server.url);
    for (const pid of await serverPids(sql, dataDir)) process.kill(pid, 'SIGKILL');
    await notices.until(/starting it again/);
    await server.stop();
    expect(notices.all).toHaveLength(1);
    const next = await start(dataDir);
    expect(await query(next.url, (it) => it`select 1 as one`)).toEqual([{ one: 1 }]);
  });

  test.each([
    ['its cluster is begun', 'postgres.new-*'],
    ['its cluster is being made', 'postgres.new-*/data/PG_VERSION'],
    ['its server is about to start', 'postgres'],
  ])('can be given up when %s, and leaves a folder that can be used', async (_, sign) => {
    const dataDir = await emptyFolder();
    const giveUp = new AbortController();
    const starting = start(dataDir, { signal: giveUp.signal });
    const given = expect(starting).rejects.toThrow(new Error('enough'));
    await eventually(async () => ((await isThere(dataDir, sign)) ? true : undefined));
    giveUp.abort(new Error('enough'));
    await given;
    expect(await commandsWith(dataDir)).toEqual([]);
    const next = await start(dataDir);
    expect(await query(next.url, (sql) => sql`select 1 as one`)).toEqual([{ one: 1 }]);
  });

  test('is not started where it has been given up before', async () => {
    const signal = AbortSignal.abort(new Error('enough'));
    await expect(start(await emptyFolder(), { signal })).rejects.toThrow('enough');
  });

  test('says the last words of a server that does not start, and frees the folder', async () => {
    const dataDir = await emptyFolder();
    await (await start(dataDir)).stop();
    const version = join(dataDir, 'postgres/data/PG_VERSION');
    const content = await readFile(version, 'utf8');
    await writeFile(version, '9\n');
    await expect(start(dataDir)).rejects.toThrow(/not compatible/);
    await writeFile(version, content);
    await start(dataDir);
  });

  test('says to set DATABASE_URL where there is no package for the platform', async () => {
    const bare = join(base, 'bare');
    await cp(join(base, 'project/platform'), join(bare, 'platform'), { recursive: true });
    await cp(join(base, 'project/service.mjs'), join(bare, 'service.mjs'));
    const service = startService(await emptyFolder(), { project: bare });
    await expect(service.url).rejects.toThrow(/not installed.*Set DATABASE_URL/);
  });
});

describe('after a service was killed', () => {
  test('its orphaned server is stopped and the folder started anew, with all data', async () => {
    const dataDir = await emptyFolder();
    const service = startService(dataDir, { durable: true });
    const orphan = connect(await service.url);
    await orphan`create table kept as select 1 as number`;
    const orphanPids = await serverPids(orphan, dataDir);
    await service.kill('SIGKILL');
    expect(await orphan`select number from kept`).toEqual([{ number: 1 }]);

    const { url } = await start(dataDir);
    const sql = connect(url);
    expect(await sql`select number from kept`).toEqual([{ number: 1 }]);
    const pids = await serverPids(sql, dataDir);
    expect(pids.filter((pid) => orphanPids.includes(pid))).toEqual([]);
  });

  test('and its server with it, the folder starts anew', async () => {
    const dataDir = await emptyFolder();
    const service = startService(dataDir, { durable: true });
    const sql = connect(await service.url);
    await sql`create table kept as select 1 as number`;
    const pids = await serverPids(sql, dataDir);
    await service.kill('SIGKILL');
    for (const pid of pids) process.kill(pid, 'SIGKILL');
    const { url } = await start(dataDir);
    expect(await query(url, (it) => it`select number from kept`)).toEqual([{ number: 1 }]);
  });

  test.each([
    ['of no process', () => Promise.resolve(4_000_000)],
    ['of another process', bystander],
    ['of a zombie', zombie],
  ])('a pid file with the pid %s does not keep the server from starting', async (_, makePid) => {
    const dataDir = await emptyFolder();
    const server = await start(dataDir);
    const path = join(dataDir, 'postgres/data/postmaster.pid');
    const lines = (await readFile(path, 'utf8')).split('\n');
    await server.stop();
    const pid = await makePid();
    await writeFile(path, [String(pid), ...lines.slice(1)].join('\n'));
    if (isRoot) await chown(path, NOBODY, NOBODY);
    const { url } = await start(dataDir);
    expect(await query(url, (sql) => sql`select 1 as one`)).toEqual([{ one: 1 }]);
  });

  test('within initdb, the next start makes the database and removes what was left', async () => {
    const dataDir = await emptyFolder();
    const service = startService(dataDir);
    service.url.catch(() => {});
    const draft = await eventually(async () => {
      const name = (await readdir(dataDir)).find(isDraft);
      return name !== undefined && existsSync(join(dataDir, name, 'data/base')) ? name : undefined;
    });
    await service.killGroup('SIGKILL');
    expect(existsSync(join(dataDir, 'postgres'))).toBe(false);
    expect(await readdir(dataDir)).toContain(draft);

    const { url } = await start(dataDir);
    expect(await query(url, (sql) => sql`select 1 as one`)).toEqual([{ one: 1 }]);
    expect((await readdir(dataDir)).filter(isDraft)).toEqual([]);
  });
});

describe('a folder in use', () => {
  test('refuses a second service, naming the folder and the pid, until the first has stopped', async () => {
    const dataDir = await emptyFolder();
    const first = startService(dataDir);
    const url = await first.url;
    await expect(start(dataDir)).rejects.toThrow(
      `${dataDir} is in use by another subagent-inbox process (pid ${first.pid})`,
    );
    expect(await query(url, (sql) => sql`select 1 as one`)).toEqual([{ one: 1 }]);
    expect(await first.kill('SIGTERM')).toBe(0);
    await start(dataDir);
  });

  test('is granted to exactly one, however many take over from a dead one at once', async () => {
    const folder = await emptyFolder();
    const dead = JSON.stringify({ pid: process.pid, identity: 'of an earlier process' });
    for (let round = 1; round <= 50; round++) {
      await rm(folder, { recursive: true });
      await mkdir(folder);
      await writeFile(join(folder, 'service.lock.1'), dead);
      // Each starts a little later than the one before, so that they overlap at different steps.
      const rivals = Array.from({ length: 8 }, async (_, turns) => {
        for (let turn = 0; turn < turns * (round % 5); turn++) await nextTurn();
        return lockFolder(folder);
      });
      const outcomes = await Promise.allSettled(rivals);
      expect(outcomes.filter((it) => it.status === 'fulfilled')).toHaveLength(1);
      for (const outcome of outcomes) {
        if (outcome.status === 'rejected') expect(String(outcome.reason)).toMatch(/is in use by/);
      }
    }
  });

  test('serves exactly one of several services that start at once after a dead one', async () => {
    const dataDir = await emptyFolder();
    const dead = startService(dataDir);
    await dead.url;
    await dead.kill('SIGKILL');
    const rivals = Array.from({ length: 4 }, () => startService(dataDir));
    const outcomes = await Promise.allSettled(rivals.map((it) => it.url));
    expect(outcomes.filter((it) => it.status === 'fulfilled')).toHaveLength(1);
    for (const outcome of outcomes) {
      if (outcome.status === 'rejected')
        expect(String(outcome.reason)).toMatch(/is in use by another/);
    }
  });

  test('keeps its server at a ctrl-C in the terminal until the service stops it', async () => {
    const service = startService(await emptyFolder());
    const url = await service.url;
    await service.killGroup('SIGINT');
    await service.line('interrupted');
    expect(await query(url, (sql) => sql`select 1 as one`)).toEqual([{ one: 1 }]);
    expect(await service.kill('SIGTERM')).toBe(0);
  });
});

describe.skipIf(!isRoot)('as different users', () => {
  test('works as an ordinary user, with a package that this user cannot write to', async () => {
    const project = join(base, 'shared');
    await copyProject(project);
    const dataDir = await emptyFolder();
    await chown(dataDir, NOBODY, NOBODY);
    const service = startService(dataDir, { project, uid: NOBODY });
    expect(await query(await service.url, (sql) => sql`select 1 as one`)).toEqual([{ one: 1 }]);
    await service.kill('SIGTERM');
  });

  test('works as root with project and data below a folder that only root may enter', async () => {
    const secret = join(base, 'private');
    await mkdir(secret, { mode: 0o700 });
    const project = join(secret, 'project');
    await copyProject(project);
    const service = startService(join(secret, 'data'), { project, durable: true });
    const sql = connect(await service.url);
    await sql`create table kept as select 1 as number`;
    await service.kill('SIGKILL');
    const next = startService(join(secret, 'data'), { project, durable: true });
    expect(await query(await next.url, (it) => it`select number from kept`)).toEqual([
      { number: 1 },
    ]);
    expect(await next.kill('SIGTERM')).toBe(0);
  });

  test('works as root on the folder of an ordinary user, and for that user again afterwards', async () => {
    const dataDir = await emptyFolder();
    await chown(dataDir, NOBODY - 1, NOBODY - 1);
    // initdb wants a user that is known by name; after it, any will do.
    await (await start(dataDir)).stop();
    await promisify(execFile)('chown', ['-R', `${NOBODY - 1}:${NOBODY - 1}`, dataDir]);
    await (await start(dataDir)).stop();
    const service = startService(dataDir, { uid: NOBODY - 1 });
    expect(await query(await service.url, (sql) => sql`select 1 as one`)).toEqual([{ one: 1 }]);
    expect(await service.kill('SIGTERM')).toBe(0);
  });
});

function durability(url: string): Promise<unknown> {
  return query(
    url,
    (sql) => sql`
      select current_setting('fsync') as fsync, current_setting('full_page_writes') as pages,
        current_setting('synchronous_commit') as commits`,
  );
}

function isDraft(name: string): boolean {
  return name.startsWith('postgres.new-');
}

async function emptyFolder(): Promise<string> {
  const folder = await mkdtemp(join(base, 'data-'));
  await chmod(folder, 0o755);
  return folder;
}

async function start(
  dataDir: string,
  options: Partial<Parameters<typeof startEmbeddedPostgres>[0]> = {},
): Promise<EmbeddedPostgres> {
  const server = await startEmbeddedPostgres({ dataDir, durable: false, ...options });
  cleanups.push(() => server.stop());
  return server;
}

function connect(url: string): postgres.Sql {
  const sql = postgres(url, { max: 1, onnotice: () => {} });
  cleanups.push(() => sql.end({ timeout: 0 }));
  return sql;
}

async function query<T>(url: string, ask: (sql: postgres.Sql) => Promise<T>): Promise<T> {
  const sql = postgres(url, { max: 1, onnotice: () => {} });
  try {
    return await ask(sql);
  } finally {
    await sql.end({ timeout: 0 });
  }
}

/** Whether the path is in the folder; `*` stands for the rest of its first name. */
async function isThere(folder: string, path: string): Promise<boolean> {
  const [begin = '', rest] = path.split('*');
  if (rest === undefined) return existsSync(join(folder, path));
  const name = (await readdir(folder)).find((it) => it.startsWith(begin));
  return name !== undefined && existsSync(join(folder, name, rest));
}

/** The command lines of the processes that were given the folder. */
async function commandsWith(folder: string): Promise<string[]> {
  const { stdout } = await promisify(execFile)('ps', ['-axww', '-o', 'command=']);
  return stdout.split('\n').filter((line) => line.includes(folder));
}

/** The postmaster and all of its children. */
async function serverPids(sql: postgres.Sql, dataDir: string): Promise<number[]> {
  const children = await sql<{ pid: number }[]>`select pid from pg_stat_activity`;
  const postmaster = await readFile(join(dataDir, 'postgres/data/postmaster.pid'), 'utf8');
  return [Number.parseInt(postmaster, 10), ...children.map(({ pid }) => pid)];
}

interface Service {
  readonly pid: number;
  /** Rejects with what the service could not start for. */
  readonly url: Promise<string>;
  line(text: string): Promise<void>;
  /** Resolves with the exit code once it is gone. */
  kill(signal: NodeJS.Signals): Promise<number | null>;
  /** As a terminal does at ctrl-C, or a container at its end. */
  killGroup(signal: NodeJS.Signals): Promise<void>;
}

/** A service in a process of its own, as far as its database goes. */
function startService(
  dataDir: string,
  options: { project?: string; durable?: boolean; uid?: number } = {},
): Service {
  const { project = join(base, 'project'), durable = false, uid } = options;
  const child = spawn(
    process.execPath,
    [join(project, 'service.mjs'), dataDir, durable ? 'durable' : 'fast'],
    {
      stdio: ['ignore', 'pipe', 'inherit'],
      detached: true,
      cwd: '/',
      ...(uid === undefined ? {} : { uid, gid: uid }),
    },
  );
  const lines = collector();
  createInterface({ input: child.stdout }).on('line', lines.push);
  const exit = once(child, 'exit').then(([code]) => code as number | null);
  cleanups.push(async () => {
    child.kill('SIGTERM');
    await exit;
    // Adopts what a killed service left, and stops it.
    if (existsSync(join(dataDir, 'postgres'))) await sweepOrphan(dataDir);
  });
  return {
    pid: child.pid ?? 0,
    url: lines.until(/^(url|error) /).then((line) => {
      if (line.startsWith('error ')) throw new Error(line.slice('error '.length));
      return line.slice('url '.length);
    }),
    line: async (text) => void (await lines.until(new RegExp(`^${text}$`))),
    kill: (signal) => {
      child.kill(signal);
      return exit;
    },
    killGroup: async (signal) => {
      process.kill(-(child.pid ?? 0), signal);
      if (signal === 'SIGKILL') await exit;
    },
  };
}

async function sweepOrphan(dataDir: string): Promise<void> {
  const pidFile = join(dataDir, 'postgres/data/postmaster.pid');
  if (!existsSync(pidFile)) return;
  const server = await startEmbeddedPostgres({ dataDir, durable: false }).catch(() => undefined);
  await server?.stop();
}

/** Messages that can be awaited, whether they came before or come after. */
function collector(): {
  all: string[];
  push: (message: string) => void;
  until: (pattern: RegExp) => Promise<string>;
} {
  const all: string[] = [];
  const waiting: { pattern: RegExp; resolve: (message: string) => void }[] = [];
  return {
    all,
    push: (message) => {
      all.push(message);
      for (const it of waiting) if (it.pattern.test(message)) it.resolve(message);
    },
    until: (pattern) =>
      new Promise((resolve) => {
        const seen = all.find((message) => pattern.test(message));
        if (seen === undefined) waiting.push({ pattern, resolve });
        else resolve(seen);
      }),
  };
}

/** For what only the file system tells: looks again, without pause, until there is an answer. */
async function eventually<T>(look: () => Promise<T | undefined>): Promise<T> {
  for (;;) {
    const answer = await look();
    if (answer !== undefined) return answer;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

function bystander(): Promise<number> {
  const child = spawn('sleep', ['1000'], { stdio: 'ignore', ...serverUser });
  cleanups.push(() => child.kill());
  return Promise.resolve(child.pid ?? 0);
}

/** A process that has ended and whose parent does not ask how. */
async function zombie(): Promise<number> {
  const parent: ChildProcess = spawn('sh', ['-c', 'sleep 0 & echo $!; exec sleep 1000'], {
    stdio: ['ignore', 'pipe', 'ignore'],
    ...serverUser,
  });
  cleanups.push(() => parent.kill());
  if (parent.stdout === null) throw new Error('no output');
  const [line] = (await once(createInterface({ input: parent.stdout }), 'line')) as [string];
  await eventually(async () => (await processIdentity(Number(line))) === undefined || undefined);
  return Number(line);
}

/** Compiled, because other users need not be able to reach the repository and its tools. */
async function buildProject(project: string): Promise<void> {
  await mkdir(project);
  await writeFile(join(project, 'package.json'), '{ "type": "module" }');
  await writeFile(
    join(project, 'tsconfig.json'),
    JSON.stringify({
      extends: join(repository, 'tsconfig.build.json'),
      compilerOptions: {
        outDir: project,
        rootDir: join(repository, 'src'),
        typeRoots: [join(repository, 'node_modules/@types')],
      },
      include: [],
      files: [join(repository, 'src/platform/embedded-postgres.ts')],
    }),
  );
  const tsc = join(repository, 'node_modules/typescript/bin/tsc');
  await promisify(execFile)(process.execPath, [tsc, '-p', project]);
  await writeFile(
    join(project, 'service.mjs'),
    `import { startEmbeddedPostgres } from './platform/embedded-postgres.js';
     const [dataDir, mode] = process.argv.slice(2);
     process.on('SIGINT', () => console.log('interrupted'));
     try {
       const server = await startEmbeddedPostgres({ dataDir, durable: mode === 'durable' });
       console.log('url ' + server.url);
       process.on('SIGTERM', () => server.stop().then(() => process.exit(0)));
     } catch (error) {
       console.log('error ' + error.message);
       process.exit(1);
     }`,
  );
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  const source = join(dirname(createRequire(import.meta.url).resolve(name)), '..');
  await cp(source, join(project, 'node_modules', name), { recursive: true });
  await removeLibraryLinks(project);
}

/** As npm leaves it when install scripts are not run. */
async function copyProject(target: string): Promise<void> {
  await cp(join(base, 'project'), target, { recursive: true });
  await removeLibraryLinks(target);
}

async function removeLibraryLinks(project: string): Promise<void> {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  const list = await readFile(
    join(project, 'node_modules', name, 'native/pg-symlinks.json'),
    'utf8',
  );
  for (const { target } of JSON.parse(list) as { target: string }[]) {
    await rm(join(project, 'node_modules', name, target), { force: true });
  }
}
