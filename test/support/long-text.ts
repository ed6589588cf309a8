import { randomInt } from 'node:crypto';

/** So many characters of four bytes, of which compression saves nothing. */
export function longText(characters: number): string {
  return Array.from({ length: characters }, () =>
    String.fromCodePoint(randomInt(0x1_0000, 0x11_0000)),
  ).join('');
}
