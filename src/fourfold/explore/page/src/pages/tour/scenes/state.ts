/** Scene: what a parameter weighs in training. */

import { bytes, count, whole } from "$lib/units.ts";
import { scene } from "../scene.ts";
import { statesOf } from "../states.ts";

const NAMES: Readonly<Record<string, string>> = {
  "llama3.2-1b": "Llama 3.2 1B",
  "llama3.1-8b": "Llama 3.1 8B",
  "llama3-70b": "Llama 3 70B",
  "llama3-405b": "Llama 3 405B",
  "mt-nlg-530b": "MT-NLG 530B",
  "megatron-1t": "a GPT of 1 T",
};
const LENGTH = 2048;
const a = (value: number): string => `${Number(value.toPrecision(2))} bytes`;

export const state = scene({
  id: "state",
  place: "rank",
  title: "Memory comes first",
  figure: "boxes",
  parts: { state: "simulate" },
  knobs: {
    model: {
      label: "Model",
      values: ["llama3.2-1b", "llama3.1-8b", "llama3-70b", "llama3-405b", "mt-nlg-530b", "megatron-1t"],
      start: "llama3-405b",
      written: (value) => NAMES[value] ?? value,
    },
    gradients: { label: "Format of gradients", values: ["fp32", "bf16"], start: "fp32" },
    moments: { label: "Format of the two moments", values: ["fp32", "bf16"], start: "fp32" },
  },
  asks: ({ model, gradients, moments }) => ({
    state: {
      cluster: "dgx-h100:1",
      overrides: {
        "model.preset": model,
        "batch.global_sequences": 1,
        "batch.sequence_length": LENGTH,
        "precision.compute": "bf16",
        "precision.gradients": gradients,
        ...(moments === "fp32" ? {} : { "optimizer.state_dtype": moments }),
        "layout.recompute": "full",
      },
    },
  }),
  guess: {
    question: "How many H100 does the state of {model} fill, before it computes anything?",
    scale: { from: 1, to: 10_000, written: (value) => whole(value) },
  },
  truth: ({ state: step }) =>
    step && Math.ceil(statesOf(step).reduce((sum, each) => sum + each.bytes, 0) / step.device_memory_bytes),
  numbers: ({ state: step }) => {
    if (!step) return {};
    const [weights, gradients, optimizer] = statesOf(step).map((each) => each.bytes);
    const sum = (weights ?? 0) + (gradients ?? 0) + (optimizer ?? 0);
    const per = (size: number | undefined): string => a((size ?? 0) / step.model_parameters);
    return {
      parameters: count(step.model_parameters),
      weight: per(weights),
      gradient: per(gradients),
      optimizer: per(optimizer),
      all: per(sum),
      total: bytes(sum),
      device: bytes(step.device_memory_bytes),
      boxes: whole(Math.ceil(sum / step.device_memory_bytes)),
    };
  },
  sentences: [
    {
      text: "{model} has {parameters} parameters, and each is a weight of {weight} in bf16.",
      part: "[data-state=parameters]",
    },
    {
      text: "Training gives it a gradient, kept in {gradients}: {gradient} more.",
      part: "[data-state=gradients]",
    },
    {
      text: "The optimizer keeps a [master weight](master-weights) and two moments: {optimizer}.",
      part: "[data-state=optimizer]",
    },
    {
      text: "That is {all} a parameter, {total} in all: {boxes} devices of {device} before the first activation.",
      part: "svg[data-chart]",
    },
    { text: "So memory is what a layout is made for. Arithmetic comes second." },
  ],
  changes: [
    {
      text: "Keep the moments in {moments}, or the gradients in {gradients}, and boxes go.",
      part: "[data-state=optimizer]",
    },
    {
      text: "Dividing the state over ranks, with [ZeRO](zero), leaves the sum as it is and each rank a piece.",
    },
  ],
});
