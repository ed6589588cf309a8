/*
 * Whether only this machine can be meant: by the address that the service listens on, and by the
 * Host and Origin of a request (a page on the web can make a browser call us under a name of its
 * own that resolves to 127.0.0.1; the Host header then gives that name).
 */

const LOOPBACK = String.raw`(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])`;
const HOST = new RegExp(`^${LOOPBACK}(?::\\d{1,5})?$`, 'i');
const ORIGIN = new RegExp(`^https?://${LOOPBACK}(?::\\d{1,5})?$`, 'i');

/** True for an address or name on which nothing from outside this machine arrives. */
export function isLoopbackAddress(address: string): boolean {
  return HOST.test(address.includes(':') ? `[${address}]` : address);
}

/** True if the Host header names this machine, with any port. */
export function isLoopbackHost(host: string): boolean {
  return HOST.test(host);
}

/** True if the Origin header names a page of this machine. */
export function isLoopbackOrigin(origin: string): boolean {
  return ORIGIN.test(origin);
}
