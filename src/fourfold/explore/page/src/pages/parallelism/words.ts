/** Sentences about the steps of a block, and places of what is drawn of them. */

import type { BlockStep } from "$generated/documents.ts";
import { bytes, whole } from "$lib/units.ts";

const NAMES: Record<string, string> = {
  input: "input and norm",
  attention: "attention",
  elementwise: "activation function",
  all_gather: "all-gather",
  reduce_scatter: "reduce-scatter",
  all_reduce: "all-reduce",
};
/** What a matmul's weights are called: `q, k, v`. */
export const nameOf = (step: BlockStep): string =>
  step.kind === "matmul"
    ? step.weights.map(({ name }) => name.replace(/_proj$/, "")).join(", ")
    : (NAMES[step.kind] ?? step.kind);

export const isCollective = (step: BlockStep): boolean =>
  ["all_gather", "reduce_scatter", "all_reduce"].includes(step.kind);

/** `column-parallel`, `row-parallel`, or what a rank has. */
export function manner(step: BlockStep): string {
  const dims = new Set(step.weights.flatMap(({ splits }) => splits.map(({ dim }) => dim)));
  if (dims.has(0)) return "column-parallel";
  if (dims.has(1)) return "row-parallel";
  const [rows = 1, columns = 1] = step.held_shape;
  const [allRows = 1, allColumns = 1] = step.shape;
  if (rows < allRows && columns === allColumns) return "split by tokens";
  if (columns < allColumns) return step.kind === "attention" ? "split by heads" : "split by columns";
  return "the same on every rank";
}

/** How many of a matmul's outputs, or of its inputs where these are split, a rank's weights have. */
export function read(step: BlockStep): string {
  const [first] = step.weights;
  const [start, end] = first?.boxes[0]?.[1] ?? [0, 0];
  const inputs = first?.shape[1] ?? 0;
  if (end - start < inputs) return `${whole(end - start)} of ${whole(inputs)} inputs`;
  return `${whole(step.held_shape[1] ?? 0)} of ${whole(step.shape[1] ?? 0)} outputs`;
}

/** One sentence about a step. */
export function sentenceOf(step: BlockStep): string {
  const shape = `${step.held_shape.map(whole).join(" x ")} of ${step.shape.map(whole).join(" x ")}`;
  if (isCollective(step))
    return `${nameOf(step)} over tp: each rank sends ${bytes(step.sent_bytes)} of a buffer of ${bytes(step.bytes)}, and then has ${shape}.`;
  const partial = step.partial ? ", a summand that all ranks' sum completes" : "";
  return `${nameOf(step)}, ${manner(step)}: a rank has ${shape}${partial}.`;
}

/** Widths of activations that differ many times stay readable beside each other. */
export const widthOf = (columns: number, most: number, room: number): number =>
  room * (0.4 + 0.6 * (columns / most));
