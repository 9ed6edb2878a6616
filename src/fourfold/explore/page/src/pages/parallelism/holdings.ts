/** What a rank holds of parameters, gradients and optimizer states at a moment of the step, of the memory that `simulate` gives. */

import type { MemoryCurve } from "$generated/documents.ts";
import { type MemoryGroup, memoryGroup } from "$lib/palette.ts";

export const STATES = ["parameters", "gradients", "optimizer"] as const satisfies readonly MemoryGroup[];
export type StateName = (typeof STATES)[number];
const PIECES = new Set(["shard", "grad_shard", "optimizer", "master"]);

/** Bytes at one piece of a curve: `own` stays where it is; `passing` is whole for a moment, before it is freed or reduced. */
export interface Share {
  own: number;
  /** Whether `own` is a rank's piece of what the ranks share. */
  divided: boolean;
  passing: number;
}

/** The piece of the curve at a share of the step. */
export function pieceAt(curve: MemoryCurve, moment: number): number {
  const at = moment * (curve.ends_seconds.at(-1) ?? 0);
  const found = curve.ends_seconds.findIndex((end) => end >= at);
  return found === -1 ? Math.max(0, curve.ends_seconds.length - 1) : found;
}

const kindsOf = (curve: MemoryCurve, group: MemoryGroup): string[] =>
  Object.keys(curve.by_kind_bytes).filter((kind) => memoryGroup(kind) === group);

/** Bytes of one group in each piece of the curve. */
export function bytesOf(curve: MemoryCurve, group: MemoryGroup): number[] {
  const kinds = kindsOf(curve, group);
  return curve.ends_seconds.map((_, piece) =>
    kinds.reduce((sum, kind) => sum + (curve.by_kind_bytes[kind]?.[piece] ?? 0), 0),
  );
}

/**
 * Where a rank's own part of a state lies, as shares of the state in full: `[start, length]`. A piece has its rank's place. What is not
 * divided grows as the backward makes it, from the last segment to the first.
 */
export function placeOf(
  { own, divided }: Share,
  full: number,
  piece: number,
  pieces: number,
): [number, number] {
  const long = Math.min(1, own / (full || 1));
  return [divided ? Math.min(piece / pieces, 1 - long) : 1 - long, long];
}

/** A group that has no shards is held whole for good: all of it is `own`. */
export function shareAt(curve: MemoryCurve, group: StateName, piece: number): Share {
  const kinds = kindsOf(curve, group);
  const sharded = kinds.some((kind) => PIECES.has(kind));
  const found = { own: 0, divided: sharded, passing: 0 };
  for (const kind of kinds) {
    const size = curve.by_kind_bytes[kind]?.[piece] ?? 0;
    found[PIECES.has(kind) || !sharded ? "own" : "passing"] += size;
  }
  return found;
}
