/** Two set-ups in one address: A, whose keys stand by themselves, and B, which has A's keys but where `b.KEY` states another. */

import { type Params, withChanges } from "./url.ts";

/** Prefix of the keys in which B differs from A. An empty value: B leaves the key out. */
export const SECOND = "b.";
/** Whether B is pinned beside A, and whether the controls change it. */
export const COMPARES = "strategy.compare";
export const EDITS = "strategy.edit";

export type Mark = "" | "A" | "B";
type Changes = Record<string, string | undefined>;

export const compares = (params: Params): boolean => params[COMPARES] === "1";
export const editsSecond = (params: Params): boolean => compares(params) && params[EDITS] === "b";

/** The keys in which B differs, without their prefix; undefined: B leaves the key out. */
export function secondKeys(params: Params): Changes {
  const own = Object.entries(params).filter(([key]) => key.startsWith(SECOND));
  return Object.fromEntries(
    own.map(([key, text]) => [key.slice(SECOND.length), text === "" ? undefined : text]),
  );
}

/** The set-ups of a state, each a state of its own: the only one, or A and B. */
export function sidesOf(params: Params): readonly [Params, Params?] {
  const own = Object.keys(params).filter(
    (key) => key.startsWith(SECOND) || key === COMPARES || key === EDITS,
  );
  const first = withChanges(params, Object.fromEntries(own.map((key) => [key, undefined])));
  return compares(params) ? [first, withChanges(first, secondKeys(params))] : [first];
}

/** The set-up that the controls change, as a state of its own. */
export function editedOf(params: Params): Params {
  const [first, second] = sidesOf(params);
  return editsSecond(params) && second ? second : first;
}

/** What pins B: it begins as A, and the controls change it. */
export const pinning: Changes = { [COMPARES]: "1", [EDITS]: "b" };

/** What leaves A alone. */
export function clearing(params: Params): Changes {
  const own = Object.keys(params).filter((key) => key.startsWith(SECOND));
  return Object.fromEntries([...own, COMPARES, EDITS].map((key) => [key, undefined]));
}

/** What makes B the only set-up. */
export const keepingSecond = (params: Params): Changes => ({ ...clearing(params), ...secondKeys(params) });

/** What makes A of B and B of A. `first`: all that A states, the keys of its run of the literature too. */
export function swapping(params: Params, first: Params): Changes {
  const pairs = Object.entries(secondKeys(params));
  return Object.fromEntries(
    pairs.flatMap(([key, value]) => [
      [key, value],
      [SECOND + key, first[key] ?? ""],
    ]),
  );
}
