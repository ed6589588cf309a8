/** version-traceid-parentid-flags of W3C Trace Context; ids of zeros only are not ids. */
const TRACEPARENT =
  /^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?$/;
/** Later versions may add fields; none is known that comes near this. */
const LENGTH_MAX = 256;

/** The `traceparent` header if it is one, to be stored with the item; else null. */
export function traceparentOf(header: string | undefined): string | null {
  if (header === undefined || header.length > LENGTH_MAX) return null;
  return TRACEPARENT.test(header) ? header : null;
}
