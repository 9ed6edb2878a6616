/** A pipeline document as lanes of a timeline, and its slots in words. */

import type { PipelineDocument } from "$generated/documents.ts";
import { palette } from "$generated/palette.ts";
import { firstAfter, type Kind, type Lane, type Spot } from "$lib/timeline/lanes.ts";
import { perCent } from "$lib/units.ts";

export const OPERATIONS = ["F", "B", "I", "W"] as const;
type Operation = (typeof OPERATIONS)[number];
export const kinds: readonly Kind[] = OPERATIONS.map((op) => ({
  name: palette.operation[op].name,
  colour: `var(--operation-${op})`,
}));

/** One lane a rank: its slots, and its bubble beside them. */
export function lanesOf(document: PipelineDocument): Lane[] {
  const several = document.virtual_stages > 1;
  return document.events.map((events, rank) => ({
    name: `rank ${rank}`,
    note: perCent((document.idle[rank] ?? 0) / (document.makespan || 1)),
    start: Float64Array.from(events, ([start]) => start),
    end: Float64Array.from(events, ([, end]) => end),
    kind: Uint8Array.from(events, ([, , op]) => OPERATIONS.indexOf(op as Operation)),
    text: (index) => {
      const [, , op = "", stage = 0, microbatch = 0] = events[index] ?? [];
      return several ? `${op}${stage}.${microbatch}` : `${microbatch}`;
    },
  }));
}

/** By rank, 1 at these slots. */
export function slotsOf(document: PipelineDocument, places: readonly [number, number][]): Uint8Array[] {
  const found = document.events.map((events) => new Uint8Array(events.length));
  for (const [rank, slot] of places) found[rank]?.fill(1, slot, slot + 1);
  return found;
}

/** `F2.5`: operation, stage, microbatch. */
export function slotName(document: PipelineDocument, { lane, index }: Spot): string {
  const event = document.events[lane]?.[index];
  return event ? `${event[2]}${event[3]}.${event[4]}` : "";
}

/** The slot that a rank runs at a time, or the next one where it idles; -1 where none follows. */
export function slotNear(lane: Lane, time: number): number {
  const index = firstAfter(lane, time);
  return index < lane.start.length ? index : -1;
}

/** The slot that rank `lane` waits for before its slot `index`. */
export function waitedFor(document: PipelineDocument, lane: number, index: number): Spot | undefined {
  const found = document.waits[lane]?.find(([slot]) => slot === index);
  return found && { lane: found[1], index: found[2] };
}

/** Activations that a rank holds at a time, in bytes. */
export function heldAt(document: PipelineDocument, lane: Lane, rank: number, time: number): number {
  const held = document.live_bytes[rank] ?? [];
  const index = firstAfter(lane, time);
  if (index >= held.length) return 0;
  if ((lane.start[index] ?? 0) <= time) return held[index] ?? 0;
  return document.idle_bytes[rank]?.[index] ?? 0;
}
