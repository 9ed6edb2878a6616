import { expect, test } from "vitest";
import { bytesOf, pieceAt, shareAt } from "./holdings.ts";

const curve = {
  pp_rank: 0,
  ends_seconds: [1, 3, 4],
  bytes: [10, 20, 10],
  by_kind_bytes: { shard: [2, 2, 2], params: [0, 8, 0], optimizer: [4, 4, 4], grad: [0, 6, 6] },
};

test("a moment is a piece of the curve", () => {
  expect([0, 0.25, 0.5, 0.75, 1].map((moment) => pieceAt(curve, moment))).toEqual([0, 0, 1, 1, 2]);
});

test("shards stay, and what is gathered passes", () => {
  expect(shareAt(curve, "parameters", 1)).toEqual({ own: 2, passing: 8 });
  expect(shareAt(curve, "optimizer", 1)).toEqual({ own: 4, passing: 0 });
  expect(shareAt(curve, "gradients", 1)).toEqual({ own: 6, passing: 0 });
  expect(bytesOf(curve, "parameters")).toEqual([2, 10, 2]);
});
