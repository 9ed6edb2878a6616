/** What a person chose on one page: parameters `PAGE.NAME` of a state, which is that of the controls or the one that is shown. */

import { session } from "./session.svelte.ts";
import type { PageName, Params } from "./url.ts";

export type Changes = Readonly<Record<string, string | undefined>>;

/** A state: one parameter of it, and all. */
export interface State {
  get: (key: string) => string | undefined;
  params: () => Params;
}
/** Where the controls stand. */
export const CONTROLS: State = { get: (key) => session.get(key), params: () => session.params };
/** What is shown. */
export const shownBy = (page: { readonly params: Params }): State => ({
  get: (key) => page.params[key],
  params: () => page.params,
});

/** The number that a parameter states; `otherwise` where it states none. */
export function numberOf<Other extends number | undefined>(
  text: string | undefined,
  otherwise: Other,
): number | Other {
  const found = Number(text);
  return text === undefined || text === "" || !Number.isFinite(found) ? otherwise : found;
}

/** Changes with a prefix before each name. */
export const prefixed = (prefix: string, changes: Changes): Changes =>
  Object.fromEntries(Object.entries(changes).map(([key, value]) => [prefix + key, value]));

export class Choices {
  readonly state: State;
  readonly #prefix: string;

  /** `part`: a part of the page, whose parameters are `PAGE.PART.NAME`. */
  constructor(page: PageName, state: State, part?: string) {
    this.#prefix = part === undefined ? `${page}.` : `${page}.${part}.`;
    this.state = state;
  }

  own(name: string): string | undefined {
    return this.state.get(this.#prefix + name);
  }

  number<Other extends number | undefined>(name: string, otherwise: Other): number | Other {
    return numberOf(this.own(name), otherwise);
  }

  /** Changes keys of the page. Changes by one control are one step of undo. */
  change(changes: Changes, control?: string): void {
    session.change(prefixed(this.#prefix, changes), control);
  }

  /** A move of a hand: each is a step of undo. */
  move(changes: Changes): void {
    this.change(changes, "");
  }
}
