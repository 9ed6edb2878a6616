/** What flows through a block of devices at a moment of the step: bytes a second of a device, by axes. Pure, so that it is tested alone. */

import type { FlowCurve, GroupsDocument, LinkDocument, SimulationDocument } from "$generated/documents.ts";

export interface Part {
  axes: string;
  /** Bytes a second of a device in one direction. */
  rate: number;
  /** Of what the level carries. */
  share: number;
}
export interface Flow {
  rate: number;
  share: number;
  /** Those that send most first. */
  parts: readonly Part[];
}
/** The flow through one level of devices `first` and on, `count` of them, on average. */
export type Flowing = (first: number, count: number, level: number) => Flow;

/** Less than this share of a link is not worth a colour. */
const LEAST = 1e-4;
export const NOTHING: Flow = { rate: 0, share: 0, parts: [] };

/** The piece of a curve that a moment, a share of the step, is in. */
export const pieceAt = (curve: FlowCurve, moment: number): number =>
  Math.min(curve.ends_seconds.length - 1, Math.floor(moment * curve.ends_seconds.length));

/** The mean flow of pipeline ranks through a level. */
export function meanFlow(
  curves: readonly FlowCurve[],
  level: number,
  piece: number,
  link: LinkDocument | undefined,
): Flow {
  const full = link?.device_bytes_per_second ?? 1;
  const sums = new Map<string, number>();
  for (const curve of curves)
    for (const [axes, rates] of Object.entries(curve.levels[level] ?? {}))
      sums.set(axes, (sums.get(axes) ?? 0) + (rates[piece] ?? 0) / curves.length);
  const parts = [...sums]
    .map(([axes, rate]) => ({ axes, rate, share: rate / full }))
    .filter(({ share }) => share >= LEAST)
    .sort((a, b) => b.rate - a.rate);
  const rate = parts.reduce((sum, part) => sum + part.rate, 0);
  return { rate, share: rate / full, parts };
}

/** What flows at a moment; undefined where the step or its place on the devices is not known. */
export function flowingAt(
  step: SimulationDocument | undefined,
  groups: GroupsDocument | undefined,
  moment: number,
): Flowing | undefined {
  const curves = step?.flows_over_time;
  const [first] = curves ?? [];
  if (!step || !curves || !first || !groups) return undefined;
  const piece = pieceAt(first, moment);
  const known = new Map<string, Flow>();
  return (device, count, level) => {
    if (device >= groups.world_size) return NOTHING;
    const ranks = pipelineRanks(device, count, groups.pp_stride, curves.length);
    const key = `${ranks[0]} ${ranks.length} ${level}`;
    let found = known.get(key);
    if (!found) {
      const own = ranks.flatMap((rank) => curves[rank] ?? []);
      found = meanFlow(own, level, piece, step.links[level]);
      known.set(key, found);
    }
    return found;
  };
}

/** The pipeline ranks of devices that follow each other. */
export function pipelineRanks(first: number, count: number, stride: number, pp: number): number[] {
  const from = Math.floor(first / stride);
  const number = Math.min(pp, Math.floor((first + count - 1) / stride) - from + 1);
  return Array.from({ length: number }, (_, index) => (from + index) % pp).sort((a, b) => a - b);
}
