/*
 * An item's public id is its place in the order of delivery, written so that ids sort like the
 * places they stand for.
 */

const FORM = /^item_([0-9a-f]{14})$/;

/** The id of the item with this sequence number. */
export function itemId(seq: number): string {
  return `item_${seq.toString(16).padStart(14, '0')}`;
}

/** The sequence number an id stands for; null if it is no item's id. */
export function itemSeq(id: string): number | null {
  const hex = FORM.exec(id)?.[1];
  if (hex === undefined) return null;
  const seq = Number.parseInt(hex, 16);
  return Number.isSafeInteger(seq) ? seq : null;
}
