import { expect, test } from "vitest";
import type { MovesInstruction, MovesList, MovesTimes } from "$generated/documents.ts";
import { colourOf, lanesOf, layersOf, microseconds, sharesOf } from "./drawn.ts";

const step = (short: string, letter: string, more: Partial<MovesInstruction> = {}): MovesInstruction => ({
  short,
  letter,
  does: letter,
  stream: "compute",
  starts: null,
  movable: true,
  reads: [],
  writes: [],
  frees: [],
  sent_bytes: 0,
  ...more,
});
const list: MovesList = {
  ranks: [0],
  instructions: [
    step("G b0", "G", { stream: "dp_shard" }),
    step("wait G b0", "wait", { starts: 0 }),
    step("F b0 m0", "F", { reads: ["params/b0"] }),
    step("X b0", "X", { frees: ["params/b0"] }),
  ],
  order: [0, 1, 2, 3],
  out: [],
};
const times: MovesTimes = {
  starts: [0, 0, 2, 5],
  ends: [0, 2, 5, 5],
  streams: [{ index: 0, stream: "dp_shard", start: 0, end: 2 }],
  live_bytes: [1, 1, 2, 1],
  memory_ends: [1, 2],
  memory: { params: [1, 2], shard: [1, 1], saved: [0, 4], workspace: [0, 0] },
};

test("an instruction has the colour of what it does, sends, joins or frees", () => {
  const colours = list.instructions.map((each) => colourOf(each, list.instructions));
  expect(colours).toEqual([
    "var(--axis-dp)",
    "var(--axis-dp)",
    "var(--operation-F)",
    "var(--memory-parameters)",
  ]);
});

test("what takes time is on the compute lane, what runs beside it on its stream's", () => {
  const { lanes, places, kinds } = lanesOf(list, list.order, times, 0);
  expect(lanes.map(({ name }) => name)).toEqual(["compute", "dp_shard"]);
  expect(places).toEqual([[1, 2], [0]]);
  expect([...(lanes[0]?.end ?? [])]).toEqual([2, 5]);
  expect(kinds[lanes[0]?.kind[0] ?? -1]?.hatched).toBe(true);
});

test("the chosen instruction is marked with what joins it", () => {
  const { lanes } = lanesOf(list, list.order, times, 0);
  expect(lanes.map(({ marked }) => [...(marked ?? [])])).toEqual([[1, 0], [1]]);
});

test("layers stand one on the other and end at all bytes", () => {
  const layers = layersOf(times);
  expect(layers.map(({ group }) => group)).toEqual(["parameters", "activations"]);
  expect(layers[0]?.to).toEqual([2, 3]);
  expect(layers[1]).toMatchObject({ from: [2, 3], to: [2, 7] });
});

test("bars go from the least to the most that a rank holds", () => {
  expect(sharesOf([10, 15, 20])).toEqual([0, 0.5, 1]);
  expect(sharesOf([3, 3])).toEqual([0, 0]);
});

test("times are told to a tenth of a microsecond", () => {
  expect(microseconds(0.0015146)).toBe("1,514.6 us");
});
