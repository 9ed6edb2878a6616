/** The numbers of a criterion as a person reads them, by the path that they stand at. */

import type { CriterionResult } from "$generated/documents.ts";
import { bytes, count, dollars, duration, perCent, precise, whole } from "$lib/units.ts";

const WORDS: Readonly<Record<string, string>> = {
  ">=": "at least",
  "<=": "at most",
  ">": "more than",
  "<": "less than",
};
const SHARES =
  /(^|\.)(mfu|hfu|goodput|bubble_fraction|waiting_fraction|imbalance_fraction|compute)$|^time_shares\./;

/** A value at a path; its unit is in its name. */
export function valueText(path: string, value: CriterionResult["got"]): string {
  if (value === null) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string") return value;
  if (path.endsWith("_bytes")) return bytes(value);
  if (path.endsWith("seconds")) return duration(value);
  if (path.endsWith("dollars")) return dollars(value);
  if (path.endsWith("_hours")) return `${count(value)} h`;
  if (path === "model_parameters") return count(value);
  if (path === "tokens") return whole(value);
  return SHARES.test(path) ? perCent(value) : precise(value);
}

export function wantedText({ path, comparison, wanted }: CriterionResult): string {
  const value = valueText(path, wanted);
  return comparison === "==" ? value : comparison === "!=" ? `not ${value}` : `${WORDS[comparison]} ${value}`;
}

/** Where a number and its limit lie on a bar from 0 to 1; undefined of what is no number. */
export function gauge({ wanted, got }: CriterionResult): { value: number; limit: number } | undefined {
  if (typeof wanted !== "number" || typeof got !== "number" || wanted <= 0 || got < 0) return undefined;
  const most = Math.max(wanted * 1.6, got * 1.05);
  return { value: got / most, limit: wanted / most };
}
