/** A task's guess: its scale, its words, and how far it was off. */

import type { GuessDocument } from "$generated/documents.ts";
import type { Scale } from "$lib/scale.ts";
import { valueText } from "./wanted.ts";

/** The scale on which a guess is set, in the words of its quantity. */
export const writtenScale = ({
  least,
  most,
  path,
}: GuessDocument): Scale & { written: (value: number) => string } => ({
  from: least,
  to: most,
  written: (value) => valueText(path, value),
});

/** How far a guess is from the truth, in words. */
export function ratioText(said: number, truth: number): string {
  const ratio = said / truth;
  if (ratio > 0.9 && ratio < 1.11) return "right on it";
  const factor = ratio > 1 ? ratio : 1 / ratio;
  return `${factor < 1.95 ? `${Math.round(100 * (factor - 1))} %` : `${Number(factor.toPrecision(2))} times`} too ${ratio > 1 ? "much" : "little"}`;
}
