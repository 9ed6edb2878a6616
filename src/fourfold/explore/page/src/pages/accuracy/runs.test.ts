import { expect, test } from "vitest";
import type { AccuracyRow } from "$generated/documents.ts";
import { signed } from "$lib/units.ts";
import { chosen, counted, errorsOf, type Filter, ordered, sizeOf } from "./runs.ts";

const run = (id: string, more: Partial<AccuracyRow> = {}): AccuracyRow => ({
  id,
  source: "",
  model: "",
  kind: "dense",
  layout: "",
  device: "h100-sxm",
  devices: 8,
  software: "megatron",
  gemm_dtype: "bf16",
  sequence_length: 4096,
  step_seconds: 2,
  predicted_step_seconds: 1,
  null_step_seconds: 3,
  memory_bytes: null,
  predicted_memory_bytes: null,
  opens: true,
  ...more,
});
const ALL: Filter = { software: "", device: "", kind: "", format: "", size: "" };
const RUNS = [
  run("a"),
  run("b", { software: "nemo", devices: 9, memory_bytes: 10, predicted_memory_bytes: 12 }),
  run("c", { kind: "experts", devices: 2000, predicted_step_seconds: 2 }),
];
const ids = (rows: ReturnType<typeof chosen>) => rows.map((row) => row.run.id);

test("a filter leaves the runs that have its words, and of them those whose figure is known", () => {
  expect(ids(chosen(RUNS, ALL, "time", "fourfold"))).toEqual(["a", "b", "c"]);
  expect(ids(chosen(RUNS, { ...ALL, software: "megatron" }, "time", "fourfold"))).toEqual(["a", "c"]);
  expect(ids(chosen(RUNS, { ...ALL, size: "64" }, "time", "fourfold"))).toEqual(["b"]);
  expect(ids(chosen(RUNS, ALL, "memory", "fourfold"))).toEqual(["b"]);
  expect([1, 2, 8, 9, 64, 65, 1024, 1025].map(sizeOf)).toEqual([
    "1",
    "8",
    "8",
    "64",
    "64",
    "1024",
    "1024",
    "more",
  ]);
});

test("an error is relative to what was measured, and the null model's is another", () => {
  const [a] = chosen(RUNS, ALL, "time", "fourfold");
  expect([a?.error, a?.constant]).toEqual([-0.5, 0.5]);
  const [other] = chosen(RUNS, ALL, "time", "constant");
  expect(other?.error).toBe(0.5);
  const [memory] = chosen(RUNS, ALL, "memory", "constant");
  expect(memory?.error).toBeCloseTo(0.2);
  expect(signed(-0.5)).toBe("−50 %");
});

test("errors together: the middle one or the two beside it, the mean, and the mean with sign", () => {
  expect(errorsOf([])).toBeUndefined();
  expect(errorsOf([-0.1, 0.3, 0.2])).toEqual({
    median: 0.2,
    mean: expect.closeTo(0.2),
    bias: expect.closeTo(0.4 / 3),
  });
  expect(errorsOf([0.1, -0.3])?.median).toBeCloseTo(0.2);
});

test("half as long is as far off as twice as long", () => {
  const rows = chosen(
    [run("twice", { predicted_step_seconds: 4.1 }), run("half"), run("good", { predicted_step_seconds: 2 })],
    ALL,
    "time",
    "fourfold",
  );
  expect(ids(ordered(rows, "worst"))).toEqual(["twice", "half", "good"]);
  expect(ids(ordered(rows, "best"))).toEqual(["good", "half", "twice"]);
});

test("words are counted, most first", () => {
  expect(counted(RUNS, "software")).toEqual([
    ["megatron", 2],
    ["nemo", 1],
  ]);
});
