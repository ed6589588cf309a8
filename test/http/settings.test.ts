import { describe, expect, test } from 'vitest';
import { describeSettings, readConfig } from '../../src/config.ts';
import { runProcess } from '../support/process.ts';

describe('settings', () => {
  test('have the defaults of the protocol', () => {
    expect(readConfig({})).toMatchObject({
      host: '127.0.0.1',
      port: 8787,
      databaseUrl: null,
      dataDir: './data',
      snapshot: null,
      maxBodyBytes: 8_388_608,
      shutdownGraceMs: 10_000,
      policy: {
        parkAfterAttempts: 12,
        maxPendingItems: 100_000,
        parkedRetentionMs: 7 * 86_400_000,
        deadLetterRetentionMs: 30 * 86_400_000,
        ackedItemRetentionMs: 7 * 86_400_000,
        tombstoneRetentionMs: 30 * 86_400_000,
      },
    });
  });

  test('that are empty count as not set', () => {
    const empty = Object.fromEntries(describeSettings().map(({ name }) => [name, '']));
    expect(readConfig(empty)).toEqual(readConfig({}));
  });

  test('in days may be fractions', () => {
    const { policy } = readConfig({ PARKED_RETENTION_DAYS: '0.5' });
    expect(policy.parkedRetentionMs).toBe(43_200_000);
  });

  test.each([
    ['PORT', '80a'],
    ['PORT', '65536'],
    ['PORT', '-1'],
    ['PORT', '1.5'],
    ['PORT', ' '],
    ['PORT', '0x50'],
    ['PORT', '1e3'],
    ['MAX_BODY_BYTES', '0'],
    ['MAX_BODY_BYTES', 'Infinity'],
    ['DATABASE_URL', 'mysql://user:hunter2@host/db'],
    ['DATABASE_URL', 'hunter2'],
    ['DATABASE_URL', 'postgres://user:hunter2@host/db?sslmode=maybe'],
    ['LISTEN_DATABASE_URL', 'postgres://user:hunter2@host,other/db'],
    ['DATABASE_PREPARE', 'maybe'],
    ['ALLOW_UNAUTHENTICATED', 'si'],
    ['SNAPSHOT_URL', 'ftp://hunter2'],
    ['SNAPSHOT_URL', 'http://user:hunter2@host'],
    ['SNAPSHOT_URL', 'http://host/?token=hunter2'],
    ['SNAPSHOT_URL', 'http://host/#hunter2'],
    ['SNAPSHOT_TOKEN', 'hunter2\nX-Other: 1'],
    ['SNAPSHOT_TIMEOUT_MS', '2s'],
    ['PARK_AFTER_ATTEMPTS', '0'],
    ['PARKED_RETENTION_DAYS', '0'],
    ['PARKED_RETENTION_DAYS', '7d'],
    ['PARKED_RETENTION', '7d'],
    ['LOG_LEVEL', 'verbose'],
    ['SHUTDOWN_GRACE_MS', '1'],
  ])('%s=%j is refused in one line that names it and keeps its value', (name, value) => {
    const read = () => readConfig({ [name]: value });
    expect(read).toThrow(new RegExp(`^${name}: [^\n]+$`));
    expect(read).not.toThrow(/hunter2/);
  });

  test.each(['0.0.0.0', '::', '192.168.1.4', 'inbox.example.com'])(
    'HOST=%s needs ALLOW_UNAUTHENTICATED=true',
    (HOST) => {
      expect(() => readConfig({ HOST })).toThrow(/^HOST: .*ALLOW_UNAUTHENTICATED=true/);
      expect(readConfig({ HOST, ALLOW_UNAUTHENTICATED: 'true' }).host).toBe(HOST);
    },
  );

  test.each(['127.0.0.1', '127.9.9.9', '::1', 'localhost'])('HOST=%s does not', (HOST) => {
    expect(readConfig({ HOST }).host).toBe(HOST);
  });
});

describe('the process', () => {
  test('ends at once with that line when a setting is wrong', async () => {
    const ended = await runProcess({ env: { PORT: 'eighty' } });
    expect(ended).toMatchObject({
      code: 1,
      stdout: '',
      stderr: 'subagent-inbox cannot run: PORT: must be a whole number of 0 to 65535\n',
    });
  });

  test('names DATA_DIR where that is no folder', async () => {
    const ended = await runProcess({ env: { DATA_DIR: process.execPath } });
    expect(ended.code).toBe(1);
    expect(ended.stderr).toMatch(/^subagent-inbox cannot run: DATA_DIR: [^\n]+\n$/);
  });

  test('says in one line, without the password, that it cannot get into the database', async () => {
    const url = new URL(process.env['TEST_DATABASE_URL'] ?? '');
    url.password = 'hunter2';
    const ended = await runProcess({ env: { DATABASE_URL: url.href } });
    expect(ended.code).toBe(1);
    expect(ended.stderr).toMatch(/^subagent-inbox cannot run: [^\n]*authentication[^\n]*\n$/);
    expect(ended.stdout + ended.stderr).not.toContain('hunter2');
  });
});
