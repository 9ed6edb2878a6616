import { expect, test } from "vitest";
import { seconds } from "../units.ts";
import { type Compared, differencesOf } from "./differences.ts";

const step = (value: number | null): Compared => ({ name: "step", value, text: seconds, better: "less" });
const plain = (value: number): Compared => ({ name: "ranks", value, text: String });

test("a number that both have is told with its change, and whether that is good", () => {
  expect(differencesOf([step(2)], [step(1)])).toEqual([
    { name: "step", from: "2 s", to: "1 s", change: "−50.0 %", tone: "good" },
  ]);
  expect(differencesOf([step(1)], [step(1.25)])[0]).toMatchObject({ change: "+25.0 %", tone: "no" });
  expect(differencesOf([plain(2)], [plain(4)])[0]).toMatchObject({ change: "+100.0 %", tone: "soft" });
});

test("equal numbers are said to be equal, and what one lacks is left out", () => {
  expect(differencesOf([step(1)], [step(1.0001)])[0]).toMatchObject({ change: "equal", tone: "soft" });
  expect(differencesOf([step(1), plain(1)], [step(null)])).toEqual([]);
});

test("nothing is no share of nothing, and much more is a factor", () => {
  expect(differencesOf([plain(0)], [plain(3)])[0]?.change).toBe("");
  expect(differencesOf([plain(0)], [plain(0)])[0]?.change).toBe("equal");
  expect(differencesOf([plain(1)], [plain(40)])[0]?.change).toBe("40 times");
});
