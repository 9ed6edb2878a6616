import { expect, test } from "vitest";
import { columnsOf, endOf, type Lane, momentBeside, spanAt } from "./lanes.ts";

const lane = (spans: [number, number, number][]): Lane => ({
  name: "rank 0",
  start: Float64Array.from(spans, ([start]) => start),
  end: Float64Array.from(spans, ([, end]) => end),
  kind: Uint8Array.from(spans, ([, , kind]) => kind),
});

test("a span is found at its time, and idle time is told apart", () => {
  const one = lane([
    [0, 1, 0],
    [1, 3, 1],
    [5, 6, 0],
  ]);
  expect([0, 0.9, 1, 2.9, 3, 4.9, 5, 6].map((time) => spanAt(one, time))).toEqual([
    0, 0, 1, 1, -1, -1, 2, -1,
  ]);
  expect(endOf([one, lane([[0, 9, 0]])])).toBe(9);
});

test("long spans are drawn one by one, and only those between the two times", () => {
  const one = lane([
    [0, 1, 0],
    [1, 3, 1],
    [5, 6, 0],
  ]);
  const { wide, share } = columnsOf(one, 1.5, 5.5, 40, 1);
  expect(wide).toEqual([1, 2]);
  expect(Math.max(...share)).toBe(0);
});

test("thin spans are joined, keep their time, and show what fills most of them", () => {
  const many = lane(
    Array.from({ length: 10_000 }, (_, i) => [i, i + (i % 2 ? 0.9 : 0.3), i % 2] as [number, number, number]),
  );
  const { kind, share, wide } = columnsOf(many, 0, 10_000, 100, 14);
  expect(wide).toEqual([]);
  expect([...kind].every((each) => each === 1)).toBe(true);
  expect(100 * share.reduce((sum, part) => sum + part, 0)).toBeCloseTo(6000);
});

test("spans of some columns stand apart, and marks are theirs", () => {
  const two = lane([
    [0, 4, 0],
    [4, 8, 1],
    [9, 9.25, 1],
  ]);
  two.marked = Uint8Array.of(0, 1, 0);
  const { kind, share, marked } = columnsOf(two, 0, 10, 10, 14, 1);
  expect([...share]).toEqual([1, 1, 1, 0, 1, 1, 1, 0, 0, 0.25]);
  expect([...kind].filter((_, column) => share[column])).toEqual([0, 0, 0, 1, 1, 1, 1]);
  expect([...marked]).toEqual([0, 0, 0, 0, 1, 1, 1, 0, 0, 0]);
});

test("moments beside a time are those of all lanes", () => {
  const lanes = [
    lane([
      [0, 1, 0],
      [1, 3, 1],
    ]),
    lane([[2, 5, 0]]),
  ];
  const on = [0, 1, 2, 3, 5].map((time) => momentBeside(lanes, time, false));
  expect(on).toEqual([1, 2, 3, 5, undefined]);
  expect([5, 4, 3, 0.5, 0].map((time) => momentBeside(lanes, time, true))).toEqual([3, 3, 2, 0, undefined]);
});
