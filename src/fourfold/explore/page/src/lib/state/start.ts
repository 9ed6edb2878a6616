/** What the page shows before a person has chosen anything: a model of 8 billion parameters on one node, at a usual price. */

import type { Params } from "./url.ts";

export const START: Params = {
  "model.preset": "llama3.1-8b",
  cluster: "dgx-h100:8",
  "batch.global_sequences": "64",
  "batch.sequence_length": "8192",
  "precision.compute": "bf16",
  "layout.zero": "3",
  "layout.recompute": "selective",
  tokens: "15T",
  price: "2.5",
  failure_hours: "50k",
};

/** Keys without which there is no step: a link may leave them out. */
const NEEDED = ["cluster", "batch.global_sequences", "batch.sequence_length", "precision.compute"] as const;

/** The state, with the start's keys where it says nothing of a model, and with those that a step needs where it has a model alone. */
export function orStart(params: Params): Params {
  if (params.run !== undefined) return params;
  if (!Object.keys(params).some((key) => key.startsWith("model."))) return { ...START, ...params };
  const filled = NEEDED.filter((key) => params[key] === undefined).map((key) => [key, START[key] ?? ""]);
  return filled.length > 0 ? { ...Object.fromEntries(filled), ...params } : params;
}
