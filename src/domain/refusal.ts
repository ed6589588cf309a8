/*
 * The catalogue of refusals: what a client did or asked that the service does not do, each with its
 * stable code and HTTP status. Outcomes are returned values; anything thrown that is not a Refusal
 * is a defect.
 */

/** Every stable error code with its status and title. */
export const REFUSALS = {
  invalid_input: { status: 400, title: 'The request is not valid' },
  unauthorized: { status: 401, title: 'A valid token is needed' },
  forbidden: { status: 403, title: 'This is not allowed' },
  not_found: { status: 404, title: 'There is no such thing' },
  method_not_allowed: { status: 405, title: 'The method is not allowed here' },
  conflict: { status: 409, title: 'The state does not allow it' },
  payload_too_large: { status: 413, title: 'The body is too large' },
  unsupported_media_type: { status: 415, title: 'The body must be JSON' },
  idempotency_key_reused: {
    status: 422,
    title: 'The Idempotency-Key was used for another request',
  },
  capacity_reached: { status: 429, title: 'The capacity is reached' },
  rate_limited: { status: 429, title: 'Too many requests' },
  internal: { status: 500, title: 'Something went wrong here' },
  subagent_delivery_not_confirmed: {
    status: 503,
    title: 'The delivery of the result could not be confirmed',
  },
  unavailable: { status: 503, title: 'The service cannot do this at the moment' },
} as const;

export type RefusalCode = keyof typeof REFUSALS;

/** Why a 409 was given. */
export type ConflictReason = 'child_busy' | 'parent_mismatch' | 'session_closed' | 'work_ended';

export interface RefusalDetails {
  reason?: string;
  outcome?: string;
  retryAfterSeconds?: number;
  errors?: { path: string; message: string }[];
}

/** Thrown to refuse a request; `detail` is written for the client and holds no internals. */
export class Refusal extends Error {
  readonly code: RefusalCode;
  readonly details: RefusalDetails;

  constructor(code: RefusalCode, detail: string, details: RefusalDetails = {}) {
    super(detail);
    this.name = 'Refusal';
    this.code = code;
    this.details = details;
  }
}

/** A 404 for a session, an item, a work entry. */
export function notFound(what: string): Refusal {
  return new Refusal('not_found', `${what} is not known.`);
}

/** A 409 with its reason. */
export function conflict(reason: ConflictReason, detail: string): Refusal {
  return new Refusal('conflict', detail, { reason });
}

/** A 400 that names the field. */
export function invalid(path: string, message: string): Refusal {
  return new Refusal('invalid_input', `${path}: ${message}`, { errors: [{ path, message }] });
}
