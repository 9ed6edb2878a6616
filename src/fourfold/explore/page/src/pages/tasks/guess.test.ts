import { expect, test } from "vitest";
import type { GuessDocument } from "$generated/documents.ts";
import { guessText, ratioText, stepOf, valueAt } from "./guess.ts";

const GUESS: GuessDocument = { question: "", path: "memory_bytes", of: "start", least: 1e9, most: 1e12 };

test("the scale is logarithmic, and read back", () => {
  expect(valueAt(GUESS, 0, 60)).toBe(1e9);
  expect(valueAt(GUESS, 60, 60)).toBe(1e12);
  expect(valueAt(GUESS, 20, 60)).toBe(1e10);
  expect(stepOf(GUESS, 1e11, 60)).toBeCloseTo(40);
  expect(stepOf(GUESS, 0, 60)).toBeLessThan(0);
});

test("a guess is judged by its ratio", () => {
  expect(ratioText(1.05, 1)).toBe("Right on it.");
  expect(ratioText(1.5, 1)).toBe("50 % too much.");
  expect(ratioText(1, 3)).toBe("3 times too little.");
  expect(guessText(GUESS, 2e10)).toBe("20.0 GB");
});
