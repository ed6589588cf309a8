import { pino, type Logger } from 'pino';

/** A logger with levels; objects first, as pino has it. */
export type Log = Pick<Logger, 'debug' | 'info' | 'warn' | 'error' | 'fatal'>;

export type LogLevel = 'fatal' | 'error' | 'warn' | 'info' | 'debug' | 'silent';

/** JSON lines on standard output. Callers never hand in payloads, tokens or SQL. */
export function createLog(level: LogLevel): Log {
  return pino({ level, base: { service: 'subagent-inbox' } });
}
