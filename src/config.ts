import { z } from 'zod';
import { isLoopbackAddress } from './platform/loopback.ts';
import type { Policy } from './resources.ts';
import { readDatabaseUrl } from './store/dial.ts';

/*
 * Every setting, each with its unit, its default and what it does. This is the only reader of the
 * environment. An empty value counts as not set.
 */

const DAY_MS = 86_400_000;
const HOUR_MS = 3_600_000;

const number = (what: string) =>
  z.string().transform((written, context) => {
    if (/^-?\d+(?:\.\d+)?$/.test(written)) return Number(written);
    context.addIssue({ code: 'custom', message: `must be ${what}` });
    return z.NEVER;
  });
const whole = (min: number, max: number) => {
  const what = `a whole number of ${min} to ${max}`;
  return number(what).refine((value) => Number.isInteger(value) && value >= min && value <= max, {
    error: `must be ${what}`,
  });
};
const days = (fallback: number) =>
  number('a number of days, fractions allowed')
    .refine((value) => value > 0 && value <= 36_500, { error: 'must be above 0 and at most 36500' })
    .default(fallback);
const flag = (fallback: boolean) =>
  z.stringbool({ error: 'must be true or false' }).default(fallback);
const databaseUrl = z.string().superRefine((value, context) => {
  try {
    readDatabaseUrl(value);
  } catch (error) {
    context.addIssue({ code: 'custom', message: (error as Error).message });
  }
});
const snapshotUrl = z.string().refine(
  (value) => {
    if (!URL.canParse(value) || !/^https?:/.test(value)) return false;
    const { username, password, search, hash } = new URL(value);
    return username + password + search + hash === '';
  },
  { error: 'must be an http:// or https:// URL without credentials, query and fragment' },
);

const settings = z.object({
  HOST: z
    .string()
    .default('127.0.0.1')
    .describe('Address to listen on. Other than loopback only with ALLOW_UNAUTHENTICATED=true.'),
  PORT: whole(0, 65_535).default(8787).describe('Port to listen on; 0 takes a free one.'),
  ALLOW_UNAUTHENTICATED: flag(false).describe(
    'true lets anyone who reaches HOST read and write everything: there are no tokens yet.',
  ),

  DATABASE_URL: databaseUrl
    .optional()
    .describe(
      'The PostgreSQL (15 to 18) that holds everything. Not set: one of our own in DATA_DIR.',
    ),
  DATABASE_PREPARE: flag(true).describe(
    'false for a pooler that cannot keep prepared statements; costs more than half of the speed.',
  ),
  LISTEN_DATABASE_URL: databaseUrl
    .optional()
    .describe(
      'The same database, past a pooler that cannot LISTEN (transaction pooling). Not set: DATABASE_URL.',
    ),
  NOTIFICATIONS: flag(true).describe(
    'false where nothing can LISTEN: what other replicas have stored is then found by looking, within seconds.',
  ),
  DATA_DIR: z.string().default('./data').describe('Folder of the embedded PostgreSQL.'),

  SNAPSHOT_URL: snapshotUrl
    .optional()
    .describe('Where sessions that are not known here are looked up. Not set: nowhere.'),
  SNAPSHOT_TOKEN: z
    .string()
    .regex(/^[\u0021-\u007e]+$/, { error: 'must be visible ASCII characters' })
    .optional()
    .describe('Bearer token sent to SNAPSHOT_URL.'),
  SNAPSHOT_TIMEOUT_MS: whole(1, 60_000)
    .default(2000)
    .describe('Milliseconds after which a look-up at SNAPSHOT_URL has failed.'),

  WEBHOOK_ALLOW_PRIVATE: flag(false).describe(
    'true lets webhooks lead into this machine and private networks: for receivers beside the service.',
  ),

  MAX_BODY_BYTES: whole(1024, 268_435_456)
    .default(8 * 1024 * 1024)
    .describe('Bytes a request body may have; a longer one is answered 413.'),
  MAX_PENDING_ITEMS: whole(1, 100_000_000)
    .default(100_000)
    .describe('Items an inbox holds that are not acked; beyond it reports are parked.'),
  PARK_AFTER_ATTEMPTS: whole(1, 1000)
    .default(12)
    .describe(
      'Tries after which a report that cannot be delivered is answered 202 instead of 503.',
    ),

  PARKED_RETENTION_DAYS: days(7).describe(
    'Days after which a parked report becomes a dead letter.',
  ),
  DEAD_LETTER_RETENTION_DAYS: days(30).describe(
    'Days that dead letters and the markers of deleted sessions are kept.',
  ),
  ACKED_RETENTION_DAYS: days(7).describe('Days that acked items are kept.'),
  TOMBSTONE_RETENTION_DAYS: days(30).describe(
    'Days that ended work is kept, by which late repeats are recognised.',
  ),

  LOG_LEVEL: z
    .enum(['fatal', 'error', 'warn', 'info', 'debug', 'silent'], {
      error: 'must be one of fatal, error, warn, info, debug, silent',
    })
    .default('info')
    .describe('What is logged; debug has a line for every request.'),
  SHUTDOWN_GRACE_MS: whole(100, 600_000)
    .default(10_000)
    .describe('Milliseconds from SIGTERM within which the process has ended.'),
});

export interface Config {
  host: string;
  port: number;
  databaseUrl: string | null;
  databasePrepare: boolean;
  /** Where to listen for what other replicas say; null: as `databaseUrl`. */
  listenDatabaseUrl: string | null;
  dataDir: string;
  snapshot: { url: string; token: string | null; timeoutMs: number } | null;
  webhookAllowPrivate: boolean;
  maxBodyBytes: number;
  logLevel: z.output<typeof settings>['LOG_LEVEL'];
  shutdownGraceMs: number;
  policy: Policy;
}

/** A setting is wrong; the message is one line, names it, and does not repeat its value. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
}

/** Reads the settings; throws ConfigError for the first that is wrong. */
export function readConfig(env: Record<string, string | undefined> = process.env): Config {
  if (env['PARKED_RETENTION']) {
    throw new ConfigError('PARKED_RETENTION: is set in days, as PARKED_RETENTION_DAYS');
  }
  const given = Object.entries(env).filter(([, value]) => value !== undefined && value !== '');
  const result = settings.safeParse(Object.fromEntries(given));
  if (!result.success) {
    const [issue] = result.error.issues;
    throw new ConfigError(`${issue?.path.join('.')}: ${issue?.message}`);
  }
  const set = result.data;
  if (!isLoopbackAddress(set.HOST) && !set.ALLOW_UNAUTHENTICATED) {
    throw new ConfigError(
      'HOST: there are no tokens yet, so only a loopback address is allowed; ' +
        'ALLOW_UNAUTHENTICATED=true opens the service to everyone who can reach it',
    );
  }
  return {
    host: set.HOST,
    port: set.PORT,
    databaseUrl: set.DATABASE_URL ?? null,
    databasePrepare: set.DATABASE_PREPARE,
    listenDatabaseUrl: set.LISTEN_DATABASE_URL ?? null,
    dataDir: set.DATA_DIR,
    snapshot:
      set.SNAPSHOT_URL === undefined
        ? null
        : {
            url: set.SNAPSHOT_URL.replace(/\/+$/, ''),
            token: set.SNAPSHOT_TOKEN ?? null,
            timeoutMs: set.SNAPSHOT_TIMEOUT_MS,
          },
    webhookAllowPrivate: set.WEBHOOK_ALLOW_PRIVATE,
    maxBodyBytes: set.MAX_BODY_BYTES,
    logLevel: set.LOG_LEVEL,
    shutdownGraceMs: set.SHUTDOWN_GRACE_MS,
    policy: {
      parkAfterAttempts: set.PARK_AFTER_ATTEMPTS,
      maxPendingItems: set.MAX_PENDING_ITEMS,
      parkedRetentionMs: set.PARKED_RETENTION_DAYS * DAY_MS,
      deadLetterRetentionMs: set.DEAD_LETTER_RETENTION_DAYS * DAY_MS,
      ackedItemRetentionMs: set.ACKED_RETENTION_DAYS * DAY_MS,
      tombstoneRetentionMs: set.TOMBSTONE_RETENTION_DAYS * DAY_MS,
      idempotencyRetentionMs: 24 * HOUR_MS,
      notifications: set.NOTIFICATIONS,
    },
  };
}

/** What `docs/OPERATING.md` lists: name, default and meaning of every setting. */
export function describeSettings(): { name: string; default: string; description: string }[] {
  return Object.entries(settings.shape).map(([name, schema]) => {
    const fallback = schema.safeParse(undefined);
    return {
      name,
      default: fallback.data === undefined ? '' : String(fallback.data),
      description: schema.description ?? '',
    };
  });
}
