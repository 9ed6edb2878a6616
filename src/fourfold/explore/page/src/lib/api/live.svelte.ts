/**
 * A document that comes after those that a page shows at once (`Shown`): one request in flight, the latest wins. Whoever shows it asks
 * `answers` first: until the next answer, the last one is of another request.
 */

import type { Documents } from "$generated/documents.ts";
import { ask, messageOf, Refused } from "./client.ts";

/**
 * A request that has run longer than the last one took, and longer than the first of these, is given up for a newer one, at the
 * latest after the second. A shorter one is let finish, so that dragging redraws.
 */
const PATIENCE_MS = [250, 1000] as const;
/** How long a request may run that a newer one waits for, given how long the last one took. */
export const patience = (milliseconds: number): number =>
  Math.min(Math.max(1.3 * milliseconds, PATIENCE_MS[0]), PATIENCE_MS[1]);
/** So many answers tell how slow the next one may be: a server that knows parts of one gives it sooner. */
const LATEST = 8;

export class Live<Name extends keyof Documents> {
  document = $state.raw<Documents[Name] | undefined>();
  error = $state("");
  busy = $state(false);
  /** From the request to the answer. */
  milliseconds = $state(0);
  /** The longest of the latest answers. */
  slowest = $state(0);
  #latest: readonly number[] = [];
  #name: Name;
  #view: string;
  /** The request that was answered last. */
  #shown = $state("");
  #flying: { key: string; since: number; abort: AbortController } | undefined;
  #next: string | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(name: Name, view: string = name) {
    this.#name = name;
    this.#view = view;
  }

  /** Whether what this holds, a document or an error, is the answer to this request. */
  answers(body: object | undefined): boolean {
    return body !== undefined && this.#shown === JSON.stringify(body);
  }

  /** Wants the document of this request; call it in an `$effect`. `undefined`: none. */
  want(body: object | undefined): void {
    if (body === undefined) {
      this.#next = undefined;
      this.#shown = "";
      this.#flying?.abort.abort();
      this.document = undefined;
      this.error = "";
      return;
    }
    const key = JSON.stringify(body);
    if (key === (this.#flying?.key ?? this.#shown)) {
      this.#next = undefined;
      return;
    }
    this.#next = key;
    if (this.#flying === undefined) void this.#fly();
    else {
      clearTimeout(this.#timer);
      const rest = patience(this.milliseconds) - (performance.now() - this.#flying.since);
      const { abort } = this.#flying;
      this.#timer = setTimeout(() => this.#next !== undefined && abort.abort(), Math.max(0, rest));
    }
  }

  async #fly(): Promise<void> {
    const key = this.#next;
    if (key === undefined) return;
    this.#next = undefined;
    const abort = new AbortController();
    this.#flying = { key, since: performance.now(), abort };
    this.busy = true;
    try {
      const found = await ask(this.#name, JSON.parse(key) as object, this.#view, abort.signal);
      this.milliseconds = performance.now() - this.#flying.since;
      this.#latest = [this.milliseconds, ...this.#latest].slice(0, LATEST);
      this.slowest = Math.max(...this.#latest);
      this.document = found;
      this.error = "";
      this.#shown = key;
    } catch (error) {
      const stale = abort.signal.aborted || (error instanceof Refused && error.status === 409);
      if (!stale) {
        this.error = messageOf(error);
        this.#shown = key;
      }
    } finally {
      this.#flying = undefined;
      clearTimeout(this.#timer);
      this.busy = this.#next !== undefined;
      if (this.#next !== undefined) void this.#fly();
    }
  }
}
