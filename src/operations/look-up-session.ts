import { newestAssistantMessage, responseIdsOf } from '../domain/assistant-text.ts';
import type { UpstreamText } from '../domain/report.ts';
import { describeFromUpstream, patchFromUpstream } from '../domain/snapshot.ts';
import { storable } from '../domain/text.ts';
import type { Resources } from '../resources.ts';
import { selectDeliveredResponses } from '../store/assistant-texts.ts';
import { selectDescribedAmong, type SessionKey } from '../store/sessions.ts';
import { writeSnapshot } from './write-snapshot.ts';

/**
 * Asks upstream for a session that is not known here and stores what it says. `absent`: there is
 * none; `unavailable`: upstream cannot say at the moment. Without an upstream nothing is there.
 */
export async function lookUpSession(
  resources: Resources,
  key: SessionKey,
): Promise<'stored' | 'absent' | 'unavailable'> {
  if (resources.upstream === null) return 'absent';
  const answer = await resources.upstream.readSession(key.sessionId);
  if (answer.kind !== 'found') return answer.kind;
  await writeSnapshot(resources, {
    ...key,
    patch: patchFromUpstream(answer.value),
    decide: describeFromUpstream,
  });
  return 'stored';
}

/**
 * Has those of the sessions that are not known here described, as far as upstream knows them and can
 * be asked: what is dispatched to a child goes on without its names.
 */
export async function lookUpUnknown(
  resources: Resources,
  { tenantId, ids }: { tenantId: string; ids: string[] },
): Promise<void> {
  if (resources.upstream === null || ids.length === 0) return;
  const known = await resources.database.run((db) => selectDescribedAmong(db, { tenantId, ids }));
  const unknown = ids.filter((id) => !known.has(id));
  await Promise.all(unknown.map((sessionId) => lookUpSession(resources, { tenantId, sessionId })));
}

/** Asks upstream for the newest text of the turn that the assistant of this session wrote. */
export async function lookUpText(
  resources: Resources,
  { responseId, ...key }: SessionKey & { responseId: string | null },
): Promise<UpstreamText> {
  if (resources.upstream === null) return { kind: 'none' };
  const answer = await resources.upstream.readMessages(key.sessionId);
  if (answer.kind === 'unavailable') return { kind: 'unavailable' };
  const messages = answer.kind === 'found' ? answer.value : [];
  const ids = responseIdsOf(messages);
  const delivered =
    ids.length === 0
      ? new Set<string>()
      : await resources.database.run((db) => selectDeliveredResponses(db, { ...key, ids }));
  const newest = newestAssistantMessage(messages, responseId, delivered);
  if (newest === null) return { kind: 'none' };
  const { id, text } = newest;
  return { kind: 'found', messageId: id === null ? null : storable(id), text: storable(text) };
}
