/** What the page's address says of the pipeline, with what holds where it says nothing. */

import { catalog } from "$lib/api/catalog.svelte.ts";
import { Shown } from "$lib/api/shown.svelte.ts";
import { session } from "$lib/state/session.svelte.ts";
import { setupOf } from "$lib/state/setup.ts";
import type { Params } from "$lib/state/url.ts";

export const PASSES = ["F", "I", "W", "transfer"] as const;
export type Pass = (typeof PASSES)[number];

class Pipeline {
  #get: (key: string) => string | undefined;
  #params: () => Params;

  /** The pipeline of a state: one parameter of it, and all of them. */
  constructor(get: (key: string) => string | undefined, params: () => Params) {
    this.#get = get;
    this.#params = params;
  }

  #number(key: string, usual: number): number {
    const found = Number(this.#get(key) ?? usual);
    return Number.isFinite(found) ? found : usual;
  }

  get ranks(): number {
    const stated = this.#number("layout.pp", 1);
    return this.#number("pipeline.ranks", stated > 1 ? stated : 4);
  }
  get microbatches(): number {
    return this.#number("pipeline.microbatches", Math.max(8, 2 * this.ranks));
  }
  get virtualStages(): number {
    return this.#number("pipeline.v", Math.max(2, this.#number("layout.virtual_stages", 2)));
  }
  get schedule(): string {
    return this.#get("pipeline.schedule") ?? this.#get("layout.schedule") ?? "1f1b";
  }
  /** Whether stages take the seconds of the cluster; else times that are set. */
  get priced(): boolean {
    return this.#get("pipeline.times") === "cluster";
  }
  /** Whether the critical path is drawn. */
  get pathed(): boolean {
    return this.#get("pipeline.path") !== "off";
  }
  time(pass: Pass): number {
    return this.#number(`pipeline.${pass}`, pass === "transfer" ? 0 : 1);
  }
  put(name: string, value: string | number | undefined): void {
    session.change({ [`pipeline.${name}`]: value === undefined ? undefined : String(value) });
  }
  /** The names of all schedules, in the catalog's order. */
  get names(): string[] {
    return (catalog.document?.schedules ?? []).map((each) => each.name);
  }
  /** The request of a schedule's document. */
  body(schedule = this.schedule): object {
    const times = Object.fromEntries(PASSES.map((pass) => [pass, this.time(pass)]));
    return {
      ...setupOf(this.#params()),
      schedule,
      ranks: this.ranks,
      microbatches: this.microbatches,
      virtual_stages: this.virtualStages,
      ...(this.priced ? {} : { times }),
    };
  }
}

/** What the controls stand at. */
export const pipeline = new Pipeline(
  (key) => session.get(key),
  () => session.params,
);
/** What is shown. */
export const page = new Shown("pipeline", { drawn: "pipeline" });
/** The pipeline that is drawn. */
export const shown = new Pipeline(
  (key) => page.params[key],
  () => page.params,
);
export const scheduleName = (name: string): string =>
  ({ "1f1b": "1F1B", gpipe: "GPipe", dualpipe_v: "DualPipeV", interleaved_1f1b: "interleaved" })[name] ??
  name
    .replaceAll("_", "-")
    .replace(/^zb/, "ZB")
    .replace(/-([hv])/, (_, letter: string) => `-${letter.toUpperCase()}`);
