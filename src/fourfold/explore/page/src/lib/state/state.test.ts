import { expect, test } from "vitest";
import { History } from "./history.ts";
import { textOf, valueFrom } from "./setup.ts";
import { orStart, readHash, START, withChanges, writeHash } from "./url.ts";

test("an address is read back as it was written", () => {
  const params = {
    run: "preset:llama3-70b",
    "layout.tp": "8",
    "model.name": "<b>&=+ #é",
    "layout.recompute": '["none","full"]',
  };
  const place = { page: "pipeline" as const, params };
  expect(readHash(writeHash(place))).toEqual(place);
  expect(readHash(new URL(writeHash(place), "http://x/").hash)).toEqual(place);
});

test("an address that says nothing, or nonsense, is the first page", () => {
  for (const hash of ["", "#", "#/", "#/nothing?x", "#strategy"])
    expect(readHash(hash).page).toBe("strategy");
});

test("a change that says nothing takes the parameter away", () => {
  expect(withChanges({ a: "1", b: "2" }, { a: undefined, c: "3" })).toEqual({ b: "2", c: "3" });
});

test("a parameter is the value it reads as", () => {
  expect(
    [8, true, 0.5, 1e9, "1f1b", "none", "full:3", "16M", [1, 2]].map((value) => valueFrom(textOf(value))),
  ).toEqual([8, true, 0.5, 1e9, "1f1b", "none", "full:3", "16M", [1, 2]]);
});

test("quick changes of one control are one step of undo", () => {
  const history = new History<number>();
  for (let i = 0; i < 10; i += 1) history.note(i, "layout.tp", 10 * i);
  history.note(10, "layout.pp", 100);
  expect(history.undo(11)).toBe(10);
  expect(history.undo(10)).toBe(0);
  expect(history.undo(0)).toBeUndefined();
  expect(history.redo(0)).toBe(10);
  expect(history.redo(10)).toBe(11);
  expect(history.canRedo).toBe(false);
});

test("a short link is filled with what a step needs, and no more", () => {
  expect(orStart({})).toEqual(START);
  expect(orStart({ "layout.tp": "2" })).toEqual({ ...START, "layout.tp": "2" });
  const { cluster, ...rest } = orStart({ "model.preset": "llama3-70b", cluster: "dgx-h100:64" });
  expect(cluster).toBe("dgx-h100:64");
  expect(rest).toEqual({
    "model.preset": "llama3-70b",
    "batch.global_sequences": START["batch.global_sequences"],
    "batch.sequence_length": START["batch.sequence_length"],
    "precision.compute": START["precision.compute"],
  });
  expect(orStart({ run: "preset:x" })).toEqual({ run: "preset:x" });
});
