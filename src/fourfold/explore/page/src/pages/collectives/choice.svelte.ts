/** What the person chose on this page; the address holds it. */

import { catalog } from "$lib/api/catalog.svelte.ts";
import { Shown } from "$lib/api/shown.svelte.ts";
import { session } from "$lib/state/session.svelte.ts";
import type { Params } from "$lib/state/url.ts";
import { plainName } from "$lib/units.ts";
import { valuesOf } from "../strategy/editing.svelte.ts";

export const KINDS = [
  { value: "all_reduce", label: "all-reduce" },
  { value: "reduce_scatter", label: "reduce-scatter" },
  { value: "all_gather", label: "all-gather" },
  { value: "all_to_all", label: "all-to-all" },
] as const;
export type Kind = (typeof KINDS)[number]["value"];

export type Axis = "tp" | "cp" | "ep";
const MOST_RANKS = 16;

class Choice {
  #get: (key: string) => string | undefined;
  #params: () => Params;

  /** `get`: a parameter of the state whose choices these are; `params`: all of them. */
  constructor(get: (key: string) => string | undefined, params: () => Params) {
    this.#get = get;
    this.#params = params;
  }

  #number(key: string, otherwise: number): number {
    const found = Number(this.#get(`collectives.${key}`) ?? otherwise);
    return Number.isFinite(found) ? found : otherwise;
  }

  get kind(): Kind {
    const found = this.#get("collectives.kind");
    return KINDS.find(({ value }) => value === found)?.value ?? "all_reduce";
  }

  get algorithm(): string | undefined {
    return this.#get("collectives.algorithm");
  }

  get ranks(): number {
    return this.#number("ranks", 8);
  }

  get perNode(): number {
    return this.#number("per_node", 4);
  }

  get bytes(): number {
    return this.#number("bytes", 1e9);
  }

  /** Steps that have been taken. */
  get step(): number {
    return Math.max(0, Math.round(this.#number("step", 1)));
  }

  /** The set-up's degree of an axis, where it cuts a block into parts that can be drawn. */
  setup(axis: Axis): number | undefined {
    const degree = Number(valuesOf(this.#params())[`layout.${axis}`] ?? 1);
    return degree > 1 && degree <= MOST_RANKS ? degree : undefined;
  }

  /** The degree of an axis that cuts a block: stated on this page, else the set-up's. */
  degree(axis: Axis): number {
    return this.#number(axis, this.setup(axis) ?? 4);
  }

  get tp(): number {
    return this.degree("tp");
  }

  get cp(): number {
    return this.degree("cp");
  }

  get ep(): number {
    return this.degree("ep");
  }

  get sequenceParallel(): boolean {
    return this.#get("collectives.sequence") !== "off";
  }

  /** Where a walk through a block, a ring or an exchange stands. */
  at(key: string, otherwise: number): number {
    return Math.max(0, Math.round(this.#number(key, otherwise)));
  }

  /** A share of the training step. */
  get moment(): number {
    return Math.min(1, Math.max(0, this.#number("moment", 45) / 100));
  }

  /** This page's, else that of the setup, without its number of devices. */
  get cluster(): string {
    const run = this.#get("run")?.replace(/^preset:/, "");
    const preset = catalog.document?.presets.find(({ name }) => name.replace(/^preset:/, "") === run);
    const named = this.#get("collectives.cluster") ?? this.#get("cluster") ?? preset?.cluster;
    return named?.split(":")[0] || "dgx-h100";
  }

  /** Changes keys of this page. */
  change(changes: Readonly<Record<string, string | undefined>>): void {
    const own = Object.entries(changes).map(([key, value]) => [`collectives.${key}`, value] as const);
    session.change(Object.fromEntries(own));
  }
}

/** What the controls stand at. */
export const choice = new Choice(
  (key) => session.get(key),
  () => session.params,
);
/** What is shown: the collective's steps, ZeRO in its stages, a block cut three ways. */
export const page = new Shown("collectives", {
  steps: "collective",
  "ZeRO-0": "simulate",
  "ZeRO-1": "simulate",
  "ZeRO-2": "simulate",
  "ZeRO-3": "simulate",
  HSDP: "simulate",
  tensor: "block",
  context: "block",
  expert: "block",
});
/** The choices that are shown: those of its documents. */
export const shown = new Choice(
  (key) => page.params[key],
  () => page.params,
);

/** The model's name in the state that is shown, or what stands for one. */
export const modelShown = (otherwise: string): string =>
  page.params.run ? plainName(page.params.run) : (page.params["model.preset"] ?? otherwise);

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
