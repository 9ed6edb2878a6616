/** What the page's address says of the pipeline, with what holds where it says nothing. */

import { catalog } from "$lib/api/catalog.svelte.ts";
import { session } from "$lib/state/session.svelte.ts";
import { setupOf } from "$lib/state/setup.ts";

export const PASSES = ["F", "I", "W", "transfer"] as const;
export type Pass = (typeof PASSES)[number];

const number = (key: string, usual: number): number => {
  const found = Number(session.get(key) ?? usual);
  return Number.isFinite(found) ? found : usual;
};

class Pipeline {
  get ranks(): number {
    const stated = number("layout.pp", 1);
    return number("pipeline.ranks", stated > 1 ? stated : 4);
  }
  get microbatches(): number {
    return number("pipeline.microbatches", Math.max(8, 2 * this.ranks));
  }
  get virtualStages(): number {
    return number("pipeline.v", Math.max(2, number("layout.virtual_stages", 2)));
  }
  get schedule(): string {
    return session.get("pipeline.schedule") ?? session.get("layout.schedule") ?? "1f1b";
  }
  /** Whether stages take the seconds of the cluster; else times that are set. */
  get priced(): boolean {
    return session.get("pipeline.times") === "cluster";
  }
  time(pass: Pass): number {
    return number(`pipeline.${pass}`, pass === "transfer" ? 0 : 1);
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
      ...setupOf(session.params),
      schedule,
      ranks: this.ranks,
      microbatches: this.microbatches,
      virtual_stages: this.virtualStages,
      ...(this.priced ? {} : { times }),
    };
  }
}

export const pipeline = new Pipeline();
export const scheduleName = (name: string): string =>
  ({ "1f1b": "1F1B", gpipe: "GPipe", dualpipe_v: "DualPipeV", interleaved_1f1b: "interleaved" })[name] ??
  name
    .replaceAll("_", "-")
    .replace(/^zb/, "ZB")
    .replace(/-([hv])/, (_, letter: string) => `-${letter.toUpperCase()}`);
