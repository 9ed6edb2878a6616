import { expect, test } from "vitest";
import type { LayersDocument } from "$generated/documents.ts";
import { cellsOf, wordOf } from "./layers.ts";

const layers: LayersDocument = {
  segments: ["embed", "b0", "head"],
  steps: [9, 19],
  num_samples: 2,
  values: {
    largest_score: [
      [null, null],
      [1, 100],
      [null, null],
    ],
    weight_norm: [
      [2, 2],
      [3, 4],
      [2, null],
    ],
  },
};

test("segments without a quantity have no row, and a wide range is shown by its logarithm", () => {
  const cells = cellsOf(layers, "largest_score");
  expect(cells?.rows.map(({ segment }) => segment)).toEqual(["b0"]);
  expect(cells?.isLogarithmic).toEqual(true);
  expect(cells?.rows[0]?.shares).toEqual([0, 1]);
});

test("a narrow range is linear, and a missing number stays missing", () => {
  const cells = cellsOf(layers, "weight_norm");
  expect(cells?.isLogarithmic).toEqual(false);
  expect(cells?.rows.map(({ shares }) => shares)).toEqual([
    [0, 0],
    [0.5, 1],
    [0, null],
  ]);
  expect(cellsOf(layers, "none")).toEqual(undefined);
});

test("a span is told by the number that is the sign of trouble", () => {
  expect(wordOf("gradient_norm")).toEqual("most");
  expect(wordOf("expert_entropy")).toEqual("least");
});
