import { expect, test } from "vitest";
import { arrowsOf, CELL, curve, middle, NAME, placeAt, TALL } from "./drawn.ts";

test("the middle of an entry is nearest to its own place or the one behind it", () => {
  const [x, y] = middle({ rank: 1, index: 2 });
  expect(placeAt(x - 1, y, [3, 3])).toEqual({ rank: 1, index: 2 });
  expect(placeAt(x + 1, y, [3, 3])).toEqual({ rank: 1, index: 3 });
});

test("a point beside a row is one of its ends, one above or below all rows is no place", () => {
  expect(placeAt(0, TALL / 2, [3])).toEqual({ rank: 0, index: 0 });
  expect(placeAt(NAME + 99 * CELL, TALL / 2, [3])).toEqual({ rank: 0, index: 3 });
  expect(placeAt(NAME, -1, [3])).toBeUndefined();
  expect(placeAt(NAME, TALL, [3])).toBeUndefined();
});

test("a ring's arrows are strong, and an entry of it has no other", () => {
  const places = [
    { rank: 0, index: 1 },
    { rank: 1, index: 0 },
  ];
  const blocked = [
    { rank: 0, index: 1, needs: "B1.0", holder: 1, at: 3 },
    { rank: 2, index: 0, needs: "F1.0", holder: 1, at: 2 },
    { rank: 3, index: 0, needs: "F2.0", holder: 2, at: null },
  ];
  const verdict = { places, awaited: [...places].reverse(), blocked } as unknown as Parameters<
    typeof arrowsOf
  >[0];
  expect(arrowsOf(verdict)).toEqual([
    { from: places[0], to: places[1], strong: true },
    { from: places[1], to: places[0], strong: true },
    { from: expect.objectContaining({ rank: 2, index: 0 }), to: { rank: 1, index: 2 }, strong: false },
  ]);
});

test("a line within a row goes above it", () => {
  const [from, to] = [
    { rank: 0, index: 0 },
    { rank: 0, index: 4 },
  ];
  const heights = [...curve(from, to).matchAll(/ (-?[\d.]+)/g)].map((match) => Number(match[1]));
  expect(Math.min(...heights)).toBeLessThan(0);
  expect(curve(from, { rank: 2, index: 4 })).not.toContain("NaN");
});
