import { expect, test } from "vitest";
import { gauge, valueText, wantedText } from "./wanted.ts";

const row = { query: "", text: "", met: true };

test("a value reads by the unit in its name", () => {
  const texts = [
    ["fits", true, "yes"],
    ["mfu", 0.3973, "39.7 %"],
    ["bubble_fraction", 0.05, "5.0 %"],
    ["memory_bytes", 40e9, "40.0 GB"],
    ["communication[axes=pp].sent_bytes", 3e9, "3.00 GB"],
    ["run.seconds", 604800, "7 days"],
    ["run.failures.checkpoint_seconds", 10, "10 s"],
    ["run.dollars", 88000, "$88,000"],
    ["run.device_hours", 2.7e6, "2.70 M h"],
    ["run.goodput", 0.89, "89.0 %"],
    ["tokens", 4194304, "4,194,304"],
    ["mfu", null, "–"],
  ] as const;
  for (const [path, value, text] of texts) expect(valueText(path, value)).toBe(text);
});

test("a comparison reads as words", () => {
  expect(wantedText({ ...row, path: "mfu", comparison: ">=", wanted: 0.4, got: 0.3 })).toBe(
    "at least 40.0 %",
  );
  expect(wantedText({ ...row, path: "fits", comparison: "==", wanted: true, got: null })).toBe("yes");
});

test("a bar holds both numbers", () => {
  const found = gauge({ ...row, path: "mfu", comparison: ">=", wanted: 0.4, got: 0.8 });
  expect(found?.value).toBeGreaterThan(found?.limit ?? 1);
  expect(found?.value).toBeLessThanOrEqual(1);
  expect(gauge({ ...row, path: "fits", comparison: "==", wanted: true, got: false })).toBeUndefined();
});
