/** What the page shows before a person has chosen anything: a model of 8 billion parameters on one node, at a usual price. */

import type { Params } from "./url.ts";

export const START: Params = {
  "model.preset": "llama3-8b",
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

/** The state, or the start where it says nothing of a model. */
export function orStart(params: Params): Params {
  const says = params.run !== undefined || Object.keys(params).some((key) => key.startsWith("model."));
  return says ? params : { ...START, ...params };
}
