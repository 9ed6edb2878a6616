import { expect, test } from "vitest";
import { barsOf, endOf, type Lane, spanAt } from "./lanes.ts";

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
  expect(barsOf(one, 1.5, 5.5, 0.1).map((bar) => bar.index)).toEqual([1, 2]);
});

test("thin spans are joined, keep their time, and show what fills most of them", () => {
  const many = lane(
    Array.from({ length: 10_000 }, (_, i) => [i, i + (i % 2 ? 0.9 : 0.3), i % 2] as [number, number, number]),
  );
  const bars = barsOf(many, 0, 10_000, 100);
  expect(bars.length).toBe(100);
  expect(bars.every((bar) => bar.kind === 1 && bar.index === -1)).toBe(true);
  expect(bars.reduce((sum, bar) => sum + bar.to - bar.from, 0)).toBeCloseTo(6000);
});
