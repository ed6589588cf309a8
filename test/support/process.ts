import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { createHttpClient, type HttpClient } from './http-client.ts';

/** The service as a process of its own: what crash, restart and rolling restart are tested with. */
export interface ServiceProcess extends LaunchedProcess {
  url: string;
  /** Not checked against the OpenAPI document. */
  request: HttpClient['request'];
}

/** … which may still be starting. */
export interface LaunchedProcess {
  pid: number;
  /** Sends the signal and resolves when the process has ended. */
  kill(signal: NodeJS.Signals): Promise<Ending>;
  /** Sends the signal only. */
  signal(signal: NodeJS.Signals): void;
  /** Resolves when it has logged the message; rejects if it ends without. */
  said(message: string): Promise<void>;
  /** Resolves when the process has ended, whoever ended it. */
  ended: Promise<Ending>;
}

export interface Ending {
  code: number | null;
  signal: NodeJS.Signals | null;
  /** All that it has said, on standard output and on standard error. */
  stdout: string;
  stderr: string;
}

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
/** What of our own environment the process gets; no setting of the service is among them. */
const INHERITED = ['PATH', 'HOME', 'TMPDIR', 'LANG'];
const running = new Set<ChildProcess>();
process.on('exit', () => running.forEach((child) => child.kill('SIGKILL')));

/** Starts the service and resolves when it is ready; rejects with its last words if it ends before. */
export async function startProcess({
  env,
}: {
  env: Record<string, string>;
}): Promise<ServiceProcess> {
  const { url, ...launched } = launch(env);
  const ready = await Promise.race([url, launched.ended]);
  if (typeof ready !== 'string') {
    throw new Error(`the service ended (${ready.code ?? ready.signal}): ${ready.stderr}`);
  }
  const client = createHttpClient(ready);
  void launched.ended.then(() => client.close());
  const answer = await client.request('GET', '/readyz');
  if (answer.status !== 200) throw new Error(`not ready: ${JSON.stringify(answer.body)}`);
  return { ...launched, url: ready, request: client.request };
}

/** Starts the service and does not wait for it to be ready. */
export function launchProcess({ env }: { env: Record<string, string> }): LaunchedProcess {
  return launch(env);
}

/** Starts the service with settings with which it is to end by itself. */
export function runProcess({ env }: { env: Record<string, string> }): Promise<Ending> {
  return launch(env).ended;
}

function launch(env: Record<string, string>): LaunchedProcess & { url: Promise<string> } {
  const inherited = Object.entries(process.env).filter(([name]) => INHERITED.includes(name));
  const child = spawn(process.execPath, ['--import', 'tsx', 'src/main.ts'], {
    cwd: ROOT,
    env: { ...Object.fromEntries(inherited), PORT: '0', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  running.add(child);
  let stdout = '';
  let stderr = '';
  child.stderr.setEncoding('utf8').on('data', (chunk: string) => (stderr += chunk));
  const lines = createInterface(child.stdout);
  const url = new Promise<string>((resolve) => {
    lines.on('line', (line) => {
      stdout += `${line}\n`;
      const said = JSON.parse(line) as { msg?: string; url?: string };
      if (said.msg === 'listening' && said.url !== undefined) resolve(said.url);
    });
  });
  // `close` comes when the streams have been read as well.
  const ended = once(child, 'close').then(([code, signal]) => {
    running.delete(child);
    return { code: code as number | null, signal: signal as NodeJS.Signals | null, stdout, stderr };
  });
  return {
    pid: child.pid ?? 0,
    kill: (signal) => {
      child.kill(signal);
      return ended;
    },
    signal: (signal) => void child.kill(signal),
    said: (message) =>
      new Promise((resolve, reject) => {
        const look = () => stdout.includes(`"msg":${JSON.stringify(message)}`) && resolve();
        lines.on('line', look);
        look();
        void ended.then(() => reject(new Error(`ended without "${message}": ${stdout}${stderr}`)));
      }),
    ended,
    url,
  };
}
