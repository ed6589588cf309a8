import { hash } from 'node:crypto';

/** So many characters of base64url a hash has. */
export const SESSION_HASH_LENGTH = 8;

/**
 * A short name for a session, by which replicas tell each other where to look: 48 bits of SHA-1. Two
 * sessions of one name cost a look for nothing.
 */
export function sessionHash(tenantId: string, sessionId: string): string {
  return hash('sha1', `${tenantId}\0${sessionId}`, 'base64url').slice(0, SESSION_HASH_LENGTH);
}
