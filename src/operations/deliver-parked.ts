import type { Resources } from '../resources.ts';
import { selectChildrenWithParked, selectParkedChildrenOfParent } from '../store/parked-reports.ts';
import { deliverParkedOfChild } from './ingest-report.ts';

export { deliverParkedOfChild };

/** So many children's parked reports are delivered at a time, which fills a batch of the ingest. */
const CHILDREN_AT_A_TIME = 128;

/** Delivers what is parked for the parent's inbox, in bounded chunks of children. */
export async function deliverParkedForParent(
  resources: Resources,
  of: { tenantId: string; parentId: string },
): Promise<void> {
  let afterChildId = '';
  for (;;) {
    const page = { ...of, afterChildId, limit: CHILDREN_AT_A_TIME };
    const children = await resources.database.run((db) => selectParkedChildrenOfParent(db, page));
    await Promise.all(
      children.map((childId) =>
        deliverParkedOfChild(resources, { tenantId: of.tenantId, childId }),
      ),
    );
    const last = children.at(-1);
    if (last === undefined || children.length < CHILDREN_AT_A_TIME) return;
    afterChildId = last;
  }
}

/** Delivers what is parked for any of these children, as far as it can be. */
export async function deliverParkedOfChildren(
  resources: Resources,
  { tenantId, ids }: { tenantId: string; ids: string[] },
): Promise<void> {
  if (ids.length === 0) return;
  const waiting = await resources.database.run((db) =>
    selectChildrenWithParked(db, { tenantId, ids }),
  );
  for (let at = 0; at < waiting.length; at += CHILDREN_AT_A_TIME) {
    await Promise.all(
      waiting
        .slice(at, at + CHILDREN_AT_A_TIME)
        .map((childId) => deliverParkedOfChild(resources, { tenantId, childId })),
    );
  }
}
