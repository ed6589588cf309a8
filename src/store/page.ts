import { sql, type SQL } from 'drizzle-orm';
import type { Queryable } from './database.ts';

export interface Page<Row> {
  rows: Row[];
  hasMore: boolean;
}

/** A list, in raw SQL but for what `from` selects. */
export interface Listing {
  /** Selects the rows that the page may hold, and one more. */
  from: SQL;
  /** Of the rows `r` that it selects. */
  order: SQL;
  bytes: SQL;
  limit: number;
  maxBytes: number;
}

/** The first rows in this order: at most `limit` and no more than `maxBytes`, but at least one. */
export async function selectPage<Row extends object>(
  db: Queryable,
  { from, order, bytes, limit, maxBytes }: Listing,
): Promise<Page<Row>> {
  const rows = await db.execute(sql`
    select p.* from (
      select r.*, row_number() over (order by ${order}) as place, count(*) over ()::int as found,
        sum(${bytes}) over (order by ${order}) as total
      from (${from}) r
    ) p
    where (p.place = 1 or p.total <= ${maxBytes}) and p.place <= ${limit}
    order by p.place`);
  const found = Number(rows[0]?.['found'] ?? 0);
  return { rows: rows as unknown[] as Row[], hasMore: found > rows.length };
}

/** How much text these columns hold. */
export function bytesOf(...columns: string[]): SQL {
  const sizes = columns.map((column) => `coalesce(octet_length(${column}::text), 0)`);
  return sql.raw(sizes.join(' + '));
}
