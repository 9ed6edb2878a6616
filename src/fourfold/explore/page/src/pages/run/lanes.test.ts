import { expect, test } from "vitest";
import type { RankTimeline } from "$generated/documents.ts";
import { ops } from "$generated/ops.ts";
import { operationColour } from "$lib/palette.ts";
import { rangeFrom, rangeText } from "./curves.ts";
import { kindOf, kinds, lanesOf } from "./lanes.ts";

const rank: RankTimeline = {
  pp_rank: 1,
  rank: 2,
  instructions: ["L m0", "F b0 m0", "S> b0 m0 r1", "wait S> b0 m0 r1", "W b0 m0"],
  measured: {
    step: 9,
    starts: [0, 0, 2, 2, 3],
    ends: [0, 2, 2, 3, 5],
    streams: [
      [2, 1, 3, "pp"],
      [1, 2, 4, "dp_shard"],
      [0, 2, 3, "tp"],
    ],
  },
  predicted: null,
};

test("an instruction has the kind of its first word", () => {
  expect(
    ["F b0 m0", "W b0", "wait R b3", "U b0", "<b>", "E> b0 m1", "Z< b0 m0", "M b0", "D> b0 m0"].map(
      (text) => kinds[kindOf(text)]?.name,
    ),
  ).toEqual([
    "forward",
    "weight gradient",
    "waiting",
    "optimizer",
    "other",
    "forward",
    "backward",
    "optimizer",
    "other",
  ]);
});

test("every operation is drawn in the colour of its row, those without one as other work", () => {
  for (const { letter, colour } of ops.filter(({ letter }) => letter !== "wait"))
    expect(kinds[kindOf(`${letter} b0 m0`)]?.colour).toBe(
      colour ? operationColour(colour) : "var(--time-compute)",
    );
});

test("instructions that take no time are left out, and spans do not overlap", () => {
  const [computing, carrying, ...rest] = lanesOf([rank], ["measured", "predicted"]);
  expect(rest).toEqual([]);
  expect([...(computing?.index ?? [])]).toEqual([1, 3, 4]);
  expect(computing?.name).toBe("pp 1 measured");
  expect(computing?.text?.(0)).toBe("0");
  expect(carrying?.thin).toBe(true);
  expect([...(carrying?.start ?? [])]).toEqual([1, 3]);
  expect([...(carrying?.end ?? [])]).toEqual([3, 4]);
});

test("steps of an address are read back, and nonsense is none", () => {
  expect(rangeFrom(rangeText([10, 200]))).toEqual([10, 200]);
  for (const text of ["", "5", "9-3", "a-b", "-1-4", "1e9-2e9"]) expect(rangeFrom(text)).toBeUndefined();
});
