/** What a page of the set-up shows: its documents for set-up A and, where it is pinned, for B; of one state of the address. */

import { compares, type Mark, SECOND, sidesOf } from "../state/sides.ts";
import type { Params } from "../state/url.ts";
import { type Bodies, type Found, type Parts, Shown } from "./shown.svelte.ts";

/** One set-up of what is shown. */
export interface Side<P extends Parts> {
  /** "" where there is one set-up alone. */
  readonly mark: Mark;
  /** The state, as if this set-up were alone in it. */
  readonly params: Params;
  readonly documents: Found<P>;
  /** Why a part is refused. */
  error: (part: keyof P) => string;
  /** A part's document, where it is not refused. */
  sound: <Part extends keyof P>(part: Part) => Found<P>[Part];
}

export class Pair<P extends Parts> {
  readonly #shown: Shown<Parts>;
  readonly #names: readonly string[];
  /** A, and B where it is pinned. */
  readonly sides: readonly Side<P>[] = $derived.by(() => {
    const { params } = this.#shown;
    const marks: readonly Mark[] = compares(params) ? ["A", "B"] : [""];
    return marks.map((mark, index) =>
      this.#side(mark, sidesOf(params)[index] ?? params, index > 0 ? SECOND : ""),
    );
  });

  /** `view`: the page; a newer request of a part replaces its older one on the server. */
  constructor(view: string, parts: P) {
    this.#names = Object.keys(parts);
    const second = Object.entries(parts).map(([part, name]) => [SECOND + part, name]);
    this.#shown = new Shown<Parts>(view, { ...parts, ...Object.fromEntries(second) });
  }

  /** A. */
  get first(): Side<P> {
    return this.sides[0] as Side<P>;
  }
  /** B, where it is pinned. */
  get second(): Side<P> | undefined {
    return this.sides[1];
  }
  get params(): Params {
    return this.#shown.params;
  }
  /** Stands at parameters that no request depends on, where the documents come from elsewhere. */
  set params(params: Params) {
    this.#shown.params = params;
  }
  get busy(): boolean {
    return this.#shown.busy;
  }
  /** From the request of the state to its last answer. */
  get milliseconds(): number {
    return this.#shown.milliseconds;
  }

  /** Wants the documents of these parameters; call it in an `$effect`. `bodiesOf`: the requests of one set-up's state. */
  want(params: Params, bodiesOf: (setup: Params) => Bodies<P>): void {
    const [first, second] = sidesOf(params);
    const bodies = { ...bodiesOf(first), ...this.#prefixed(second && bodiesOf(second)) };
    this.#shown.want(params, bodies as Bodies<Parts>);
  }

  /** Ends what is asked for and shows nothing: the page is left. */
  forget(): void {
    this.#shown.forget();
  }

  #prefixed(bodies: Bodies<P> | undefined): Bodies<Parts> {
    return Object.fromEntries(
      this.#names.map((part) => {
        const body = bodies?.[part];
        const found = (all: Found<Parts>) =>
          typeof body === "function" ? body(this.#documents(all, SECOND)) : body;
        return [SECOND + part, typeof body === "function" ? found : body];
      }),
    );
  }

  #side(mark: Mark, params: Params, prefix: string): Side<P> {
    const documents = this.#documents(this.#shown.documents, prefix);
    const { errors } = this.#shown;
    const error = (part: keyof P): string => errors[prefix + String(part)] ?? "";
    return { mark, params, documents, error, sound: (part) => (error(part) ? undefined : documents[part]) };
  }

  /** The documents of one set-up, by the parts' own names. */
  #documents(all: Found<Parts>, prefix: string): Found<P> {
    return Object.fromEntries(this.#names.map((part) => [part, all[prefix + part]])) as Found<P>;
  }
}
