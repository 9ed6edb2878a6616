/** Weights, gradients and optimizer states of a simulation, in bytes. */

import type { SimulationDocument } from "$generated/documents.ts";
import { type MemoryGroup, memoryGroup, memoryName } from "$lib/palette.ts";

export interface State {
  group: MemoryGroup;
  name: string;
  bytes: number;
}
const GROUPS = ["parameters", "gradients", "optimizer"] as const satisfies readonly MemoryGroup[];

/** Of the first pipeline rank. */
export function statesOf(step: SimulationDocument): State[] {
  const kinds = Object.entries(step.memory[0]?.by_kind_bytes ?? {});
  return GROUPS.map((group) => ({
    group,
    name: memoryName(group),
    bytes: kinds.reduce((sum, [kind, size]) => sum + (memoryGroup(kind) === group ? size : 0), 0),
  }));
}
