/** Scene: data parallelism whose copies are divided. */

import type { SimulationDocument } from "$generated/documents.ts";
import { bytes, precise, whole } from "$lib/units.ts";
import { scene } from "../scene.ts";
import { CLUSTER, step } from "./run.ts";

const [TP, DP] = [8, 2048];
const sentOf = (found: SimulationDocument): number =>
  found.communication
    .filter(({ axes }) => axes.startsWith("dp"))
    .reduce((sum, each) => sum + each.sent_bytes, 0);
const ratio = (
  one: SimulationDocument | undefined,
  other: SimulationDocument | undefined,
): number | undefined => one && other && sentOf(one) / sentOf(other);

export const zero = scene({
  id: "zero",
  place: "rank",
  title: "Copies that are not copies",
  figure: "zero",
  moves: true,
  parts: {
    plain: "simulate",
    full: "simulate",
    drawn: "simulate",
    run: "simulate",
    runPlain: "simulate",
    runFull: "simulate",
  },
  knobs: {
    stage: {
      label: "ZeRO stage",
      values: ["0", "1", "2", "3"],
      start: "3",
      written: (value) => `ZeRO-${value}`,
    },
    gradients: { label: "Format of gradients", values: ["fp32", "bf16"], start: "fp32" },
  },
  asks: ({ stage, gradients }) => {
    const plain = (zero: number) => ({
      cluster: `${CLUSTER}:${TP * DP}`,
      memory: true,
      overrides: {
        "model.preset": "llama3-405b",
        "batch.global_sequences": DP,
        "batch.sequence_length": 8192,
        "precision.compute": "bf16",
        "precision.gradients": gradients,
        "layout.tp": TP,
        "layout.dp_shard": DP,
        "layout.zero": zero,
        "layout.recompute": "full",
      },
    });
    return {
      plain: plain(0),
      full: plain(3),
      drawn: plain(Number(stage)),
      run: step(),
      runPlain: step({ "layout.zero": 0 }),
      runFull: step({ "layout.zero": 3 }),
    };
  },
  guess: {
    question:
      "Gradients in {gradients}: how many times the bytes of plain data parallelism does ZeRO-3 send?",
    scale: { from: 0.5, to: 10, written: (value) => `${precise(value)} ×` },
  },
  truth: ({ plain, full }) => ratio(full, plain),
  numbers: ({ plain, full, drawn, run, runPlain, runFull }) => {
    const times = (value: number | undefined): string | undefined =>
      value === undefined ? undefined : precise(value);
    return {
      ranks: drawn && whole(drawn.layout.dp_shard),
      plainMemory: plain && bytes(plain.memory_bytes),
      memory: drawn && bytes(drawn.memory_bytes),
      sent: drawn && bytes(sentOf(drawn)),
      plainSent: plain && bytes(sentOf(plain)),
      fullSent: full && bytes(sentOf(full)),
      ratio: times(ratio(full, plain)),
      room: drawn && bytes(drawn.device_memory_bytes),
      batches: run && whole(run.num_microbatches),
      runRatio: times(ratio(runFull, runPlain)),
      runStage: run && `ZeRO-${run.layout.zero}`,
    };
  },
  sentences: [
    {
      text: "Set the pipeline aside: {ranks} data-parallel ranks, each with a copy of its state. A device would need {plainMemory}, and has {room}.",
      part: "svg[data-chart] path[fill]",
    },
    {
      text: "[ZeRO](zero) divides the copies. With {stage} a device peaks at {memory}, and sends {sent}.",
      part: "svg[data-chart] rect[fill^='var(--memory']",
    },
    {
      text: "Plain data parallelism sends {plainSent}: its [all-reduce](all-reduce) is two passes, a reduce-scatter and an all-gather.",
      part: ".network svg > rect",
    },
    {
      text: "ZeRO-3 gathers bf16 weights twice and reduces gradients once, in {gradients}: {fullSent}, or {ratio} times as much.",
      part: ".network svg > rect",
    },
    {
      text: "The factor of textbooks, one and a half, holds where gradients are as narrow as weights. In {gradients} it is {ratio}.",
    },
  ],
  changes: [
    {
      text: "Accumulation does. The run adds up {batches} microbatches, and ZeRO-3 would gather for each: {runRatio} times the bytes. So it stays with {runStage}.",
    },
    { text: "Move the clock: weights come and go, a segment at a time.", part: "svg[data-chart] path[fill]" },
  ],
});
