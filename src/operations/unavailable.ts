import { StorageUnavailable } from '../store/unavailable.ts';
import { Overloaded } from './ingest-queue.ts';

/**
 * True for what passes by itself: the database cannot be used at the moment, or there is too much
 * to do. The request may be repeated as it is.
 */
export function isPassing(error: unknown): error is StorageUnavailable | Overloaded {
  return error instanceof StorageUnavailable || error instanceof Overloaded;
}
