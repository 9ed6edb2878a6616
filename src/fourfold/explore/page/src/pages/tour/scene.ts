/** A scene of the tour as data, and what the page makes of it: pieces of sentences, knobs, guesses. Pure, so that it is tested alone. */

import type { Bodies, Found, Parts } from "$lib/api/shown.svelte.ts";
import type { Scale } from "$lib/scale.ts";

/** Inside what a reader stands, from the innermost out. */
export const PLACES = ["kernel", "block", "rank", "node", "pipeline", "cluster", "run"] as const;
export type Place = (typeof PLACES)[number];

/** A number or a word of the text that the reader drags: the values that it takes, as the address has them. */
export interface Knob {
  label: string;
  values: readonly string[];
  start: string;
  written?: (value: string) => string;
}
export type Values = Readonly<Record<string, string>>;

/** What is asked before anything is shown: a number on a scale of equal factors, or one of a few words. */
export interface Guess {
  question: string;
  scale?: Scale & { written: (value: number) => string };
  options?: readonly { value: string; label: string }[];
}

/**
 * A sentence. In its text `{name}` is a number of the answers or a knob, `[words](slug)` a term of the glossary; it has no other
 * number. `part`: a selector of what it lights in the figure.
 */
export interface Sentence {
  text: string;
  part?: string;
}

export interface Scene<P extends Parts = Parts> {
  id: string;
  place: Place;
  title: string;
  /** The component that draws it, of `figures/`. */
  figure: string;
  knobs: Readonly<Record<string, Knob>>;
  parts: P;
  asks(values: Values): Bodies<P>;
  guess: Guess;
  /** What the answers say to the question; undefined until they are there. */
  truth(found: Found<P>, values: Values): number | string | undefined;
  /** The numbers of the sentences, from the answers alone; left out until these are there. */
  numbers(found: Found<P>, values: Values): Readonly<Record<string, string | undefined>>;
  sentences: readonly Sentence[];
  /** What would change it. */
  changes: readonly Sentence[];
  /** Whether the figure moves with the clock. */
  moves?: boolean;
}

/** A scene with the types of its documents. */
export const scene = <const P extends Parts>(given: Scene<P>): Scene => given as unknown as Scene;

export type Piece =
  | { kind: "text"; text: string }
  | { kind: "number"; name: string }
  | { kind: "knob"; name: string }
  | { kind: "term"; text: string; slug: string };

/** A sentence in pieces. */
export function piecesOf(text: string, knobs: Readonly<Record<string, Knob>>): Piece[] {
  const found: Piece[] = [];
  let from = 0;
  for (const match of text.matchAll(/\{(\w+)\}|\[([^\]]+)\]\(([\w-]+)\)/g)) {
    if (match.index > from) found.push({ kind: "text", text: text.slice(from, match.index) });
    const [, name, words, slug] = match;
    if (name !== undefined) found.push({ kind: name in knobs ? "knob" : "number", name });
    else found.push({ kind: "term", text: words ?? "", slug: slug ?? "" });
    from = match.index + match[0].length;
  }
  if (from < text.length) found.push({ kind: "text", text: text.slice(from) });
  return found;
}

/** The knob's value that the address states, where the knob has it. */
export const standing = (knob: Knob, stated: string | undefined): string =>
  stated !== undefined && knob.values.includes(stated) ? stated : knob.start;

/** The value so many places on. `around`: after the last one comes the first. */
export function moved(knob: Knob, value: string, by: number, around = false): string {
  const count = knob.values.length;
  const at = Math.max(0, knob.values.indexOf(value)) + by;
  const to = around ? ((at % count) + count) % count : Math.min(Math.max(at, 0), count - 1);
  return knob.values[to] ?? value;
}

const [CLOSE, MOST] = [1.15, 1000];

/** How near a guess was, in words. */
export function judged(guess: Guess, given: string, truth: number | string): string {
  if (guess.options) return given === truth ? "right" : "not so";
  const ratio = Number(given) / Number(truth);
  if (ratio < CLOSE && ratio > 1 / CLOSE) return "close";
  const times = ratio > 1 ? ratio : 1 / ratio;
  const words = times < MOST ? String(Number(times.toPrecision(2))) : "over a thousand";
  return `${words} times too ${ratio > 1 ? "much" : "little"}`;
}

/** The scene before or after one; undefined at the ends. */
export function beside<Each extends { id: string }>(
  all: readonly Each[],
  id: string,
  by: number,
): Each | undefined {
  return all[all.findIndex((each) => each.id === id) + by];
}

/** A text with the values of its knobs in it. */
export const filled = (text: string, knobs: Readonly<Record<string, Knob>>, values: Values): string =>
  text.replace(/\{(\w+)\}/g, (whole, name: string) => {
    const [knob, value] = [knobs[name], values[name]];
    return knob && value !== undefined ? (knob.written?.(value) ?? value) : whole;
  });
