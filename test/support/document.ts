/*
 * Requests made from the OpenAPI document that the service serves, so that a route added later is
 * tested like the others.
 */

export interface Operation {
  id: string;
  method: string;
  /** With its parameters in braces. */
  path: string;
  parameters: { in: 'path' | 'query' | 'header'; name: string }[];
  /** null: it takes no body. */
  body: Schema | null;
  /** It answers with a stream that does not end. */
  streams: boolean;
}

export interface Schema {
  type?: string | string[];
  const?: unknown;
  enum?: unknown[];
  anyOf?: Schema[];
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  minItems?: number;
  minimum?: number;
  exclusiveMinimum?: number;
  format?: string;
}

/** A member of a body, by where it stands; a number is an index of an array. */
export interface Field {
  at: (string | number)[];
  schema: Schema;
}

interface Document {
  paths: Record<string, Record<string, DocumentedOperation>>;
}

interface DocumentedOperation {
  operationId: string;
  parameters?: Operation['parameters'];
  requestBody?: { content: { 'application/json': { schema: Schema } } };
  responses: Record<string, { content?: object }>;
}

/** All operations of the document. */
export function operationsOf(document: unknown): Operation[] {
  return Object.entries((document as Document).paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({
      id: operation.operationId,
      method: method.toUpperCase(),
      path,
      parameters: operation.parameters ?? [],
      body: operation.requestBody?.content['application/json'].schema ?? null,
      streams: 'text/event-stream' in (operation.responses['200']?.content ?? {}),
    })),
  );
}

/** The operation's path with these values, encoded, as its parameters. */
export function pathWith(
  { path }: Pick<Operation, 'path'>,
  values: Record<string, string | undefined>,
): string {
  return path.replaceAll(/\{([^}]+)\}/g, (_, name: string) =>
    encodeURIComponent(values[name] ?? `some_${name}`),
  );
}

/** A value that the schema allows: with all members, or only with those that it requires. */
export function sampleOf(schema: Schema, members: 'all' | 'required'): unknown {
  if (schema.const !== undefined) return schema.const;
  if (schema.enum !== undefined) return schema.enum[0];
  if (schema.anyOf !== undefined) return sampleOf(schema.anyOf[0] ?? {}, members);
  switch (typesOf(schema)[0]) {
    case 'object': {
      const entries = Object.entries(schema.properties ?? {}).filter(
        ([name]) => members === 'all' || schema.required?.includes(name),
      );
      return Object.fromEntries(entries.map(([name, its]) => [name, sampleOf(its, members)]));
    }
    case 'array':
      return [sampleOf(schema.items ?? {}, members)];
    case 'string':
      return schema.format === 'uri' ? 'https://example.test/hook' : 'some_text';
    case 'integer':
    case 'number':
      return Math.max(schema.minimum ?? 0, 1);
    case 'boolean':
      return true;
    case undefined:
    default:
      return {};
  }
}

/** Every member that a body of the schema may have, at any depth, and the body itself. */
export function fieldsOf(schema: Schema, at: Field['at'] = []): Field[] {
  const [first] = schema.anyOf ?? [];
  const own = first ?? schema;
  const members = Object.entries(own.properties ?? {}).flatMap(([name, its]) =>
    fieldsOf(its, [...at, name]),
  );
  const entries = own.items === undefined ? [] : fieldsOf(own.items, [...at, 0]);
  return [{ at, schema }, ...members, ...entries];
}

/** False where the document rules the value out by its type or its being constant. */
export function mayBe(schema: Schema, value: unknown): boolean {
  if (schema.anyOf !== undefined) return schema.anyOf.some((one) => mayBe(one, value));
  if (schema.const !== undefined) return schema.const === value;
  if (schema.enum !== undefined) return schema.enum.includes(value);
  const types = typesOf(schema);
  return types.length === 0 || types.some((type) => isOfType(type, value));
}

function typesOf({ type }: Schema): string[] {
  return type === undefined ? [] : [type].flat();
}

function isOfType(type: string, value: unknown): boolean {
  switch (type) {
    case 'null':
      return value === null;
    case 'array':
      return Array.isArray(value);
    case 'object':
      return typeof value === 'object' && value !== null && !Array.isArray(value);
    case 'integer':
      return Number.isInteger(value);
    default:
      return typeof value === type;
  }
}

/** A copy of the body with the value in this place. */
export function withValue(body: unknown, at: Field['at'], value: unknown): unknown {
  const [first, ...rest] = at;
  if (first === undefined) return value;
  if (Array.isArray(body)) {
    return body.map((entry, n) => (n === first ? withValue(entry, rest, value) : entry));
  }
  const members = body as Record<string, unknown>;
  return { ...members, [first]: withValue(members[first], rest, value) };
}
