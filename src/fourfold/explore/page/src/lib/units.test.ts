import { expect, test } from "vitest";
import { count, numberFrom } from "./units.ts";

test("a number is read as it is written, and with a unit", () => {
  expect(["12,345", "70 G", "0.5T", "8B", "1e9", "-3"].map(numberFrom)).toEqual([
    12345, 70e9, 5e11, 8e9, 1e9, -3,
  ]);
  expect(numberFrom(count(70.6e9))).toBe(70.6e9);
});

test("what is no number is none", () => {
  for (const text of ["", "many", "3 apples", "G"]) expect(numberFrom(text)).toBeNaN();
});
