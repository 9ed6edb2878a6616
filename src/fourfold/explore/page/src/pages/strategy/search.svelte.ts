/** The search for the best layout: its progress, its result, and the layouts that were asked about. */

import type { ExplanationDocument, PlanDocument, PricedLayout } from "$generated/documents.ts";
import { messageOf, type Progress, search } from "$lib/api/client.ts";
import { type Setup, textOf, type Value } from "$lib/state/setup.ts";
import { perCent } from "$lib/units.ts";

/** Options of a setup that a plan does not take. */
const NOT_OF_PLANS = ["checkpoint_seconds", "restart_seconds", "repair_seconds"];

/** Work of a search, in seconds of a core; a question about one layout needs less. */
const BUDGET = 10;
const ASKED_BUDGET = 2;

class Search {
  progress = $state.raw<Progress | undefined>();
  found = $state.raw<PlanDocument | undefined>();
  /** Answers to "why not?", of this search's model, cluster and batch. */
  explained = $state.raw<readonly ExplanationDocument[]>([]);
  error = $state("");
  /** The setup that was searched, to tell whether it still stands. */
  searched = $state("");
  #abort: AbortController | undefined;

  /** Looks at all layouts. */
  async start(setup: Setup): Promise<void> {
    this.found = undefined;
    this.explained = [];
    this.searched = keyOf(setup);
    const found = await this.#run({ ...withoutLayout(setup), keep: 12, budget: BUDGET });
    if (found) this.found = found;
  }

  /** Asks why the best layout with these values is not the best of all. */
  async explain(setup: Setup, asked: Readonly<Record<string, string | number>>): Promise<void> {
    const found = await this.#run({
      ...withoutLayout(setup),
      keep: 1,
      budget: ASKED_BUDGET,
      explain: [asked],
    });
    if (found) this.explained = [...found.explanations, ...this.explained];
  }

  stop(): void {
    this.#abort?.abort();
    this.#abort = undefined;
    this.progress = undefined;
  }

  async #run(body: object): Promise<PlanDocument | undefined> {
    this.stop();
    const abort = new AbortController();
    this.#abort = abort;
    this.error = "";
    this.progress = { text: "starting", share: 0 };
    const report = (progress: Progress): void => {
      if (!abort.signal.aborted) this.progress = progress;
    };
    try {
      return await search(body, report, abort.signal);
    } catch (error) {
      if (!abort.signal.aborted) this.error = messageOf(error);
      return undefined;
    } finally {
      if (this.#abort === abort) this.progress = undefined;
    }
  }
}

export const searching = new Search();

/** What of a setup a search depends on. */
export const keyOf = (setup: Setup): string => JSON.stringify(withoutLayout(setup));

function withoutLayout(setup: Setup): Setup {
  const free = Object.entries(setup.overrides).filter(([key]) => !key.startsWith("layout."));
  const options = Object.entries(setup).filter(([key]) => !NOT_OF_PLANS.includes(key));
  return { ...Object.fromEntries(options), overrides: Object.fromEntries(free) } as Setup;
}

/** Shares by which two times count as the same. */
const LIKE = 0.0005;

/** How a layout compares with the best, and why a faster one is behind it. */
export function beside(each: PricedLayout, best: PricedLayout): string {
  const slower = each.step_seconds / best.step_seconds - 1;
  if (slower > LIKE) return `${perCent(slower)} slower`;
  if (slower >= -LIKE) return "as fast";
  return `${perCent(-slower)} faster${each.behind === null ? "" : `, and behind: ${each.behind}`}`;
}

/** A layout that was found, as parameters. */
export function keysOf({ layout }: PricedLayout): Record<string, string> {
  const entries = Object.entries(layout).filter(([, value]) => value !== null && value !== undefined);
  return Object.fromEntries(entries.map(([key, value]) => [`layout.${key}`, textOf(value as Value)]));
}
