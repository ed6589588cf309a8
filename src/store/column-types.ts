import { customType } from 'drizzle-orm/pg-core';

/**
 * How values cross the wire, once for drizzle and for tagged statements alike: an instant is epoch
 * milliseconds here and `timestamptz` there, an int8 is a number, and a json parameter given as a
 * string is JSON text already (so nothing is encoded twice).
 */

/** A `timestamptz` column held as epoch milliseconds; finer digits in the table are cut off. */
export const instant = customType<{ data: number; driverData: number | string }>({
  dataType: () => 'timestamp with time zone',
  toDriver: instantToWire,
  fromDriver: (value) => (typeof value === 'number' ? value : instantFromWire(value)),
});

/**
 * A `jsonb` column. Drizzle's own decodes once more what the driver has decoded, so the JSON string
 * `"42"` comes back as the number 42; this one does not.
 */
export const jsonb = customType<{ data: unknown; driverData: unknown }>({
  dataType: () => 'jsonb',
  toDriver: (value) => JSON.stringify(value),
  fromDriver: (value) => value,
});

/** A `bytea` column. */
export const bytea = customType<{ data: Uint8Array; driverData: Uint8Array }>({
  dataType: () => 'bytea',
});

/**
 * An array parameter as the driver can send it. For booleans, bytes and dates it would declare the
 * type of the first element as the type of the whole array, so those are written out; the others
 * are written when the server has told their type.
 */
export function arrayLiteral(values: readonly unknown[]): unknown {
  const [first] = values;
  if (typeof first === 'boolean') return arrayToWire(values, booleanToWire);
  if (first instanceof Uint8Array) return arrayToWire(values, bytesToWire);
  if (first instanceof Date) return arrayToWire(values, instantToWire);
  if (typeof first === 'bigint') return arrayToWire(values, String);
  return values;
}

/** Milliseconds as PostgreSQL text. Never throws: what is no time is refused by the server. */
export function instantToWire(value: unknown): string {
  if (typeof value === 'string') return value;
  const date = value instanceof Date ? value : new Date(Number(value));
  return Number.isNaN(date.getTime()) ? `not an instant: ${String(value)}` : date.toISOString();
}

/** Epoch milliseconds from the text of a `timestamptz`; needs DateStyle ISO and TimeZone UTC. */
function instantFromWire(text: string): number {
  if (text === 'infinity') return Infinity;
  if (text === '-infinity') return -Infinity;
  const milliseconds = Date.parse(`${text.slice(0, 10)}T${text.slice(11, -3)}Z`);
  if (Number.isNaN(milliseconds)) throw new RangeError(`not a time in UTC: ${text}`);
  return milliseconds;
}

/**
 * The `types` option of every postgres.js client. Array types are named here because the driver's
 * own look-up (`fetch_types`) ends the process with an unhandled rejection when the connection is
 * lost during it, and its array parser reads a NULL element as the text 'NULL'.
 *
 * No serializer may throw: the driver would reject another query than the one at fault, and hand
 * the answers of all later ones to the wrong callers.
 */
export const wireTypes = {
  instant: { to: 1184, from: [1184], serialize: instantToWire, parse: instantFromWire },
  int8: { to: 20, from: [20], serialize: String, parse: integerFromWire },
  json: { to: 3802, from: [114, 3802], serialize: jsonToWire, parse: JSON.parse },
  bytes: { to: 17, from: [17], serialize: bytesToWire, parse: bytesFromWire },
  booleanArray: arrayType(1000, booleanToWire, (text) => text === 't'),
  bytesArray: arrayType(1001, bytesToWire, bytesFromWire),
  int2Array: arrayType(1005, String, Number),
  int4Array: arrayType(1007, String, Number),
  textArray: arrayType(1009, String, String),
  varcharArray: arrayType(1015, String, String),
  int8Array: arrayType(1016, String, integerFromWire),
  float8Array: arrayType(1022, String, Number),
  instantArray: arrayType(1185, instantToWire, instantFromWire),
  jsonArray: arrayType(199, jsonToWire, JSON.parse),
  uuidArray: arrayType(2951, String, String),
  jsonbArray: arrayType(3807, jsonToWire, JSON.parse),
};

function arrayType(
  oid: number,
  serialize: (element: unknown) => string,
  parse: (text: string) => unknown,
) {
  return {
    to: oid,
    from: [oid],
    serialize: (values: unknown) => arrayToWire(values, serialize),
    parse: (text: string) => arrayFromWire(text, parse),
  };
}

function jsonToWire(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value);
}

function booleanToWire(value: unknown): string {
  return value === true || value === 't' ? 't' : 'f';
}

function bytesToWire(value: unknown): string {
  return value instanceof Uint8Array ? `\\x${Buffer.from(value).toString('hex')}` : String(value);
}

function bytesFromWire(text: string): Buffer {
  return Buffer.from(text.slice(2), 'hex');
}

function integerFromWire(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value)) throw new RangeError(`int8 beyond 2^53: ${text}`);
  return value;
}

/** A string is taken to be an array literal already (drizzle's array columns write those). */
function arrayToWire(values: unknown, serialize: (element: unknown) => string): string {
  if (!Array.isArray(values)) return String(values);
  const elements = values.map((element: unknown) =>
    element === null || element === undefined ? 'NULL' : `"${escaped(serialize(element))}"`,
  );
  return `{${elements.join(',')}}`;
}

function escaped(element: string): string {
  const isPlain = !element.includes('"') && !element.includes('\\');
  return isPlain ? element : element.replace(/["\\]/g, '\\$&');
}

/** Reads an array of one dimension. */
function arrayFromWire(text: string, parse: (element: string) => unknown): unknown[] {
  const elements: unknown[] = [];
  const element = /"((?:[^"\\]|\\.)*)"|([^,{}"]+)/gsy;
  let at = text.indexOf('{') + 1;
  while (at < text.length - 1) {
    element.lastIndex = at;
    const match = element.exec(text);
    if (match === null) throw new RangeError('an array of more than one dimension');
    const [whole, quoted, bare] = match;
    if (quoted !== undefined) elements.push(parse(quoted.replace(/\\(.)/gs, '$1')));
    else elements.push(bare === 'NULL' ? null : parse(bare ?? ''));
    at += whole.length + 1;
  }
  return elements;
}
