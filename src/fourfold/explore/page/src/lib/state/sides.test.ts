import { expect, test } from "vitest";
import { setupOf } from "./setup.ts";
import { clearing, editedOf, keepingSecond, pinning, secondKeys, sidesOf, swapping } from "./sides.ts";
import { readHash, withChanges, writeHash } from "./url.ts";

const ALONE = { run: "preset:x", "layout.tp": "8", "layout.zero": "1", tokens: "1T", "pipeline.v": "2" };
const BOTH = {
  ...ALONE,
  "strategy.compare": "1",
  "strategy.edit": "b",
  "b.layout.tp": "4",
  "b.layout.zero": "",
  "b.cluster": "dgx-h100:8",
};

test("B has A's keys but where it differs, and leaves out what it says is empty", () => {
  const [a, b] = sidesOf(BOTH);
  expect(a).toEqual(ALONE);
  expect(b && setupOf(b)).toEqual({
    run: "preset:x",
    overrides: { "layout.tp": 4 },
    tokens: "1T",
    cluster: "dgx-h100:8",
  });
  expect(b?.["pipeline.v"]).toBe("2");
  expect(sidesOf(ALONE)).toEqual([ALONE]);
});

test("the controls change B, or A", () => {
  expect(editedOf(BOTH)["layout.tp"]).toBe("4");
  expect(editedOf({ ...BOTH, "strategy.edit": "a" })["layout.tp"]).toBe("8");
  expect(editedOf(ALONE)).toEqual(ALONE);
});

test("B begins as A", () => {
  const [a, b] = sidesOf(withChanges(ALONE, pinning));
  expect(b).toEqual(a);
});

test("swapping twice changes nothing, and once what is A", () => {
  const once = withChanges(BOTH, swapping(BOTH, ALONE));
  expect(sidesOf(once)).toEqual([...sidesOf(BOTH)].reverse());
  expect(sidesOf(withChanges(once, swapping(once, sidesOf(once)[0])))).toEqual(sidesOf(BOTH));
});

test("B is kept alone, or cleared", () => {
  const [a, b] = sidesOf(BOTH);
  expect(withChanges(BOTH, clearing(BOTH))).toEqual(a);
  expect(withChanges(BOTH, keepingSecond(BOTH))).toEqual(b);
  expect(secondKeys(ALONE)).toEqual({});
});

test("an address holds both", () => {
  for (const params of [BOTH, withChanges(BOTH, swapping(BOTH, ALONE))])
    expect(readHash(writeHash({ page: "cluster", params }))).toEqual({ page: "cluster", params });
});
