/** One block cut three ways: its requests of a setup and of the degrees that are chosen. */

import type { BlockDocument } from "$generated/documents.ts";
import type { Setup } from "$lib/state/setup.ts";

/** Stands in for a model without experts. */
export const MIXTURE = "mixtral-8x7b";

export interface Degrees {
  tp: number;
  sequenceParallel: boolean;
  cp: number;
  ep: number;
}

/** Whether the block that tensor parallelism cuts has no experts. */
export const isDense = (tensor: BlockDocument | undefined): boolean => tensor?.experts === null;

/** The requests; the one of the experts depends on whether the model has any. */
export function blocks(setup: Setup, { tp, sequenceParallel, cp, ep }: Degrees) {
  return {
    tensor: { ...setup, tp, sequence_parallel: sequenceParallel },
    context: { ...setup, cp },
    expert: ({ tensor }: { tensor?: BlockDocument }): object | undefined =>
      tensor && { ...(isDense(tensor) ? mixture(setup) : setup), ep },
  };
}

function mixture({ run: _, overrides, ...options }: Setup): Setup {
  const kept = Object.entries(overrides).filter(
    ([key]) => !key.startsWith("model.") && !key.startsWith("layout."),
  );
  const length = Math.min(8192, Number(overrides["batch.sequence_length"] ?? 4096));
  const own = { "model.preset": MIXTURE, "batch.sequence_length": length };
  return { ...options, overrides: { ...Object.fromEntries(kept), ...own } };
}
