/** What the person looks at. The address holds all of it; `change` is the only way to change it. */

import { untrack } from "svelte";
import { SvelteMap } from "svelte/reactivity";
import { isFile } from "../api/client.ts";
import { alone } from "./alone.ts";
import { History } from "./history.ts";
import { movedPlace } from "./moved.ts";
import { isOfSetup } from "./setup.ts";
import { orStart, type PageName, type Params, type Place, readHash, withChanges, writeHash } from "./url.ts";

/** While a control is dragged the address waits until it rests so long: the browser takes longer over it than over a redraw. */
const REST_MS = 200;

class Session {
  #place = $state.raw<Place>(movedPlace(readHash(location.hash, isFile ? "run" : "strategy"), alone));
  #history = new History<Place>();
  #steps = $state(0);
  #page = $derived(this.#place.page);
  #params = $derived(orStart(this.#place.params, this.#place.page));
  /** The same by key: who reads one is told of its changes alone. */
  #values = new SvelteMap(Object.entries(orStart(this.#place.params, this.#place.page)));
  #timer: ReturnType<typeof setTimeout> | undefined;
  #drags = false;

  constructor() {
    addEventListener("hashchange", () => {
      if (location.hash === writeHash(this.#place)) return;
      const place = movedPlace(readHash(location.hash));
      history.replaceState(null, "", writeHash(place)); // so that Back does not lead to an address that leads here
      this.#show(place, "");
    });
    addEventListener("pagehide", () => this.#write(false));
  }

  get page(): PageName {
    return this.#page;
  }

  /** All parameters; those of the start where the address says nothing of a model. */
  get params(): Params {
    return this.#params;
  }

  /** The parameters that the address states. */
  get stated(): Params {
    return this.#place.params;
  }

  /** One parameter. */
  get(key: string): string | undefined {
    return this.#values.get(key);
  }

  get canUndo(): boolean {
    return this.#steps >= 0 && this.#history.canUndo;
  }

  get canRedo(): boolean {
    return this.#steps >= 0 && this.#history.canRedo;
  }

  /** Changes parameters; `undefined` takes one away. `control`: whose quick changes are one step of undo. */
  change(changes: Readonly<Record<string, string | undefined>>, control = Object.keys(changes).join()): void {
    // where a page's own places alone change, what holds at the start needs no words in the address
    const own =
      (this.page === "tour" || this.page === "cluster") &&
      Object.keys(changes).every((key) => key.startsWith(`${this.page}.`) && !isOfSetup(key));
    const params = own ? this.#place.params : this.params;
    this.#show({ page: this.page, params: withChanges(params, changes) }, control);
  }

  /** Replaces all parameters, as a trial does. */
  replace(params: Params): void {
    this.#show({ page: this.page, params }, "");
  }

  /** The address of another page with the same setup: parameters of other pages (`PAGE.NAME`) stay too. */
  addressOf(page: PageName): string {
    return writeHash({ page, params: withChanges(this.#place.params, { figure: undefined }) });
  }

  /** The address that scrolls to a figure of this page, in the state that is shown. */
  addressOfFigure(figure: string): string {
    return writeHash({ page: this.page, params: { ...this.#place.params, figure } });
  }

  /** What a control does while it is dragged. */
  drag(act: () => void): void {
    this.#drags = true;
    try {
      act();
    } finally {
      this.#drags = false;
    }
  }

  undo(): void {
    this.#restore(this.#history.undo(this.#place));
  }

  redo(): void {
    this.#restore(this.#history.redo(this.#place));
  }

  #show(place: Place, control: string): void {
    if (writeHash(place) === writeHash(this.#place)) return;
    this.#history.note(this.#place, control, performance.now());
    const moved = place.page !== this.#place.page;
    this.#put(place);
    if (this.#drags && !moved) this.#writeAfterRest();
    else this.#write(moved);
  }

  #restore(place: Place | undefined): void {
    if (place === undefined) return;
    this.#put(place);
    this.#write(false);
  }

  #put(place: Place): void {
    this.#place = place;
    this.#steps += 1;
    const params = orStart(place.params, place.page);
    untrack(() => {
      for (const key of [...this.#values.keys()]) if (params[key] === undefined) this.#values.delete(key);
      for (const [key, value] of Object.entries(params)) this.#values.set(key, value);
    });
  }

  #writeAfterRest(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#write(false), REST_MS);
  }

  #write(moved: boolean): void {
    clearTimeout(this.#timer);
    const address = writeHash(this.#place);
    if (location.hash === address) return;
    if (moved) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
  }
}

export const session = new Session();
