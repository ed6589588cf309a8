import type { Context } from 'hono';
import { z } from 'zod';
import { Refusal } from '../domain/refusal.ts';
import { invalidInput, type Env } from './router.ts';

/*
 * JSON bodies, read here and not by zod-openapi's validator: clients that leave out the content type
 * are served too, an optional body may be empty, and the body is read once (bench/ingest.ts).
 */

/** A JSON content type: `application/json`, `application/vnd.x+json`, with or without parameters. */
const JSON_TYPE = /^\s*application\/(?:[\w.!#$&^-]+\+)?json\s*(?:;.*)?$/i;

export interface BodyOptions {
  /** An empty body counts as `{}`. */
  optional?: boolean;
}

/** The body as the schema has it; refuses what is not JSON (415, 400) or not as the schema says. */
export async function readBody<Schema extends z.ZodType>(
  c: Context<Env>,
  schema: Schema,
  { optional = false }: BodyOptions = {},
): Promise<z.output<Schema>> {
  const result = schema.safeParse(await readJson(c, optional));
  if (!result.success) throw invalidInput(result.error);
  return result.data;
}

async function readJson(c: Context<Env>, optional: boolean): Promise<unknown> {
  const body = await readText(c);
  if (optional && body === '') return {};
  const type = c.req.header('content-type');
  if (type !== undefined && !JSON_TYPE.test(type)) {
    throw new Refusal('unsupported_media_type', 'The body must be application/json.');
  }
  try {
    return JSON.parse(body);
  } catch {
    // A SyntaxError, or a RangeError where it is nested too deeply to be read.
    throw new Refusal('invalid_input', 'The body is not JSON.');
  }
}

async function readText(c: Context<Env>): Promise<string> {
  try {
    return await c.req.text();
  } catch (error) {
    if (error instanceof Refusal) throw error;
    throw new Refusal('invalid_input', 'The body ended before it was complete.');
  }
}

/** The declaration of a body for createRoute; it documents, `readBody` validates. */
export function jsonBody(schema: z.ZodType, { optional = false }: BodyOptions = {}) {
  // As plain JSON Schema: for a zod schema zod-openapi would put its own reading in front.
  const { $schema: _, ...document } = z.toJSONSchema(schema, {
    io: 'input',
    unrepresentable: 'any',
  });
  return {
    required: !optional,
    content: { 'application/json': { schema: document as Record<string, unknown> } },
  };
}
