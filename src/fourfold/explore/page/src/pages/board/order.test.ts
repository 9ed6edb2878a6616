import { expect, test } from "vitest";
import { fitted, inserted, linkOf, moved, nextEntry, readRows, removed, vee } from "./order.ts";

const rows = [
  ["F0.0", "F0.1", "B0.0"],
  ["F1.0", "B1.0"],
];
const full = { letter: "B", excludes: ["I", "W"] };
const half = { letter: "W", excludes: ["B"] };

test("rows are read from a link and written as one", () => {
  const link = linkOf(rows);
  expect(link).toBe("F0.0 F0.1 B0.0:F1.0 B1.0");
  expect(readRows(link ?? "", 2)).toEqual(rows);
  expect(readRows("", 3)).toEqual([[], [], []]);
  expect(linkOf([[], []])).toBeUndefined();
  expect(readRows("F0.0", 2)).toBeUndefined();
  expect(readRows("F0.0 hello:F1.0", 2)).toBeUndefined();
});

test("entries are put in, taken out and moved", () => {
  expect(inserted(rows, { rank: 1, index: 1 }, "F1.1")[1]).toEqual(["F1.0", "F1.1", "B1.0"]);
  expect(removed(rows, { rank: 0, index: 1 })[0]).toEqual(["F0.0", "B0.0"]);
  const to = (index: number) => moved(rows, { rank: 0, index: 0 }, { rank: 0, index })[0];
  expect([0, 1, 2, 3].map(to)).toEqual([
    ["F0.0", "F0.1", "B0.0"],
    ["F0.0", "F0.1", "B0.0"],
    ["F0.1", "F0.0", "B0.0"],
    ["F0.1", "B0.0", "F0.0"],
  ]);
  expect(moved(rows, { rank: 0, index: 2 }, { rank: 1, index: 0 })).toEqual([
    ["F0.0", "F0.1"],
    ["B0.0", "F1.0", "B1.0"],
  ]);
});

test("the next entry is of the first microbatch that is neither there nor in halves", () => {
  expect(nextEntry(rows, { letter: "F", excludes: [] }, 0, 3)).toBe("F0.2");
  expect(nextEntry(rows, { letter: "F", excludes: [] }, 0, 2)).toBeUndefined();
  expect(nextEntry(rows, full, 0, 2)).toBe("B0.1");
  expect(nextEntry([["I0.0", "B0.1"], []], full, 0, 3)).toBe("B0.2");
  expect(nextEntry([["I0.0", "B0.1"], []], half, 0, 3)).toBe("W0.0");
});

test("a board of another size keeps what has a place", () => {
  expect(fitted(rows, 2, [0, 1], 1)).toEqual([
    ["F0.0", "B0.0"],
    ["F1.0", "B1.0"],
  ]);
  expect(fitted(rows, 2, vee(2), 2)).toEqual(rows);
  expect(fitted(rows, 3, [0, 1, 2], 2)).toEqual([...rows, []]);
});
