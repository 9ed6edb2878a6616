/** What a page shows: all documents of one state of the address, exchanged at once when the last of them is there. */

import { untrack } from "svelte";
import type { Documents } from "$generated/documents.ts";
import { type Params, withChanges } from "../state/url.ts";
import { ask, messageOf, Refused } from "./client.ts";
import { patience } from "./live.svelte.ts";

/** The page's documents by the names that it gives them. */
export type Parts = Readonly<Record<string, keyof Documents>>;
export type Found<P extends Parts> = { readonly [Part in keyof P]?: Documents[P[Part]] };
type Body = object | undefined;
/** A part's request; `undefined`: none. One that needs other documents of the state is a function of them. */
export type Bodies<P extends Parts> = { readonly [Part in keyof P]: Body | ((found: Found<P>) => Body) };

interface State<P extends Parts> {
  key: string;
  params: Params;
  bodies: Bodies<P>;
}
interface Answer {
  /** The request, as text. */
  key: string;
  document?: unknown;
  error?: string;
}

/**
 * `documents`, `errors` and `params` are always of one state: a person never sees words of one beside figures of another. While a newer
 * state is computed the one before stays whole, and `busy` is true. Parameters that no request depends on, such as a zoom, change at
 * once where they change alone. A part that is refused keeps the document before, for the page to show as stale or not at all.
 */
export class Shown<P extends Parts> {
  documents = $state.raw<Found<P>>({});
  errors = $state.raw<{ readonly [Part in keyof P]?: string }>({});
  params = $state.raw<Params>({});
  busy = $state(false);
  /** From the request of the state to its last answer. */
  milliseconds = $state(0);
  #parts: P;
  #view: string;
  #answers: Partial<Record<keyof P, Answer>> = {};
  #wanted: Params = {};
  /** The state that is shown, whole; "" before the first. */
  #key = "";
  /** The state that is shown in part, while there was none before. */
  #partial = "";
  #flying: (State<P> & { since: number; abort: AbortController }) | undefined;
  #next: State<P> | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** `view`: the page; a newer request of a part replaces its older one on the server. */
  constructor(view: string, parts: P) {
    this.#view = view;
    this.#parts = parts;
  }

  error(part: keyof P): string {
    return this.errors[part] ?? "";
  }

  /** Wants the documents of these parameters; call it in an `$effect`. */
  want(params: Params, bodies: Bodies<P>): void {
    untrack(() => this.#want({ key: keyOf(bodies), params, bodies }));
  }

  /** Ends what is asked for and shows nothing: the page is left. */
  forget(): void {
    this.#next = undefined;
    this.#flying?.abort.abort();
    this.#flying = undefined;
    clearTimeout(this.#timer);
    this.#answers = {};
    this.#key = this.#partial = "";
    this.documents = {};
    this.errors = {};
    this.busy = false;
  }

  #want(state: State<P>): void {
    const changes = changed(this.#wanted, state.params);
    this.#wanted = state.params;
    const last = this.#next ?? this.#flying;
    if (state.key === (last?.key ?? this.#key)) {
      if (last) last.params = state.params;
      this.params = withChanges(this.params, changes);
      return;
    }
    if (state.key === this.#key) {
      this.#next = undefined;
      this.#flying?.abort.abort();
      this.params = state.params;
      return;
    }
    if (state.key === this.#flying?.key) {
      this.#next = undefined;
      this.#flying.params = state.params;
      return;
    }
    this.#next = state;
    if (this.#key === "" && this.#partial === "") this.params = state.params;
    if (this.#flying === undefined) void this.#fly();
    else {
      const { since, abort } = this.#flying;
      const rest = patience(this.milliseconds) - (performance.now() - since);
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#next !== undefined && abort.abort(), Math.max(0, rest));
    }
  }

  async #fly(): Promise<void> {
    const state = this.#next;
    if (state === undefined) return;
    this.#next = undefined;
    const flying = { ...state, since: performance.now(), abort: new AbortController() };
    this.#flying = flying;
    this.busy = true;
    try {
      const answers = await this.#answersTo(flying, flying.abort.signal);
      if (this.#flying !== flying) return;
      this.milliseconds = performance.now() - flying.since;
      this.#key = flying.key;
      this.#show(answers, flying.params);
    } catch {
      // it was given up for a newer state
    } finally {
      if (this.#flying === flying) {
        this.#flying = undefined;
        clearTimeout(this.#timer);
        this.busy = this.#next !== undefined;
        if (this.#next !== undefined) void this.#fly();
      }
    }
  }

  /** All answers of a state: first of the requests that stand by themselves, then of those that need their documents. */
  async #answersTo(
    { key, bodies }: State<P>,
    signal: AbortSignal,
  ): Promise<Partial<Record<keyof P, Answer>>> {
    const answers: Partial<Record<keyof P, Answer>> = {};
    for (const dependent of [false, true]) {
      const found = documentsOf<P>(answers);
      const parts = Object.keys(this.#parts).filter(
        (part) => (typeof bodies[part] === "function") === dependent,
      );
      await Promise.all(
        parts.map(async (part) => {
          const given = bodies[part];
          const body = typeof given === "function" ? given(found) : given;
          if (body !== undefined) answers[part as keyof P] = await this.#answer(part, body, signal);
          // a page that shows nothing yet shows each document as it comes
          if (this.#key !== "" || signal.aborted || ![key, ""].includes(this.#partial)) return;
          this.#partial = key;
          this.#show(answers, this.params);
        }),
      );
    }
    return answers;
  }

  async #answer(part: string, body: object, signal: AbortSignal): Promise<Answer> {
    const key = JSON.stringify(body);
    const known = this.#answers[part];
    if (known?.key === key) return known;
    try {
      return {
        key,
        document: await ask(this.#parts[part] as keyof Documents, body, `${this.#view}.${part}`, signal),
      };
    } catch (error) {
      if (signal.aborted || (error instanceof Refused && error.status === 409)) throw error;
      return { key, error: messageOf(error) };
    }
  }

  #show(answers: Partial<Record<keyof P, Answer>>, params: Params): void {
    const before = this.documents;
    this.#answers = { ...answers };
    this.params = params;
    this.errors = Object.fromEntries(
      Object.entries(answers).flatMap(([part, answer]) => (answer?.error ? [[part, answer.error]] : [])),
    ) as typeof this.errors;
    const refused = Object.keys(this.errors).map((part) => [part, before[part]]);
    this.documents = { ...Object.fromEntries(refused), ...documentsOf<P>(answers) } as Found<P>;
  }
}

const keyOf = <P extends Parts>(bodies: Bodies<P>): string =>
  JSON.stringify(
    Object.entries(bodies).map(([part, body]) => [
      part,
      typeof body === "function" ? (body as (found: Found<P>) => Body)({}) : body,
    ]),
  );

const documentsOf = <P extends Parts>(answers: Partial<Record<keyof P, Answer>>): Found<P> =>
  Object.fromEntries(
    Object.entries(answers).flatMap(([part, answer]) =>
      answer?.document === undefined ? [] : [[part, answer.document]],
    ),
  ) as Found<P>;

/** What differs between two sets of parameters. */
function changed(before: Params, now: Params): Record<string, string | undefined> {
  const keys = new Set([...Object.keys(before), ...Object.keys(now)]);
  return Object.fromEntries([...keys].flatMap((key) => (before[key] === now[key] ? [] : [[key, now[key]]])));
}
