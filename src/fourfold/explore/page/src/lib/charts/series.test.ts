import { expect, test } from "vitest";
import { endsOf, nearestTo, valueAt } from "./series.ts";

const series = (values: number[]) => ({ steps: values.map((_, index) => 10 * index), values });

test("a scale holds all values, a level and a base", () => {
  expect(endsOf([series([3, 1, 2])])).toEqual([1, 3]);
  expect(endsOf([series([3, 1, 2]), series([5])], 7, 0)).toEqual([0, 7]);
});

test("one value far above the others does not flatten them", () => {
  const many = Array.from({ length: 500 }, (_, index) => 1 + (index % 10) / 10);
  expect(endsOf([series([...many, 1000])])[1]).toBeLessThan(3);
});

test("equal values, and none, have a scale too", () => {
  for (const values of [[], [0], [2, 2]]) {
    const [low, high] = endsOf([series(values)]);
    expect(high).toBeGreaterThan(low);
  }
});

test("the nearest point is found", () => {
  const one = series([1, 2, 3]);
  expect([-5, 0, 4, 6, 14, 16, 99].map((step) => nearestTo(one, step))).toEqual([0, 0, 0, 1, 1, 2, 2]);
  expect(nearestTo(series([]), 3)).toBe(-1);
  expect(valueAt(one, 11)).toBe(2);
});
