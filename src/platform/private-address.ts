import { BlockList, isIP } from 'node:net';

/*
 * Addresses that lead into this machine or the network around it, where nobody outside may have us
 * send anything: loopback, private, link-local (cloud metadata), shared and reserved ranges, and
 * those of IPv6 that carry an IPv4 address to be reached through a translator.
 */

const IPV4: readonly [string, number][] = [
  ['0.0.0.0', 8],
  ['10.0.0.0', 8],
  ['100.64.0.0', 10],
  ['127.0.0.0', 8],
  ['169.254.0.0', 16],
  ['172.16.0.0', 12],
  ['192.0.0.0', 24],
  ['192.0.2.0', 24],
  ['192.88.99.0', 24],
  ['192.168.0.0', 16],
  ['198.18.0.0', 15],
  ['198.51.100.0', 24],
  ['203.0.113.0', 24],
  ['224.0.0.0', 4],
  ['240.0.0.0', 4],
];
const IPV6: readonly [string, number][] = [
  ['::', 96],
  ['::ffff:0:0:0', 96],
  ['64:ff9b::', 96],
  ['64:ff9b:1::', 48],
  ['100::', 64],
  ['2001::', 32],
  ['2001:db8::', 32],
  ['2002::', 16],
  ['fc00::', 7],
  ['fe80::', 10],
  ['fec0::', 10],
  ['ff00::', 8],
];

const blocked = new BlockList();
for (const [net, prefix] of IPV4) blocked.addSubnet(net, prefix, 'ipv4');
for (const [net, prefix] of IPV6) blocked.addSubnet(net, prefix, 'ipv6');

/** True for an IP address that must not be reached from outside; also for what is no address. */
export function isPrivateAddress(address: string): boolean {
  const [bare = ''] = address.split('%', 1);
  const family = isIP(bare);
  if (family === 0) return true;
  // An IPv4 address in the clothes of IPv6 is judged as what it is.
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(bare)?.[1];
  if (mapped !== undefined) return isPrivateAddress(mapped);
  return blocked.check(bare, family === 4 ? 'ipv4' : 'ipv6');
}
