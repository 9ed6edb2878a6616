import { expect, test } from "vitest";
import { joined, readProgress, written } from "./progress.ts";

test("progress is read back as it was written", () => {
  const progress = { a: { won: true as const, hints: 2 }, b: { hints: 1, shown: true as const } };
  expect(readProgress(written(progress))).toEqual(progress);
});

test("nonsense is refused, and what is not known is left out", () => {
  for (const text of ["{}", "3", "null", '{"tasks": 3}', "{"]) expect(() => readProgress(text)).toThrow();
  expect(readProgress('{"tasks": {"a": {"won": "yes", "hints": -1, "more": 2}, "b": 3}}')).toEqual({ a: {} });
});

test("two browsers' progress joins to the better of both", () => {
  expect(joined({ a: { hints: 1 } }, { a: { won: true }, b: { hints: 2 } })).toEqual({
    a: { won: true, hints: 1 },
    b: { hints: 2 },
  });
});
