import { invalid } from '../domain/refusal.ts';
import type { Resources } from '../resources.ts';
import { countParked, selectParkedPage, type ParkedListing } from '../store/parked-reports.ts';

/** A page of the parked (or dead) reports, newest first, and whether more follow. */
export async function listParked(
  resources: Resources,
  page: { tenantId: string; state: 'parked' | 'dead'; after: string | null; limit: number },
): Promise<{ reports: ParkedListing[]; hasMore: boolean }> {
  const { tenantId, state, after, limit } = page;
  if (after !== null && !after.startsWith('parked_')) {
    throw invalid('after', 'is not the id of a parked report');
  }
  const rows = await resources.database.run((db) =>
    selectParkedPage(db, { tenantId, state, before: after, limit: limit + 1 }),
  );
  return { reports: rows.slice(0, limit), hasMore: rows.length > limit };
}

/** How many reports are parked, or dead, of all tenants. */
export async function countReports(
  resources: Resources,
  state: 'parked' | 'dead',
): Promise<number> {
  return await resources.database.run((db) => countParked(db, state));
}
