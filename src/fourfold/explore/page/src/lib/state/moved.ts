/** Figures and choices that moved to another page: addresses of older versions open them where they are now. */

import { type Part, partOf } from "./parts.ts";
import type { PageName, Params, Place } from "./url.ts";

const IN_DEVICE = ["roofline", "attention"];

/** Choices that were `PAGE.NAME`: the new page, and the part of it where it has parts. Where a walk stands says most of what was looked at. */
const MOVED: Readonly<Record<string, readonly [PageName, Part?]>> = {
  "collectives.block": ["parallelism", "tensor"],
  "collectives.turn": ["parallelism", "context"],
  "collectives.exchange": ["parallelism", "expert"],
  "collectives.moment": ["parallelism", "zero"],
  "collectives.tp": ["parallelism", "tensor"],
  "collectives.sequence": ["parallelism", "tensor"],
  "collectives.cp": ["parallelism", "context"],
  "collectives.ep": ["parallelism", "expert"],
  "cluster.segment": ["device"],
  "cluster.kernel": ["device"],
  "cluster.frame": ["device"],
  "cluster.order": ["device"],
  "cluster.causal": ["device"],
  "cluster.tokens": ["device"],
  "cluster.heads": ["device"],
  "cluster.head_dim": ["device"],
  "cluster.fast_kb": ["device"],
};
/** Keys of the run file whose names begin as a page's do. */
const OF_RUNS = [
  ...["software", "attention", "norms", "softmax", "loss", "rotary", "optimizer"],
  ...["tp_collectives", "dispatcher", "ep_collectives", "experts", "launches"],
];

/** The place that an address of today or of an older version means. `alone`: the figure that is shown alone. */
export function movedPlace({ page, params }: Place, alone?: string): Place {
  const figure = alone ?? params.figure;
  const old = Object.keys(MOVED).filter((key) => params[key] !== undefined);
  const stays = Object.keys(params).some((key) => {
    const [first, name = ""] = key.split(".", 2);
    return first === page && name !== "" && !OF_RUNS.includes(name) && MOVED[key] === undefined;
  });
  const renamed: Record<string, string> = {};
  for (const [key, value] of Object.entries(params)) renamed[MOVED[key] ? newKey(key) : key] = value;
  const part = partOf(figure);
  if (part && page === "collectives") return { page: "parallelism", params: withPart(renamed, part) };
  if (IN_DEVICE.includes(figure ?? "") && page === "cluster") return { page: "device", params: renamed };
  const target = MOVED[old.find((key) => key.startsWith(`${page}.`)) ?? ""];
  if (target === undefined || stays) return { page, params: renamed };
  return { page: target[0], params: target[1] ? withPart(renamed, target[1]) : renamed };
}

const newKey = (key: string): string => `${MOVED[key]?.[0]}.${key.split(".", 2)[1]}`;

const withPart = (params: Params, part: Part): Params => ({ "parallelism.part": part, ...params });
