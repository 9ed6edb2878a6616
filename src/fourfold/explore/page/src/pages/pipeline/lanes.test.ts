import { expect, test } from "vitest";
import type { Packed, PipelineDocument } from "$generated/documents.ts";
import { heldAt, plainOf, scheduleOf, slotAt, slotName, slotNear, waitedFor } from "./lanes.ts";

type Column = Uint8Array | Uint16Array | Int32Array | Float64Array;
const packed = (kind: Packed["kind"], numbers: Column): Packed => ({
  kind,
  base64: btoa(String.fromCharCode(...new Uint8Array(numbers.buffer))),
});

const document = {
  virtual_stages: 1,
  makespan: 4,
  idle: [0, 1],
  operations: ["F", "B", "I", "W"],
  slots: {
    number: [2, 1],
    start: packed("float64", Float64Array.of(0, 3, 1)),
    end: packed("float64", Float64Array.of(1, 4, 3)),
    operation: packed("uint8", Uint8Array.of(0, 1, 1)),
    stage: packed("uint16", Uint16Array.of(0, 0, 1)),
    microbatch: packed("uint16", Uint16Array.of(0, 0, 0)),
    waits: packed("int32", Int32Array.of(-1, 2, 0)),
    critical: packed("uint8", Uint8Array.of(1, 1, 1)),
  },
  activations: {
    bytes: [0, 8],
    live: packed("uint16", Uint16Array.of(1, 1, 1)),
    idle: packed("uint16", Uint16Array.of(0, 1, 0)),
    peak_bytes: [8, 8],
  },
} as unknown as PipelineDocument;

test("slots, waits and memory are read at a time", () => {
  const schedule = scheduleOf(document);
  const lane = schedule.lanes[0] as (typeof schedule.lanes)[0];
  expect(slotName(schedule, { lane: 0, index: 1 })).toBe("B0.0");
  expect(slotName(schedule, { lane: 0, index: 2 })).toBe("");
  expect([0.5, 2, 4].map((time) => slotNear(lane, time))).toEqual([0, 1, -1]);
  expect(waitedFor(schedule, { lane: 0, index: 1 })).toEqual({ lane: 1, index: 0 });
  expect(waitedFor(schedule, { lane: 1, index: 0 })).toEqual({ lane: 0, index: 0 });
  expect(waitedFor(schedule, { lane: 0, index: 0 })).toBeUndefined();
  expect([0.5, 2, 3.5, 4].map((time) => heldAt(schedule, 0, time))).toEqual([8, 8, 8, 0]);
  expect([0.5, 2].map((time) => heldAt(schedule, 1, time))).toEqual([0, 8]);
  expect(slotAt(schedule, { lane: 1, index: 0 })).toMatchObject({ start: 1, end: 3, stage: 1, bytes: 8 });
  expect(slotAt(schedule, { lane: 1, index: -1 })).toBeUndefined();
});

test("the critical path is marked where it is wanted", () => {
  expect(scheduleOf(document).lanes[0]?.marked).toEqual(Uint8Array.of(1, 1));
  expect(scheduleOf(document, false).lanes[0]?.marked).toBeUndefined();
});

test("what is given away has its slots in words, and in whatever order a document has its operations", () => {
  const events = [
    [
      [0, 1, "F", 0, 0],
      [3, 4, "B", 0, 0],
    ],
    [[1, 3, "B", 1, 0]],
  ];
  expect(plainOf(scheduleOf(document))).toMatchObject({ events, peak_bytes: [8, 8] });
  const turned = scheduleOf({ ...document, operations: ["B", "F", "I", "W"] });
  expect(slotName(turned, { lane: 0, index: 1 })).toBe("F0.0");
});
