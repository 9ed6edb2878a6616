/** What the person chose on this page, which the address holds, and what is asked for by it. */

import type { BlockDocument } from "$generated/documents.ts";
import { catalog } from "$lib/api/catalog.svelte.ts";
import { Shown } from "$lib/api/shown.svelte.ts";
import { Choices, CONTROLS, shownBy } from "$lib/state/choices.ts";
import type { Setup } from "$lib/state/setup.ts";
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

  /** The set-up's degree of an axis, where it cuts a block into parts that can be drawn. */
  setup(axis: Axis): number | undefined {
    const degree = Number(valuesOf(this.state.params())[`layout.${axis}`] ?? 1);
    return degree > 1 && degree <= MOST_RANKS ? degree : undefined;
  }

  /** The degree of an axis that cuts a block: stated on this page, else the set-up's. */
  degree(axis: Axis): number {
    return this.number(axis, this.setup(axis) ?? 4);
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
    return this.own("sequence") !== "off";
  }

  /** Where a walk through a block, a ring or an exchange stands. */
  at(key: string, otherwise: number): number {
    return Math.max(0, Math.round(this.number(key, otherwise)));
  }

  /** A share of the training step. */
  get moment(): number {
    return Math.min(1, Math.max(0, this.number("moment", 45) / 100));
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
export const shown = new Choice("collectives", shownBy(page));

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

/** ZeRO-0 to 3 and HSDP. */
export const STAGES = [
  { name: "ZeRO-0", zero: 0, replicas: 1, says: "every rank holds everything" },
  { name: "ZeRO-1", zero: 1, replicas: 1, says: "optimizer states are divided" },
  { name: "ZeRO-2", zero: 2, replicas: 1, says: "gradients too, as soon as they are reduced" },
  { name: "ZeRO-3", zero: 3, replicas: 1, says: "parameters too, gathered when a segment runs" },
  { name: "HSDP", zero: 3, replicas: 2, says: "ZeRO-3 inside each of two replicas" },
] as const;
type StageName = (typeof STAGES)[number]["name"];

/** The requests of all stages. `degree`: of the set-up's data parallelism, where it is stated; replicas share it. */
export function stages(setup: Setup, degree: number | undefined): Record<StageName, object> {
  const { "layout.dp_shard": _, ...kept } = setup.overrides;
  const bodies = STAGES.map(({ name, zero, replicas }) => {
    const shards =
      degree === undefined ? {} : { "layout.dp_shard": Math.max(1, Math.floor(degree / replicas)) };
    const overrides = { ...kept, ...shards, "layout.zero": zero, "layout.dp_replicate": replicas };
    return [name, { ...setup, overrides, memory: true }];
  });
  return Object.fromEntries(bodies) as Record<StageName, object>;
}

/** Stands in for a model without experts. */
export const MIXTURE = "mixtral-8x7b";

export interface Degrees {
  tp: number;
  sequenceParallel: boolean;
  cp: number;
  ep: number;
}

/** Whether the block that tensor parallelism cuts has no experts. */
export const isDense = (tensor: BlockDocument | undefined): boolean => tensor?.experts === null;

/** The requests; the one of the experts depends on whether the model has any. */
export function blocks(setup: Setup, { tp, sequenceParallel, cp, ep }: Degrees) {
  return {
    tensor: { ...setup, tp, sequence_parallel: sequenceParallel },
    context: { ...setup, cp },
    expert: ({ tensor }: { tensor?: BlockDocument }): object | undefined =>
      tensor && { ...(isDense(tensor) ? mixture(setup) : setup), ep },
  };
}

function mixture({ run: _, overrides, ...options }: Setup): Setup {
  const kept = Object.entries(overrides).filter(
    ([key]) => !key.startsWith("model.") && !key.startsWith("layout."),
  );
  const length = Math.min(8192, Number(overrides["batch.sequence_length"] ?? 4096));
  const own = { "model.preset": MIXTURE, "batch.sequence_length": length };
  return { ...options, overrides: { ...Object.fromEntries(kept), ...own } };
}
