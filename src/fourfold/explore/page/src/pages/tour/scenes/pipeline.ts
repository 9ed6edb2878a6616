/** Scene: the bubble of a pipeline, and what it holds. */

import type { PipelineDocument } from "$generated/documents.ts";
import { bytes, perCent } from "$lib/units.ts";
import { scene } from "../scene.ts";
import { step, UNITS } from "./run.ts";

const held = (found: PipelineDocument): string => bytes(Math.max(...found.activations.peak_bytes));

export const pipeline = scene({
  id: "pipeline",
  place: "pipeline",
  title: "Many stages, one batch",
  figure: "pipeline",
  moves: true,
  parts: { drawn: "pipeline", gpipe: "pipeline", run: "simulate" },
  knobs: {
    stages: { label: "Pipeline ranks", values: ["2", "4", "8", "16"], start: "16" },
    batches: { label: "Microbatches", values: ["4", "8", "16", "32", "64", "128"], start: "16" },
    virtual: { label: "Stages on each rank", values: ["1", "2", "4", "8"], start: "1" },
  },
  asks: ({ stages, batches, virtual }) => {
    const own = { ...step(), ranks: Number(stages), microbatches: Number(batches), times: UNITS };
    const v = Number(virtual);
    return {
      drawn: { ...own, schedule: v > 1 ? "interleaved_1f1b" : "1f1b", virtual_stages: v },
      gpipe: { ...own, schedule: "gpipe", virtual_stages: 1 },
      run: step(),
    };
  },
  guess: {
    question: "{stages} pipeline ranks, {batches} microbatches, 1F1B: which share of the step do ranks wait?",
    scale: { from: 0.01, to: 1, written: (value) => perCent(value, 0) },
  },
  truth: ({ drawn }) => drawn?.bubble_fraction,
  numbers: ({ drawn, gpipe, run }) => ({
    bubble: drawn && perCent(drawn.bubble_fraction),
    waits: drawn && `${drawn.busy.length - 1}`,
    slots: drawn && `${drawn.virtual_stages * drawn.num_microbatches + drawn.busy.length - 1}`,
    held: drawn && held(drawn),
    gpipe: gpipe && perCent(gpipe.bubble_fraction),
    gpipeHeld: gpipe && held(gpipe),
    real: run && perCent(run.bubble_fraction),
    realStages: run && `${run.layout.virtual_stages}`,
  }),
  sentences: [
    {
      text: "A microbatch crosses {stages} ranks and comes back. Until the first one arrives, and after the last one left, a rank waits.",
      part: "@idle",
    },
    { text: "Of {slots} turns {waits} are waiting: a [bubble](pipeline-bubble) of {bubble}.", part: "@idle" },
    {
      text: "[GPipe](gpipe) waits {gpipe}, the same. 1F1B starts backwards early for memory: it holds {held} at most, GPipe {gpipeHeld}.",
      part: ".memory",
    },
    { text: "With {virtual} stages on each rank, a turn is shorter, and so is the wait.", part: "@idle" },
  ],
  changes: [
    { text: "More microbatches, {batches} of them, hide the same wait behind more work.", part: "@idle" },
    {
      text: "The run puts {realStages} stages on each rank; simulated with its seconds, transfers and collectives, its bubble is {real}.",
    },
  ],
});
