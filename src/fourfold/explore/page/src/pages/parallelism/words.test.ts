import { expect, test } from "vitest";
import type { BlockStep } from "$generated/documents.ts";
import { manner, nameOf, sentenceOf } from "./words.ts";

const step = (part: Partial<BlockStep>): BlockStep => ({
  kind: "matmul",
  weights: [],
  shape: [8, 16],
  held_shape: [8, 4],
  partial: false,
  boxes: [],
  bytes: 0,
  sent_bytes: 0,
  ...part,
});
const weight = (name: string, dim: number) => ({
  name,
  shape: [16, 16],
  splits: [{ dim, axis: "tp" }],
  boxes: [],
});

test("a matmul is named by its weights and the way that they are split", () => {
  const columns = step({ weights: [weight("q_proj", 0), weight("k_proj", 0)] });
  expect([nameOf(columns), manner(columns)]).toEqual(["q, k", "column-parallel"]);
  const rows = step({ weights: [weight("o_proj", 1)], partial: true, held_shape: [8, 16] });
  expect(manner(rows)).toBe("row-parallel");
  expect(sentenceOf(rows)).toContain("a summand");
});

test("an activation tells which part of it a rank has", () => {
  expect(manner(step({ kind: "input", held_shape: [2, 16] }))).toBe("split by tokens");
  expect(manner(step({ kind: "attention" }))).toBe("split by heads");
  expect(manner(step({ kind: "input", held_shape: [8, 16] }))).toBe("the same on every rank");
  expect(sentenceOf(step({ kind: "all_gather", bytes: 4e6, sent_bytes: 3e6 }))).toContain("sends 3.00 MB");
});
