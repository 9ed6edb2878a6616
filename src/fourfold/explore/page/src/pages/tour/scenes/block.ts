/** Scene: a block on the ranks of tensor parallelism. */

import { bytes, perCent, seconds, whole } from "$lib/units.ts";
import { scene } from "../scene.ts";
import { step } from "./run.ts";

const COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter"];

export const block = scene({
  id: "block",
  place: "block",
  title: "A block on eight GPUs",
  figure: "block",
  moves: true,
  parts: { block: "block", run: "simulate" },
  knobs: {
    tp: { label: "Tensor-parallel ranks", values: ["2", "4", "8"], start: "8" },
    split: { label: "Sequence parallelism", values: ["off", "on"], start: "on" },
  },
  asks: ({ tp, split }) => ({
    block: { ...step(), tp: Number(tp), sequence_parallel: split === "on" },
    run: step(),
  }),
  guess: {
    question: "How many collectives does the forward of one block need, with sequence parallelism {split}?",
    options: ["1", "2", "4", "8"].map((value) => ({ value, label: value })),
  },
  truth: ({ block: found }) =>
    found && String(found.steps.filter(({ kind }) => COLLECTIVES.includes(kind)).length),
  numbers: ({ block: found, run }) => {
    const own = found?.steps.filter(({ kind }) => COLLECTIVES.includes(kind)) ?? [];
    const weights = found?.steps.find((each) => each.weights.length > 0);
    const traffic = run?.communication.find(({ axes }) => axes === "tp");
    const split = weights?.weights[0];
    const [span] = split?.boxes[0] ?? [];
    return {
      share: split && span && perCent((span[1] - span[0]) / (split.shape[0] ?? 1), 1),
      number: found && whole(own.length),
      names: found && [...new Set(own.map(({ kind }) => kind.replaceAll("_", "-")))].join(" and "),
      buffer: own[0] && bytes(own[0].bytes),
      sent: found && bytes(own.reduce((sum, each) => sum + each.sent_bytes, 0)),
      all: traffic && bytes(traffic.sent_bytes),
      busy: traffic && seconds(traffic.busy_seconds),
      exposed: traffic && seconds(traffic.exposed_seconds),
      step: run && seconds(run.step_seconds),
    };
  },
  sentences: [
    {
      text: "The first weights are cut by columns. Each of {tp} ranks has {share} of the heads, and needs nobody.",
      part: "rect.work",
    },
    {
      text: "The next are cut by rows. Every rank ends with a summand of the whole result, drawn hatched.",
      part: "rect[fill^='url']",
    },
    {
      text: "One sum closes each pair, so {number} collectives do for a block: {names}. A rank sends {sent}.",
      part: "rect.band",
    },
    {
      text: "With [sequence parallelism](sequence-parallelism-sp) {split}, norms are cut by tokens: a sum is done in two halves, of the same bytes.",
      part: "path.arrow",
    },
  ],
  changes: [
    {
      text: "Over {tp} ranks each holds less and computes less, and sends nearly as much.",
      part: "rect.band",
    },
    {
      text: "In a step of {step} a device sends {all} so. Links are busy for {busy}, and computation waits for {exposed}.",
    },
  ],
});
