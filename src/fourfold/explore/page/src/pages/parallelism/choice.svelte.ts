/** What the person chose on this page, which the address holds, and what is asked for by it. */

import type { BlockDocument } from "$generated/documents.ts";
import { Pair } from "$lib/api/pair.svelte.ts";
import { Choices, CONTROLS, type State, shownBy } from "$lib/state/choices.ts";
import { valuesOf } from "$lib/state/editing.svelte.ts";
import { PARTS, type Part, partOf } from "$lib/state/parts.ts";
import type { Setup } from "$lib/state/setup.ts";
import type { Params } from "$lib/state/url.ts";
import { plainName } from "$lib/units.ts";

export type Axis = "tp" | "cp" | "ep";
const MOST_RANKS = 16;

class Choice extends Choices {
  /** The part of the page that is looked at. */
  get part(): Part {
    const named = this.own("part");
    return PARTS.find((each) => each === named) ?? partOf(this.state.get("figure")) ?? "tensor";
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
}

/** What the controls stand at. */
export const choice = new Choice("parallelism", CONTROLS);
/** What is shown: a block cut three ways, or ZeRO in its stages. */
export const page = new Pair("parallelism", {
  groups: "groups",
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
export const shown = new Choice("parallelism", shownBy(page));

/** One set-up of what is shown. */
export type ShownSide = (typeof page.sides)[number];
/** The choices of one set-up's state. */
export const choiceOf = (params: Params): Choice =>
  new Choice("parallelism", { get: (key) => params[key], params: () => params } satisfies State);

/** A set-up's model by its name, or what stands for one. */
export const modelOf = (params: Params, otherwise: string): string =>
  params.run ? plainName(params.run) : (params["model.preset"] ?? otherwise);

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
function stages(setup: Setup, degree: number | undefined): Record<StageName, object> {
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

/** What no part but its own asks for. */
const NONE = {
  "ZeRO-0": undefined,
  "ZeRO-1": undefined,
  "ZeRO-2": undefined,
  "ZeRO-3": undefined,
  HSDP: undefined,
  tensor: undefined,
  context: undefined,
  expert: undefined,
};

/** The requests of a part; the one of the experts depends on whether the model has any. */
export function asked(part: Part, setup: Setup, degree: number | undefined, degrees: Degrees) {
  const { tp, sequenceParallel, cp, ep } = degrees;
  if (part === "zero") return { ...NONE, ...stages(setup, degree) };
  if (part === "context") return { ...NONE, context: { ...setup, cp } };
  const tensor = { ...setup, tp, sequence_parallel: sequenceParallel };
  if (part === "tensor") return { ...NONE, tensor };
  const expert = ({ tensor: own }: { tensor?: BlockDocument }): object | undefined =>
    own && { ...(isDense(own) ? mixture(setup) : setup), ep };
  return { ...NONE, tensor, expert };
}

function mixture({ run: _, overrides, ...options }: Setup): Setup {
  const kept = Object.entries(overrides).filter(
    ([key]) => !key.startsWith("model.") && !key.startsWith("layout."),
  );
  const length = Math.min(8192, Number(overrides["batch.sequence_length"] ?? 4096));
  const own = { "model.preset": MIXTURE, "batch.sequence_length": length };
  return { ...options, overrides: { ...Object.fromEntries(kept), ...own } };
}
