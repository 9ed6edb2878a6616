/** Where the reader of the tour stands: scene, knobs and clock are the address's, guesses the browser's. */

import type { Documents } from "$generated/documents.ts";
import { type Found, type Parts, Shown } from "$lib/api/shown.svelte.ts";
import { Choices, CONTROLS } from "$lib/state/choices.ts";
import { session } from "$lib/state/session.svelte.ts";
import type { Params } from "$lib/state/url.ts";
import { type Knob, type Scene, standing, type Values } from "./scene.ts";

/** What a scene's figure is given. */
export interface FigureProps {
  found: Readonly<Record<string, Documents[keyof Documents] | undefined>>;
  values: Values;
  /** The clock: a share of the step. */
  moment: number;
  /** The selector of the sentence that is read. */
  lit: string;
  set: (name: string, value: string) => void;
  go: (moment: number) => void;
}

const KEY = "fourfold-tour";
/** The scene's name in the address that is the page of claims. */
export const CLAIMS = "claims";
const START_MOMENT = 0.4;

class Tour extends Choices {
  /** By scene: what was guessed, or "" where the answer was wanted without a guess. */
  guesses = $state.raw<Readonly<Record<string, string>>>(stored());
  #shown = new Map<string, Shown<Parts>>();

  get scene(): string | undefined {
    return this.own("scene");
  }

  get moment(): number {
    return Math.min(1, Math.max(0, this.number("at", START_MOMENT)));
  }

  value(id: string, name: string, knob: Knob): string {
    return standing(knob, this.own(`${id}.${name}`));
  }

  values({ id, knobs }: { id: string; knobs: Readonly<Record<string, Knob>> }): Values {
    const all = Object.entries(knobs).map(([name, knob]) => [name, this.value(id, name, knob)]);
    return Object.fromEntries(all) as Values;
  }

  /** Turns a knob; at its start it leaves the address. */
  set({ id, knobs }: Pick<Scene, "id" | "knobs">, name: string, value: string): void {
    this.change({ scene: id, [`${id}.${name}`]: value === knobs[name]?.start ? undefined : value });
  }

  go(moment: number): void {
    session.drag(() => this.change({ at: moment.toFixed(4) }));
  }

  enter(id: string): void {
    if (this.scene !== id) session.drag(() => this.change({ scene: id }));
  }

  guess(id: string, value: string): void {
    this.guesses = { ...this.guesses, [id]: value };
    try {
      localStorage.setItem(KEY, JSON.stringify(this.guesses));
    } catch {
      // a private window keeps nothing
    }
  }

  /** The documents of a scene, which stay while the reader goes on. */
  shown({ id, parts }: Pick<Scene, "id" | "parts">): Shown<Parts> {
    const found = this.#shown.get(id) ?? new Shown(`tour.${id}`, parts);
    this.#shown.set(id, found);
    return found;
  }
}

function stored(): Record<string, string> {
  try {
    const found: unknown = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    const all = typeof found === "object" && found !== null ? Object.entries(found) : [];
    return Object.fromEntries(all.filter(([, value]) => typeof value === "string"));
  } catch {
    return {};
  }
}

export const tour = new Tour("tour", CONTROLS);

/** Makes the figures of another page stand at these of its places, whose page is not open. */
export function stand(page: { params: Params }, places: Params): void {
  page.params = { ...session.params, ...places };
}

/** A document of a scene, whose parts say which it is. */
export const documentOf = <Name extends keyof Documents>(
  found: FigureProps["found"],
  part: string,
): Documents[Name] | undefined => found[part] as Documents[Name] | undefined;

export type { Found };
