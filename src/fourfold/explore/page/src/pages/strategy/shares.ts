/** What the charts draw, of a simulation's document: sums by group, nothing else. */

import type { RankMemory, SimulationDocument, StepDocument } from "$generated/documents.ts";
import { type MemoryGroup, memoryGroup } from "$lib/palette.ts";

const EXPOSED = /^exposed (\S+) communication$|^(\S+) (?:reduce|gather|parameter all gather|reduce tied)$/;
const BUBBLE = "pipeline bubble";
const IMBALANCE = "imbalance";

/** The axes of the group that a kind of time waits for; undefined of time that is none. */
export function exposedAxes(kind: string): string | undefined {
  const found = EXPOSED.exec(kind);
  return found?.[1] ?? found?.[2];
}

export interface Shares {
  compute: number;
  exposed: Map<string, number>;
  bubble: number;
  imbalance: number;
}

/** Seconds of a pipeline rank: what computes, what waits for whom, the bubble, imbalance. */
export function sharesOf(spent: Readonly<Record<string, number>>): Shares {
  const found: Shares = { compute: 0, exposed: new Map(), bubble: 0, imbalance: 0 };
  for (const [kind, seconds] of Object.entries(spent)) {
    const axes = exposedAxes(kind);
    if (axes !== undefined) found.exposed.set(axes, (found.exposed.get(axes) ?? 0) + seconds);
    else if (kind === BUBBLE) found.bubble += seconds;
    else if (kind === IMBALANCE) found.imbalance += seconds;
    else found.compute += seconds;
  }
  return found;
}

/** Bytes of a pipeline rank's fullest device by group; `software` is what it holds beside the program. */
export function memoryOf(rank: RankMemory): Map<MemoryGroup, number> {
  const found = new Map<MemoryGroup, number>();
  for (const [kind, size] of Object.entries(rank.by_kind_bytes)) {
    const group = memoryGroup(kind);
    found.set(group, (found.get(group) ?? 0) + size);
  }
  found.set("software", rank.device_bytes - rank.program_bytes);
  return found;
}

/** `tp 8 x pp 16 x dp 64, ZeRO-1`: the degrees above 1. */
export function layoutWords({ layout }: StepDocument): string {
  const degrees = (["tp", "cp", "pp"] as const)
    .filter((axis) => layout[axis] > 1)
    .map((axis) => `${axis} ${layout[axis]}`);
  const dp = layout.dp_replicate * layout.dp_shard;
  if (dp > 1)
    degrees.push(
      layout.dp_replicate > 1 && layout.dp_shard > 1
        ? `dp ${layout.dp_replicate} × ${layout.dp_shard}`
        : `dp ${dp}`,
    );
  if (layout.ep > 1) degrees.push(`ep ${layout.ep}`);
  return `${degrees.join(" × ") || "one device"}, ZeRO-${layout.zero}`;
}

/** The rank whose device is fullest. */
export function fullest(document: SimulationDocument): RankMemory | undefined {
  return document.memory.reduce<RankMemory | undefined>(
    (most, rank) => (most === undefined || rank.device_bytes > most.device_bytes ? rank : most),
    undefined,
  );
}
