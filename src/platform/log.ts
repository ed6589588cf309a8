import { pino, type DestinationStream } from 'pino';

/**
 * A logger with levels; objects first, as pino has it. An error goes in as `err` beside a message of
 * the caller's: without one pino would take the error's.
 */
export type Log = Record<'debug' | 'info' | 'warn' | 'error' | 'fatal', LogLine>;

interface LogLine {
  (details: object, message: string): void;
  (message: string): void;
}

export type LogLevel = 'fatal' | 'error' | 'warn' | 'info' | 'debug' | 'silent';

/**
 * JSON lines, on standard output if nowhere else. Callers never hand in payloads, tokens or SQL, and
 * what an error carries of them is left out.
 */
export function createLog(level: LogLevel, to?: DestinationStream): Log {
  const options = { level, base: { service: 'subagent-inbox' }, serializers: { err: describe } };
  return to === undefined ? pino(options) : pino(options, to);
}

/** An error may be its own cause, by way of others. */
const CAUSES_MAX = 5;

/**
 * Of the error what may be logged: a driver's error carries the row that it is about, the statement
 * and its parameters in further members, and with them what clients have sent.
 */
function describe(error: unknown, depth = 0): object {
  if (!(error instanceof Error)) return { message: `thrown: ${typeof error}` };
  const code: unknown = 'code' in error ? error.code : undefined;
  return {
    type: error.constructor.name,
    message: messageOf(error),
    ...(typeof code === 'string' || typeof code === 'number' ? { code } : {}),
    stack: framesOf(error),
    ...(error.cause === undefined || depth === CAUSES_MAX
      ? {}
      : { cause: describe(error.cause, depth + 1) }),
  };
}

/**
 * Classes of SQLSTATE whose messages quote names only: of constraints (23), of roles (28), of
 * databases (3D), and of what a statement speaks of (42). Others quote values.
 */
const QUOTES_NAMES = /^(?:23|28|3D|42)/;

function messageOf(error: Error): string {
  const { message } = error;
  // Drizzle's: the statement and its parameters. The server's own words are its cause.
  if (message.startsWith('Failed query: ')) return 'Failed query';
  // JSON.parse and its like quote what they were given.
  if (error instanceof SyntaxError) return 'could not be parsed';
  if (!isOfServer(error) || QUOTES_NAMES.test(error.code)) return message;
  return message.replace(/".*/s, '…');
}

/** By what the protocol has in every error: the driver is not known here. */
function isOfServer(error: Error): error is Error & { code: string } {
  return 'severity' in error && 'code' in error && typeof error.code === 'string';
}

/** The stack without its head, which repeats the message; nothing where the two cannot be parted. */
function framesOf({ message, stack = '' }: Error): string | undefined {
  const at = stack.indexOf(message);
  if (at < 0) return undefined;
  const lines = stack.slice(at + message.length).split('\n');
  return lines.filter((line) => /^ {4}at /.test(line)).join('\n');
}
