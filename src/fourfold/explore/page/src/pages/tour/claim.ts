/** A sentence that textbooks repeat, and what the answers make of it. */

import type { Bodies, Found, Parts } from "$lib/api/shown.svelte.ts";
import type { Sentence } from "./scene.ts";

export const VERDICTS = [
  { value: "right", label: "right" },
  { value: "part", label: "in part" },
  { value: "wrong", label: "wrong" },
] as const;
export type Verdict = (typeof VERDICTS)[number]["value"];

export interface Bar {
  name: string;
  value: number;
}

export interface Claim<P extends Parts = Parts> {
  id: string;
  /** As it is said. */
  says: string;
  parts: P;
  asks(): Bodies<P>;
  /** What is compared, in one unit; empty until the answers are there. */
  bars(found: Found<P>): readonly Bar[];
  written(value: number): string;
  /** By the answers; undefined until they are there. */
  verdict(found: Found<P>): Verdict | undefined;
  numbers(found: Found<P>): Readonly<Record<string, string | undefined>>;
  /** What the program says, and where the sentence is right. */
  sentences: readonly Sentence[];
}

/** A claim with the types of its documents. */
export const claim = <const P extends Parts>(given: Claim<P>): Claim => given as unknown as Claim;

/** Bars of the values that are there, or none. */
export function barsOf(values: Readonly<Record<string, number | undefined>>): Bar[] {
  const all = Object.entries(values);
  if (all.some(([, value]) => value === undefined)) return [];
  return all.map(([name, value]) => ({ name, value: value ?? 0 }));
}
