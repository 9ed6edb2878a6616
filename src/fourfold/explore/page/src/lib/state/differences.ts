/** What differs between the main numbers of two set-ups, in words. */

import { signed } from "../units.ts";

export interface Compared {
  name: string;
  value: number | null | undefined;
  text: (value: number) => string;
  /** Which is better, where one is. */
  better?: "more" | "less";
}
export interface Difference {
  name: string;
  from: string;
  to: string;
  /** `−12.0 %`, or `equal`. */
  change: string;
  tone: "good" | "no" | "soft";
}
const EQUAL = 0.0005;
/** A share grows in points; what grows more than tenfold is a factor. */
const MOST = 10;

/** The numbers that both have, A's and B's. */
export function differencesOf(first: readonly Compared[], second: readonly Compared[]): Difference[] {
  return first.flatMap(({ name, value: a, text, better }) => {
    const b = second.find((each) => each.name === name)?.value;
    if (a == null || b == null) return [];
    const share = a === 0 ? (b === 0 ? 0 : Number.POSITIVE_INFINITY) : b / a - 1;
    const equal = Math.abs(share) < EQUAL;
    const tone = equal || better === undefined ? "soft" : share > 0 === (better === "more") ? "good" : "no";
    return [{ name, from: text(a), to: text(b), change: equal ? "equal" : changeOf(a, b, share), tone }];
  });
}

function changeOf(a: number, b: number, share: number): string {
  if (a <= 0 || b < 0) return "";
  return share > MOST ? `${Math.round(b / a)} times` : signed(share, 1);
}
