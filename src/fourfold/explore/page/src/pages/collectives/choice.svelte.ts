/** What the person chose on this page, which the address holds, and what is asked for by it. */

import { catalog } from "$lib/api/catalog.svelte.ts";
import { Pair } from "$lib/api/pair.svelte.ts";
import { Shown } from "$lib/api/shown.svelte.ts";
import { Choices, CONTROLS, shownBy } from "$lib/state/choices.ts";

export const KINDS = [
  { value: "all_reduce", label: "all-reduce" },
  { value: "reduce_scatter", label: "reduce-scatter" },
  { value: "all_gather", label: "all-gather" },
  { value: "all_to_all", label: "all-to-all" },
] as const;
export type Kind = (typeof KINDS)[number]["value"];

/** So many ranks are drawn at most. */
export const MOST_RANKS = 16;

class Choice extends Choices {
  get kind(): Kind {
    const found = this.own("kind");
    return KINDS.find(({ value }) => value === found)?.value ?? "all_reduce";
  }

  get algorithm(): string | undefined {
    return this.own("algorithm");
  }

  get ranks(): number {
    return this.number("ranks", 8);
  }

  get perNode(): number {
    return this.number("per_node", 4);
  }

  get bytes(): number {
    return this.number("bytes", 1e9);
  }

  /** Steps that have been taken. */
  get step(): number {
    return Math.max(0, Math.round(this.number("step", 1)));
  }

  /** This page's, else that of the setup, without its number of devices. */
  get cluster(): string {
    const run = this.state.get("run")?.replace(/^preset:/, "");
    const preset = catalog.document?.presets.find(({ name }) => name.replace(/^preset:/, "") === run);
    const named = this.own("cluster") ?? this.state.get("cluster") ?? preset?.cluster;
    return named?.split(":")[0] || "dgx-h100";
  }
}

/** What the controls stand at. */
export const choice = new Choice("collectives", CONTROLS);
/** What is shown: the collective's steps. */
export const page = new Shown("collectives", { steps: "collective" });
/** The step of the set-up with the collectives that it makes. */
export const steps = new Pair("collectives", { step: "simulate" });
/** The choices that are shown: those of its documents. */
export const shown = new Choice("collectives", shownBy(page));

/** The request for the document. */
export function asked(): object {
  const body = {
    kind: choice.kind,
    ranks: choice.ranks,
    per_node: choice.perNode,
    buffer_bytes: choice.bytes,
    cluster: choice.cluster,
  };
  return choice.algorithm === undefined ? body : { ...body, algorithm: choice.algorithm };
}
