/** The scale of a guess, which is logarithmic, and how far a guess was off. */

import type { GuessDocument } from "$generated/documents.ts";
import { valueText } from "./wanted.ts";

/** The number at a step of the scale. */
export const valueAt = ({ least, most }: GuessDocument, step: number, steps: number): number =>
  Number((least * (most / least) ** (step / steps)).toPrecision(2));

/** The step at which a number stands; outside the scale below 0 or above `steps`. */
export const stepOf = ({ least, most }: GuessDocument, value: number, steps: number): number =>
  (steps * Math.log(Math.max(value, 1e-300) / least)) / Math.log(most / least);

export const guessText = ({ path }: GuessDocument, value: number): string => valueText(path, value);

/** How far a guess is from the truth, in words. */
export function ratioText(said: number, truth: number): string {
  const ratio = said / truth;
  if (ratio > 0.9 && ratio < 1.11) return "Right on it.";
  const factor = ratio > 1 ? ratio : 1 / ratio;
  return `${factor < 1.95 ? `${Math.round(100 * (factor - 1))} %` : `${Number(factor.toPrecision(2))} times`} too ${ratio > 1 ? "much" : "little"}.`;
}
