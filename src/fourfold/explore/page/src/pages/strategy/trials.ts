/** Classic trials: a start, what to see, and the change that teaches something. */

import type { Params } from "$lib/state/url.ts";

export interface Trial {
  name: string;
  title: string;
  text: string;
  params: Params;
  /** The change to try; `search` looks for the fewest devices instead. */
  next?: { label: string; changes?: Readonly<Record<string, string | undefined>>; search?: true };
}

const USUAL = { "precision.compute": "bf16", tokens: "15T", price: "2.5", failure_hours: "50k" };

export const TRIALS: readonly Trial[] = [
  {
    name: "7b",
    title: "7B on 8 devices",
    text: "Plain data parallelism: every device holds everything. By the usual count, 12 bytes a parameter, that is 81 GB: all of the device, and nothing left for activations. The program that runs holds 18: bf16 weights, fp32 gradients, fp32 master weights and two moments.",
    params: {
      ...USUAL,
      "model.preset": "llama2-7b",
      cluster: "dgx-h100:8",
      "batch.global_sequences": "64",
      "batch.sequence_length": "4096",
      "layout.zero": "0",
      "layout.recompute": "selective",
    },
    next: { label: "Switch on ZeRO-3", changes: { "layout.zero": "3" } },
  },
  {
    name: "405b-128",
    title: "405B on 128",
    text: "6.5 TB of weights, gradients and optimizer states over 128 devices of 86 GB: no single kind of parallelism fits, and what fits leaves little room. Move a slider and see which stage fills first.",
    params: {
      ...USUAL,
      "model.preset": "llama3-405b",
      cluster: "dgx-h100:128",
      "batch.global_sequences": "128",
      "batch.sequence_length": "8192",
      "layout.tp": "8",
      "layout.pp": "16",
      "layout.recompute": "full",
    },
    next: { label: "Find a layout that fits", search: true },
  },
  {
    name: "405b-8",
    title: "405B on 8",
    text: "Impossible: the state alone is ten times what a node holds. The search says how many devices it would take.",
    params: {
      ...USUAL,
      "model.preset": "llama3-405b",
      cluster: "dgx-h100:8",
      "batch.global_sequences": "64",
      "batch.sequence_length": "8192",
      "layout.tp": "8",
      "layout.recompute": "full",
    },
    next: { label: "What would it take?", search: true },
  },
  {
    name: "70b",
    title: "Llama 3 70B, measured",
    text: "A published run on 64 devices: the figure of the source stands beside the prediction.",
    params: { run: "preset:llama3-70b" },
  },
  {
    name: "deepseek",
    title: "DeepSeek-V3",
    text: "256 experts over 64-way expert parallelism and DualPipeV on 2,048 devices, as published.",
    params: { run: "preset:deepseek-v3-2k" },
  },
];

export const trialNamed = (name: string | undefined): Trial | undefined =>
  TRIALS.find((each) => each.name === name);
