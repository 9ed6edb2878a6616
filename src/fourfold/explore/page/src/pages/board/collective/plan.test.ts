import { expect, test } from "vitest";
import {
  columns,
  fitted,
  inOrder,
  linkOf,
  messageAt,
  moved,
  placedOn,
  readSteps,
  seated,
  sent,
  swapped,
  taken,
} from "./plan.ts";

const LINK = "A3.0-1 A0,2.1-2::K1.2-0";
const steps = readSteps(LINK, 4) ?? [];
const words = (found: typeof steps): string | undefined => linkOf(found);

test("steps are read from a link and written as one", () => {
  expect(steps.map((step) => step.length)).toEqual([2, 0, 1]);
  expect(steps[0]?.[1]).toEqual({ how: "A", chunks: [0, 2], source: 1, target: 2 });
  expect(words(steps)).toBe(LINK);
  expect(readSteps("", 2)).toEqual([]);
  expect(linkOf([[], []])).toBeUndefined();
  expect(words([...steps, [], []])).toBe(LINK);
  expect(readSteps(LINK, 3)).toBeUndefined();
  expect(readSteps("K0.0-1 hello", 4)).toBeUndefined();
});

test("chunks that go the same way between the same ranks are one message", () => {
  const more = (how: "A" | "K") => sent(steps, 0, { how, chunks: [1], source: 0, target: 1 });
  expect(words(more("A"))).toBe("A3,1.0-1 A0,2.1-2::K1.2-0");
  expect(words(more("K"))).toBe("A3.0-1 A0,2.1-2 K1.0-1::K1.2-0");
  expect(words(sent(steps, 4, { how: "K", chunks: [0], source: 0, target: 3 }))).toBe(`${LINK}::K0.0-3`);
});

test("messages are taken out, which leaves a step empty, and put into another step", () => {
  expect(words(taken(steps, 0, 0))).toBe("A0,2.1-2::K1.2-0");
  expect(taken(steps, 2, 0)).toHaveLength(3);
  expect(words(moved(steps, 2, 0, 1))).toBe("A3.0-1 A0,2.1-2:K1.2-0");
  expect(moved(steps, 0, 0, -1)).toBe(steps);
});

test("a step's chunk is found in its message", () => {
  expect([0, 1, 2, 3].map((number) => messageAt(steps[0] ?? [], number))).toEqual([0, 1, 1, -1]);
});

test("fewer ranks keep the messages between those that are there", () => {
  expect(words(fitted(steps, 3))).toBe("A0,2.1-2::K1.2-0");
  expect(words(fitted(steps, 2))).toBeUndefined();
});

test("columns follow the seats, and nodes stand apart", () => {
  const { wide, left } = columns(seated([0, 1, 0, 1], 2), 400, 20, 60);
  expect(wide).toBe(80);
  expect(left).toEqual([60, 240, 140, 320]);
  const few = columns(seated([0, 0, 1], 2), 700, 20, 0);
  expect(few.wide).toBe(84);
  expect(few.left[2]).toBe((few.left[1] ?? 0) + 84 + 20);
  expect(columns(seated([0, 0], 1), 0, 20, 60).wide).toBe(8);
});

test("ranks sit node by node, beside empty seats", () => {
  expect(inOrder(5, 2)).toEqual([0, 0, 0, 1, 1]);
  expect(seated([1, 0, 1, 0, 0], 2)).toEqual([
    [1, 3, 4],
    [0, 2, 5],
  ]);
  expect(swapped([0, 0, 1, 1], 0, 3)).toEqual([1, 0, 1, 0]);
  expect(placedOn([0, 0, 1, 1], 0, 1, 2)).toEqual([1, 0, 1, 0]);
  expect(placedOn([0, 0, 0, 1, 1], 0, 1, 2)).toEqual([1, 0, 0, 1, 1]);
  expect(placedOn([0, 0, 1, 1], 2, 1, 2)).toEqual([0, 0, 1, 1]);
});
