import { and, eq, sql } from 'drizzle-orm';
import { drizzle } from 'drizzle-orm/postgres-js';
import { Hono } from 'hono';
import postgres from 'postgres';
import { v7 } from 'uuid';
import { items, sessions, work } from '../src/store/schema.ts';

/**
 * The obvious way to do it: one drizzle transaction a report, each statement awaited. Delivers
 * exactly once as well; what it costs is what the batches of the real route are measured against.
 */
export function naiveRoutes(databaseUrl: string) {
  const client = postgres(databaseUrl, { max: 10, onnotice: () => {} });
  const db = drizzle(client);
  const app = new Hono();
  app.post('/v1/naive/:id', async (c) => {
    const id = c.req.param('id');
    const { data } = await c.req.json<{ data: { output: string } }>();
    await db.transaction(async (tx) => {
      const here = and(eq(sessions.tenantId, 'default'), eq(sessions.id, id));
      const [child] = await tx.select().from(sessions).where(here).for('update');
      if (!child?.parentSessionId) throw new Error('no such child');
      if (child.currentWorkId !== null) return;
      const workId = `subagent_${v7().replaceAll('-', '')}`;
      const [{ seq } = { seq: 0 }] = await tx.execute<{ seq: number }>(
        sql`select nextval('item_seq')::int as seq`,
      );
      const now = Date.now();
      const label = { agent: child.agentName ?? 'sub-agent', title: '' };
      await tx.insert(work).values({
        ...label,
        tenantId: 'default',
        workId,
        parentSessionId: child.parentSessionId,
        childSessionId: id,
        status: 'completed',
        createdAt: now,
        endedAt: now,
        revision: 1,
        lastItemSeq: seq,
        recovered: true,
      });
      await tx.insert(items).values({
        ...label,
        tenantId: 'default',
        sessionId: child.parentSessionId,
        seq,
        source: `work:${workId}:1`,
        type: 'sub_agent',
        workId,
        childSessionId: id,
        status: 'completed',
        output: data.output,
        recovered: true,
        deliveredAt: now,
      });
      await tx.update(sessions).set({ status: 'idle', currentWorkId: workId }).where(here);
    });
    return c.body(null, 204);
  });
  return { app, close: () => client.end() };
}
