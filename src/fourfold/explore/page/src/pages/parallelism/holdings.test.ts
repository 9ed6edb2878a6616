import { expect, test } from "vitest";
import { bytesOf, pieceAt, placeOf, shareAt } from "./holdings.ts";

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
  expect(shareAt(curve, "parameters", 1)).toEqual({ own: 2, divided: true, passing: 8 });
  expect(shareAt(curve, "optimizer", 1)).toEqual({ own: 4, divided: true, passing: 0 });
  expect(shareAt(curve, "gradients", 1)).toEqual({ own: 6, divided: false, passing: 0 });
  expect(bytesOf(curve, "parameters")).toEqual([2, 10, 2]);
});

test("no rank's part leaves the box of its state", () => {
  const undivided = { own: 6, divided: false, passing: 0 };
  expect([0, 3, 7].map((piece) => placeOf(undivided, 8, piece, 8))).toEqual(Array(3).fill([0.25, 0.75]));
  const divided = { own: 1, divided: true, passing: 0 };
  expect([0, 3, 7].map((piece) => placeOf(divided, 8, piece, 8)[0])).toEqual([0, 3 / 8, 7 / 8]);
  for (const own of [0, 1, 5, 8, 9])
    for (const piece of [0, 7]) {
      const [start, long] = placeOf({ own, divided: true, passing: 0 }, 8, piece, 8);
      expect(start).toBeGreaterThanOrEqual(0);
      expect(start + long).toBeLessThanOrEqual(1);
    }
});
