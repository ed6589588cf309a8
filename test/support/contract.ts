import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import type { Answer } from './http-client.ts';

interface Operation {
  responses: Record<string, { content?: Record<string, unknown> }>;
}

interface Document {
  paths: Record<string, Record<string, Operation>>;
}

/** Compares answers with the OpenAPI document that the service serves. */
export interface Contract {
  /** Throws when the document does not allow this answer to this request. */
  check(method: string, path: string, answer: Answer): void;
}

const contracts = new Map<string, Contract>();

/** The contract of a document, compiled once for all services that serve the same one. */
export function contractOf(document: object): Contract {
  const key = JSON.stringify(document);
  const contract = contracts.get(key) ?? compile(document as Document);
  contracts.set(key, contract);
  return contract;
}

function compile(document: Document): Contract {
  const ajv = new Ajv2020({ strict: false, allErrors: true });
  addFormats.default(ajv);
  ajv.addSchema(document, 'document');
  const validators = new Map<string, ValidateFunction>();
  const templates = Object.keys(document.paths)
    .map((template) => ({ template, pattern: patternOf(template) }))
    // So that `/sessions/new` goes before `/sessions/{id}`, as in the router.
    .toSorted((a, b) => a.template.split('{').length - b.template.split('{').length);

  function validatorOf(...at: string[]): ValidateFunction {
    const pointer = at
      .map((name) => name.replaceAll('~', '~0').replaceAll('/', '~1'))
      .map(encodeURIComponent)
      .join('/');
    const validate = validators.get(pointer) ?? ajv.compile({ $ref: `document#/${pointer}` });
    validators.set(pointer, validate);
    return validate;
  }

  function check(method: string, path: string, { status, headers, body }: Answer): void {
    const target = path.split('?', 1)[0] ?? '';
    const found = templates.find(({ pattern, template }) => {
      return pattern.test(target) && document.paths[template]?.[method.toLowerCase()];
    });
    if (found === undefined) return checkProblem(status, body);
    const { template } = found;
    const verb = method.toLowerCase();
    const operation = document.paths[template]?.[verb];
    const declared = operation?.responses[status];
    if (declared === undefined && status < 400) fail('this status is not in the document');
    const response = declared ?? operation?.responses['default'];
    if (response?.content === undefined) {
      if (body !== '') fail('the document knows no body here');
      return;
    }
    const type = headers['content-type']?.split(';', 1)[0] ?? '';
    if (!(type in response.content)) fail(`the document does not know the type ${type} here`);
    if (!type.includes('json')) return;
    const entry = declared === undefined ? 'default' : String(status);
    const validate = validatorOf(
      'paths',
      template,
      verb,
      'responses',
      entry,
      'content',
      type,
      'schema',
    );
    if (!validate(body)) fail(ajv.errorsText(validate.errors));

    function fail(why: string): never {
      throw new Error(`${method} ${path} → ${status}: ${why}: ${JSON.stringify(body)}`);
    }
  }

  /** Outside of the document there are only refusals (and the page with its assets). */
  function checkProblem(status: number, body: unknown): void {
    if (status < 400) return;
    const validate = validatorOf('components', 'schemas', 'Problem');
    if (!validate(body)) throw new Error(`not a problem: ${ajv.errorsText(validate.errors)}`);
  }

  return { check };
}

function patternOf(template: string): RegExp {
  const quoted = template.replaceAll(/[.*+?^$()|[\]\\]/g, String.raw`\$&`);
  return new RegExp(`^${quoted.replaceAll(/\{[^}]+\}/g, '[^/]+')}$`);
}
