import { fileURLToPath } from 'node:url';

/** The folder of the migrations, seen from `src` and from `dist`. */
export const MIGRATIONS = fileURLToPath(new URL('../migrations', import.meta.url));
