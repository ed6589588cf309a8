import { defineConfig } from 'vitest/config';

// `pure` needs no database and takes seconds; `database` starts one real PostgreSQL for all its files.
export default defineConfig({
  test: {
    projects: [
      {
        test: {
          name: 'pure',
          include: ['test/{domain,platform-pure,project}/**/*.test.ts'],
        },
      },
      {
        test: {
          name: 'database',
          include: ['test/{store,operations,http,scenarios,platform,workers}/**/*.test.ts'],
          globalSetup: ['test/support/start-postgres.ts'],
          testTimeout: 60_000,
          hookTimeout: 60_000,
        },
      },
    ],
  },
});
