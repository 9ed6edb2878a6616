/** Scene: a backward in two halves, of which one can wait. */

import type { PipelineDocument } from "$generated/documents.ts";
import { times } from "$generated/ops.ts";
import { unpacked } from "$lib/api/client.ts";
import { bytes, perCent } from "$lib/units.ts";
import { scheduleName } from "../../pipeline/names.ts";
import { scene } from "../scene.ts";
import { step, UNITS } from "./run.ts";

const held = (found: PipelineDocument): string => bytes(Math.max(...found.activations.peak_bytes));
/** The halves of a backward. */
const [, INPUTS, WEIGHTS] = times;
const HALVES: readonly string[] = [INPUTS, WEIGHTS];
const STAGES: Readonly<Record<string, number>> = { zb_v: 2, dualpipe_v: 2 };

/** How often another computation waits for one of this operation. */
export function waitedFor(found: PipelineDocument): ReadonlyMap<string, number> {
  const [waits, operation] = [unpacked(found.slots.waits), unpacked(found.slots.operation)];
  const counts = new Map<string, number>();
  for (const slot of waits) {
    const name = slot < 0 ? undefined : found.operations[operation[slot] ?? 0];
    if (name !== undefined) counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  return counts;
}

export const halves = scene({
  id: "halves",
  place: "pipeline",
  title: "Half a backward can wait",
  figure: "pipeline",
  moves: true,
  parts: { drawn: "pipeline", plain: "pipeline", split: "pipeline" },
  knobs: {
    schedule: {
      label: "Schedule",
      values: ["1f1b", "zb_h1", "zb_h2", "zb_v", "dualpipe_v"],
      start: "zb_h1",
      written: scheduleName,
    },
    stages: { label: "Pipeline ranks", values: ["2", "4", "8", "16"], start: "8" },
    batches: { label: "Microbatches", values: ["16", "32", "64"], start: "16" },
  },
  asks: ({ schedule, stages, batches }) => {
    const own = { ...step(), ranks: Number(stages), microbatches: Number(batches), times: UNITS };
    return {
      drawn: { ...own, schedule, virtual_stages: STAGES[schedule ?? ""] ?? 1 },
      plain: { ...own, schedule: "1f1b", virtual_stages: 1 },
      split: { ...own, schedule: "zb_h1", virtual_stages: 1 },
    };
  },
  guess: {
    question: "A backward computes gradients of its inputs and of its weights. Which can wait?",
    options: [
      { value: INPUTS, label: "of the inputs" },
      { value: WEIGHTS, label: "of the weights" },
      { value: "", label: "neither" },
    ],
  },
  truth: ({ split }) => {
    if (!split) return undefined;
    const counts = waitedFor(split);
    return HALVES.find((each) => (counts.get(each) ?? 0) === 0) ?? "";
  },
  numbers: ({ drawn, plain, split }) => {
    const counts = split && waitedFor(split);
    return {
      inputs: counts && `${counts.get(INPUTS) ?? 0}`,
      weights: counts && `${counts.get(WEIGHTS) ?? 0}`,
      bubble: drawn && perCent(drawn.bubble_fraction),
      plain: plain && perCent(plain.bubble_fraction),
      held: drawn && held(drawn),
      plainHeld: plain && held(plain),
    };
  },
  sentences: [
    {
      text: "{inputs} times in this step a rank waits for [gradients of inputs](dgrad). They must go on at once.",
      part: "@I",
    },
    {
      text: "It waits {weights} times for [gradients of weights](wgrad): only the optimizer needs them. They move into the gaps.",
      part: "@W",
    },
    { text: "So {schedule} waits {bubble} of the step, where 1F1B waits {plain}.", part: "@idle" },
    {
      text: "It pays in memory. Until a weight gradient runs, its inputs stay: {held} at most, with 1F1B {plainHeld}.",
      part: ".memory",
    },
  ],
  changes: [
    {
      text: "Fold the pipeline into a V, with {schedule}: each rank has an early and a late stage, and holds more evenly.",
      part: "@idle",
    },
    {
      text: "More microbatches, {batches} on {stages} ranks: the gain shrinks, because the bubble does.",
      part: "@idle",
    },
  ],
});
