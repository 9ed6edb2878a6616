/** Published runs beside their predictions: which are chosen, how far off each is, and all of them together. */

import type { AccuracyRow } from "$generated/documents.ts";

export type Figure = "time" | "memory";
export type Model = "fourfold" | "constant";
export type Order = "worst" | "best" | "longest";
export interface Filter {
  software: string;
  device: string;
  kind: string;
  format: string;
  size: string;
}
export interface Off {
  run: AccuracyRow;
  measured: number;
  predicted: number;
  /** predicted / measured - 1. */
  error: number;
  /** The null model's; undefined for memory, of which it says nothing. */
  constant: number | undefined;
}

/** The error up to which a prediction counts as near. */
export const NEAR = 0.25;

/** Numbers of devices, each up to and with its end. */
export const SIZES = [
  { value: "1", label: "1", most: 1 },
  { value: "8", label: "2 to 8", most: 8 },
  { value: "64", label: "9 to 64", most: 64 },
  { value: "1024", label: "65 to 1,024", most: 1024 },
  { value: "more", label: "more than 1,024", most: Number.POSITIVE_INFINITY },
] as const;
export const sizeOf = (devices: number): string => SIZES.find(({ most }) => devices <= most)?.value ?? "more";

/** The runs that a filter leaves, of which the figure is known. An empty word leaves all. */
export function chosen(runs: readonly AccuracyRow[], filter: Filter, figure: Figure, model: Model): Off[] {
  const fits = (wanted: string, found: string) => wanted === "" || wanted === found;
  return runs
    .filter(
      (run) =>
        fits(filter.software, run.software) &&
        fits(filter.device, run.device) &&
        fits(filter.kind, run.kind) &&
        fits(filter.format, run.gemm_dtype) &&
        fits(filter.size, sizeOf(run.devices)),
    )
    .flatMap((run) => off(run, figure, model) ?? []);
}

/** How far a run is off; undefined where its source does not state the figure. */
export function off(run: AccuracyRow, figure: Figure, model: Model): Off | undefined {
  if (figure === "memory") {
    if (run.memory_bytes === null || run.predicted_memory_bytes === null) return undefined;
    const [measured, predicted] = [run.memory_bytes, run.predicted_memory_bytes];
    return { run, measured, predicted, error: predicted / measured - 1, constant: undefined };
  }
  const measured = run.step_seconds;
  const predicted = model === "constant" ? run.null_step_seconds : run.predicted_step_seconds;
  return {
    run,
    measured,
    predicted,
    error: predicted / measured - 1,
    constant: run.null_step_seconds / measured - 1,
  };
}

export interface Errors {
  median: number;
  mean: number;
  /** Mean with sign. */
  bias: number;
}
/** Of relative errors; undefined of none. */
export function errorsOf(errors: readonly number[]): Errors | undefined {
  if (errors.length === 0) return undefined;
  const sizes = errors.map(Math.abs).sort((one, other) => one - other);
  const [low, high] = [sizes[(sizes.length - 1) >> 1] ?? 0, sizes[sizes.length >> 1] ?? 0];
  const mean = (values: readonly number[]) => values.reduce((sum, each) => sum + each, 0) / values.length;
  return { median: (low + high) / 2, mean: mean(sizes), bias: mean(errors) };
}

export function ordered(rows: readonly Off[], order: Order): Off[] {
  const by: Record<Order, (row: Off) => number> = {
    worst: ({ measured, predicted }) => -Math.abs(Math.log(predicted / measured)),
    best: ({ measured, predicted }) => Math.abs(Math.log(predicted / measured)),
    longest: ({ measured }) => -measured,
  };
  return [...rows].sort((one, other) => by[order](one) - by[order](other));
}

/** Words that runs have of a key, with how many have each: most first. */
export function counted(
  runs: readonly AccuracyRow[],
  key: "software" | "device" | "gemm_dtype",
): [string, number][] {
  const found = new Map<string, number>();
  for (const run of runs) found.set(run[key], (found.get(run[key]) ?? 0) + 1);
  return [...found].sort(([one, ones], [other, others]) => others - ones || one.localeCompare(other));
}
