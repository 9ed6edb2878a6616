/** What several learners have reached, as a text that an address holds: `Ada=eight-copies:won,heavy-head:tried;Bo=…`. */

import { readHash } from "$lib/state/url.ts";
import type { Done, Progress } from "./progress.ts";

/** `shown`: won once the solution had been set. */
export type Mark = "won" | "shown" | "tried";
const MARKS: readonly Mark[] = ["won", "shown", "tried"];
export interface Learner {
  name: string;
  marks: Readonly<Record<string, Mark>>;
}
export const KEY = "tasks.class";
const LONGEST_NAME = 60;

export const markOf = ({ won, shown, hints, guess }: Done): Mark | undefined =>
  won ? (shown ? "shown" : "won") : hints !== undefined || guess !== undefined || shown ? "tried" : undefined;

/** Whether a task is solved, with the solution shown or without. */
export const isSolved = (mark: Mark | undefined): boolean => mark === "won" || mark === "shown";

/** A learner of a saved progress. */
export function learnerOf(name: string, progress: Progress): Learner {
  const marks = Object.entries(progress).flatMap(([id, done]) => {
    const mark = markOf(done);
    return mark === undefined ? [] : [[id, mark] as const];
  });
  return { name: name.trim().slice(0, LONGEST_NAME) || "nobody", marks: Object.fromEntries(marks) };
}

export const classText = (learners: readonly Learner[]): string =>
  learners
    .map(({ name, marks }) => {
      const each = Object.entries(marks).map(([id, mark]) => `${id}:${mark}`);
      return `${encodeURIComponent(name)}=${each.join(",")}`;
    })
    .join(";");

/** Reads what `classText` wrote; nothing of what it does not know. */
export function readClass(text: string): Learner[] {
  return text
    .split(";")
    .filter((part) => part.includes("="))
    .map((part) => {
      const [name = "", rest = ""] = part.split(/=(.*)/s, 2);
      const marks = rest.split(",").flatMap((each) => {
        const [id = "", word] = each.split(":");
        const mark = MARKS.find((known) => known === word);
        return mark !== undefined && /^[a-z0-9-]+$/.test(id) ? [[id, mark] as const] : [];
      });
      return { name: nameFrom(name), marks: Object.fromEntries(marks) };
    });
}

function nameFrom(text: string): string {
  try {
    return decodeURIComponent(text).slice(0, LONGEST_NAME);
  } catch {
    return text.slice(0, LONGEST_NAME);
  }
}

/** The learners of links, one a line or with words between. */
export const readLinks = (text: string): Learner[] =>
  text.split(/\s+/).flatMap((word) => {
    const hash = word.indexOf("#");
    return hash < 0 ? [] : readClass(readHash(word.slice(hash)).params[KEY] ?? "");
  });

/** A class with more learners. One of a name that is there takes its place: it is the later result. */
export function withLearners(learners: readonly Learner[], more: readonly Learner[]): Learner[] {
  const found = new Map(learners.map((each) => [each.name, each]));
  for (const each of more) found.set(each.name, each);
  return [...found.values()];
}
