/** A pipeline document as lanes of a timeline, and its slots in words. */

import type { PipelineDocument } from "$generated/documents.ts";
import { unpacked } from "$lib/api/client.ts";
import { operationColour, operationName } from "$lib/palette.ts";
import { firstAfter, type Kind, type Lane, type Spot } from "$lib/timeline/lanes.ts";
import { perCent } from "$lib/units.ts";

type Numbers = ArrayLike<number>;

/** A document with its columns read, by slot counted over all ranks. `first`: where each rank's slots begin. */
export interface Schedule {
  document: PipelineDocument;
  /** Of its operations. */
  kinds: readonly Kind[];
  lanes: readonly Lane[];
  first: readonly number[];
  stage: Numbers;
  microbatch: Numbers;
  waits: Numbers;
  live: Numbers;
  idle: Numbers;
}

/** A document drawn as one lane a rank: its slots, and its bubble beside them. `path`: with the critical path marked. */
export function scheduleOf(document: PipelineDocument, path = true): Schedule {
  const { slots, activations } = document;
  let sum = 0;
  const first = [0, ...slots.number.map((number) => (sum += number))];
  const [start, end] = [slots.start, slots.end].map(unpacked) as [Float64Array, Float64Array];
  const [kind, critical] = [slots.operation, slots.critical].map(unpacked) as [Uint8Array, Uint8Array];
  const kinds = document.operations.map((op) => ({ name: operationName(op), colour: operationColour(op) }));
  const [stage, microbatch] = [unpacked(slots.stage), unpacked(slots.microbatch)];
  const several = document.virtual_stages > 1;
  const lanes = slots.number.map((number, rank): Lane => {
    const [from, to] = [first[rank] ?? 0, (first[rank] ?? 0) + number];
    return {
      name: `rank ${rank}`,
      note: perCent((document.idle[rank] ?? 0) / (document.makespan || 1)),
      start: start.subarray(from, to),
      end: end.subarray(from, to),
      kind: kind.subarray(from, to),
      ...(path ? { marked: critical.subarray(from, to) } : {}),
      text: (index) =>
        several
          ? `${document.operations[kind[from + index] ?? 0]}${stage[from + index]}.${microbatch[from + index]}`
          : `${microbatch[from + index]}`,
    };
  });
  const [live, idle, waits] = [unpacked(activations.live), unpacked(activations.idle), unpacked(slots.waits)];
  return { document, kinds, lanes, first, stage, microbatch, waits, live, idle };
}

/** A slot, counted over all ranks; undefined where the rank has none there. */
function slotOf({ lanes, first }: Schedule, { lane, index }: Spot): number | undefined {
  return index >= 0 && index < (lanes[lane]?.start.length ?? 0) ? (first[lane] ?? 0) + index : undefined;
}

/** `F2.5`: operation, stage, microbatch. */
export function slotName(schedule: Schedule, spot: Spot): string {
  const slot = slotOf(schedule, spot);
  if (slot === undefined) return "";
  const op = schedule.document.operations[schedule.lanes[spot.lane]?.kind[spot.index] ?? 0];
  return `${op}${schedule.stage[slot]}.${schedule.microbatch[slot]}`;
}

/** What runs in a slot. */
export function slotAt(schedule: Schedule, spot: Spot) {
  const slot = slotOf(schedule, spot);
  const lane = schedule.lanes[spot.lane];
  if (slot === undefined || !lane) return undefined;
  return {
    start: lane.start[spot.index] ?? 0,
    end: lane.end[spot.index] ?? 0,
    kind: schedule.kinds[lane.kind[spot.index] ?? 0]?.name ?? "",
    stage: schedule.stage[slot] ?? 0,
    microbatch: schedule.microbatch[slot] ?? 0,
    bytes: schedule.document.activations.bytes[schedule.live[slot] ?? 0] ?? 0,
  };
}

/** The slot that a rank runs at a time, or the next one where it idles; -1 where none follows. */
export function slotNear(lane: Lane, time: number): number {
  const index = firstAfter(lane, time);
  return index < lane.start.length ? index : -1;
}

/** The slot that a rank waits for before a slot. */
export function waitedFor(schedule: Schedule, spot: Spot): Spot | undefined {
  const found = schedule.waits[slotOf(schedule, spot) ?? -1] ?? -1;
  if (found < 0) return undefined;
  const lane = schedule.first.findLastIndex((begin) => begin <= found);
  return { lane, index: found - (schedule.first[lane] ?? 0) };
}

/** Activations that a rank holds at a time, in bytes. */
export function heldAt(schedule: Schedule, rank: number, time: number): number {
  const lane = schedule.lanes[rank];
  const index = lane ? slotNear(lane, time) : -1;
  if (!lane || index < 0) return 0;
  const column = (lane.start[index] ?? 0) <= time ? schedule.live : schedule.idle;
  return schedule.document.activations.bytes[column[(schedule.first[rank] ?? 0) + index] ?? 0] ?? 0;
}

/** The document with its slots by rank, in words, to be given away. */
export function plainOf(schedule: Schedule): object {
  const { slots: _, activations, ...rest } = schedule.document;
  const events = schedule.lanes.map((lane, rank) =>
    Array.from(lane.start, (start, index) => {
      const slot = (schedule.first[rank] ?? 0) + index;
      const op = schedule.document.operations[lane.kind[index] ?? 0];
      return [start, lane.end[index], op, schedule.stage[slot], schedule.microbatch[slot]];
    }),
  );
  return { ...rest, events, peak_bytes: activations.peak_bytes };
}
