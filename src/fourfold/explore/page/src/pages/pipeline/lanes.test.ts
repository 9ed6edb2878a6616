import { expect, test } from "vitest";
import type { PipelineDocument } from "$generated/documents.ts";
import { heldAt, lanesOf, slotName, slotNear, waitedFor } from "./lanes.ts";

const document = {
  virtual_stages: 1,
  makespan: 4,
  idle: [0, 1],
  events: [
    [
      [0, 1, "F", 0, 0],
      [3, 4, "B", 0, 0],
    ],
    [[1, 3, "B", 1, 0]],
  ],
  waits: [[[1, 1, 0]], [[0, 0, 0]]],
  live_bytes: [[8, 8], [8]],
  idle_bytes: [[0, 8], [0]],
} as unknown as PipelineDocument;

test("slots, waits and memory are read at a time", () => {
  const lanes = lanesOf(document);
  const [first, second] = lanes as [(typeof lanes)[0], (typeof lanes)[0]];
  expect(slotName(document, { lane: 0, index: 1 })).toBe("B0.0");
  expect([0.5, 2, 4].map((time) => slotNear(first, time))).toEqual([0, 1, -1]);
  expect(waitedFor(document, 0, 1)).toEqual({ lane: 1, index: 0 });
  expect(waitedFor(document, 0, 0)).toBeUndefined();
  expect([0.5, 2, 3.5, 4].map((time) => heldAt(document, first, 0, time))).toEqual([8, 8, 8, 0]);
  expect([0.5, 2].map((time) => heldAt(document, second, 1, time))).toEqual([0, 8]);
});
