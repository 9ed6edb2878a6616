/** Scene: the same exchange inside a node and across nodes. */

import { bytes, perCent, precise, seconds, whole } from "$lib/units.ts";
import { scene } from "../scene.ts";
import { CLUSTER, step } from "./run.ts";

/** Ranks of tensor parallelism and of data parallelism together, in the run. */
const SHARED = 1024;

export const node = scene({
  id: "node",
  place: "node",
  title: "The wall of the node",
  figure: "node",
  moves: true,
  parts: { block: "block", near: "collective", far: "collective", base: "simulate", wide: "simulate" },
  knobs: {
    where: {
      label: "Where the ring is drawn",
      values: ["in the node", "across nodes"],
      start: "in the node",
    },
    tp: { label: "Tensor-parallel ranks", values: ["8", "16", "32"], start: "16" },
  },
  asks: ({ tp }) => {
    const ring =
      (per_node: (ranks: number) => number) =>
      ({ block }: { block?: { ranks: readonly unknown[]; steps: readonly { bytes: number }[] } }) =>
        block && {
          cluster: CLUSTER,
          kind: "all_gather",
          ranks: block.ranks.length,
          per_node: per_node(block.ranks.length),
          buffer_bytes: Math.max(...block.steps.map(({ bytes: size }) => size)),
        };
    return {
      block: { ...step(), tp: 8, sequence_parallel: true },
      near: ring((ranks) => ranks),
      far: ring(() => 1),
      base: step(),
      wide: step({ "layout.tp": Number(tp), "layout.dp_shard": SHARED / Number(tp) }),
    };
  },
  guess: {
    question: "The block's all-gather over the network in place of NVLink: how many times as long?",
    scale: { from: 1, to: 100, written: (value) => `${precise(value)} ×` },
  },
  truth: ({ near, far }) => near && far && far.priced_seconds / near.priced_seconds,
  numbers: ({ near, far, base, wide }) => {
    const slow =
      far &&
      Math.min(...far.levels.filter((each) => each.sent_bytes > 0).map((each) => each.bytes_per_second));
    const waits = (found: typeof base): string | undefined =>
      found && perCent(found.time_shares.exposed.tp ?? 0);
    return {
      ranks: near && whole(near.ranks),
      buffer: near && bytes(near.buffer_bytes),
      fast: near && `${bytes(near.levels[0]?.bytes_per_second ?? 0)}/s`,
      slow: slow !== undefined ? `${bytes(slow)}/s` : undefined,
      near: near && seconds(near.priced_seconds),
      far: far && seconds(far.priced_seconds),
      ratio: near && far && precise(far.priced_seconds / near.priced_seconds),
      held: near && whole(near.levels[0]?.devices ?? 0),
      base: base && seconds(base.step_seconds),
      wide: wide && seconds(wide.step_seconds),
      baseWaits: waits(base),
      waits: waits(wide),
    };
  },
  sentences: [
    {
      text: "{ranks} ranks gather {buffer} round a ring. Over NVLink, at {fast} a device, that takes {near}.",
      part: "g.arc path",
    },
    {
      text: "Over the network, at {slow}, the same ring takes {far}: {ratio} times as long.",
      part: ".exchange",
    },
    {
      text: "A node has {held} devices. With {tp} ranks of [tensor parallelism](tensor-parallelism-tp) every block's exchange leaves it: the step takes {wide}, not {base}.",
      part: ".steps",
    },
    { text: "Of their time devices now wait {waits} for it, where it was {baseWaits}.", part: ".steps" },
  ],
  changes: [
    { text: "See the ring {where}: solid arcs are NVLink, dashed ones the network.", part: "g.arc path" },
    {
      text: "So what is exchanged most often goes on the fastest links. Ranks of tensor parallelism are neighbours.",
    },
  ],
});
