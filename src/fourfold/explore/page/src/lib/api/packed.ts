/** Columns of numbers that a document has as text. */

import type { Packed } from "$generated/documents.ts";

const KINDS = { uint8: Uint8Array, uint16: Uint16Array, int32: Int32Array, float64: Float64Array } as const;

/** The numbers of a column. */
export function unpacked(column: Packed): Uint8Array | Uint16Array | Int32Array | Float64Array {
  const { buffer } = bytesOf(column.base64);
  return new KINDS[column.kind](buffer);
}

/** Browsers of today decode by themselves, and sooner. */
function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  const own = Uint8Array as typeof Uint8Array & { fromBase64?: (text: string) => Uint8Array<ArrayBuffer> };
  if (own.fromBase64) return own.fromBase64(base64);
  const text = atob(base64);
  const found = new Uint8Array(text.length);
  for (let place = 0; place < text.length; place += 1) found[place] = text.charCodeAt(place);
  return found;
}
