import { expect, test } from "vitest";
import { keptOf, landing, linkOf, moved, placeAt, readLink, without } from "./moves.ts";

const all = (length: number, fixed: readonly number[] = []): boolean[] =>
  Array.from({ length }, (_, number) => !fixed.includes(number));

test("nothing moved is an empty text", () => {
  expect(linkOf([[0, 1, 2], [0]], [all(3), all(1)])).toBe("");
  expect(readLink("", [3, 1])).toEqual([[0, 1, 2], [0]]);
});

test("one move is one word, whichever way", () => {
  expect(linkOf([moved([0, 1, 2, 3, 4], 3, 1)], [all(5)])).toBe("3-1");
  expect(linkOf([moved([0, 1, 2, 3, 4], 1, 4)], [all(5)])).toBe("1-4");
  expect(readLink("3-1", [5])).toEqual([[0, 3, 1, 2, 4]]);
  expect(readLink("1-4", [5])).toEqual([[0, 2, 3, 4, 1]]);
});

test("what computes is never what a link moves", () => {
  const order = moved([0, 1, 2, 3], 0, 3);
  expect(linkOf([order], [all(4, [1, 2])])).toBe("0-3");
  expect(keptOf([2, 0, 1], all(3, [2]))).toEqual(new Set([2]));
});

test("what is taken out comes back by its number", () => {
  const out = without([0, 1, 2, 3], 2);
  expect(linkOf([out], [all(4)])).toBe("2x");
  expect(readLink("2x", [4])).toEqual([out]);
  expect(moved(out, 2, 2)).toEqual([0, 1, 2, 3]);
});

test("any order comes back from its link", () => {
  let seed = 7;
  const random = (below: number): number => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return Math.floor((seed / 2147483648) * below);
  };
  const movable = all(20, [3, 9, 15]);
  for (let trial = 0; trial < 200; trial += 1) {
    let order: readonly number[] = Array.from({ length: 20 }, (_, number) => number);
    for (let step = 0; step < 6; step += 1) {
      const which = order.filter((each) => movable[each])[random(10)] ?? 0;
      order = random(5) === 0 ? without(order, which) : moved(order, which, random(20));
    }
    const link = linkOf([order], [movable]);
    expect(readLink(link, [20])).toEqual([order]);
    expect(link.split(".").filter((word) => word !== "").length).toBeLessThanOrEqual(6);
  }
});

test.each([
  "a",
  "1-2:3-4",
  "9-1",
  "1-2.1-3",
  "1-2.3-2",
  "1-9",
  "1-4.2x",
  "1-2..3-4",
])("%s is no link of these lists", (text) => {
  expect(readLink(text, [5])).toBeUndefined();
});

test("a dragged row lands where its gap is", () => {
  expect(placeAt(61, 24, 10)).toBe(3);
  expect(placeAt(-50, 24, 10)).toBe(0);
  expect(placeAt(999, 24, 10)).toBe(10);
  expect([landing(2, 2), landing(2, 3), landing(2, 5), landing(5, 2)]).toEqual([2, 2, 4, 2]);
});
