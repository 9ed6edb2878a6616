import { expect, test } from "vitest";
import type { GuessDocument } from "$generated/documents.ts";
import { numberAt, placeOn } from "$lib/scale.ts";
import { ratioText, writtenScale } from "./guess.ts";

const GUESS: GuessDocument = { question: "", path: "memory_bytes", of: "start", least: 1e9, most: 1e12 };

test("the scale is logarithmic, and read back", () => {
  const scale = writtenScale(GUESS);
  expect(numberAt(scale, 0)).toBe(1e9);
  expect(numberAt(scale, 1)).toBe(1e12);
  expect(numberAt(scale, 20 / 60)).toBe(1e10);
  expect(60 * placeOn(scale, 1e11)).toBeCloseTo(40);
  expect(placeOn(scale, 0)).toBe(0);
});

test("a guess is judged by its ratio", () => {
  expect(ratioText(1.05, 1)).toBe("right on it");
  expect(ratioText(1.5, 1)).toBe("50 % too much");
  expect(ratioText(1, 3)).toBe("3 times too little");
  expect(writtenScale(GUESS).written(2e10)).toBe("20.0 GB");
});
