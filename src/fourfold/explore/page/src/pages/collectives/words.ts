/** Sentences about collectives and about a block's steps, and places of what is drawn of them. */

import type { BlockStep, CollectiveDocument, CollectiveStep } from "$generated/documents.ts";
import { bytes, seconds, whole } from "$lib/units.ts";

/** What happened in the last step that was taken. */
export function sentence(document: CollectiveDocument, step: number): string {
  const taken = document.steps[step - 1];
  if (taken === undefined) return "Before the first step: what each rank begins with.";
  const slowest = slowestOf(taken);
  if (slowest === undefined) return "";
  const number = taken.messages.length;
  const who = number === 1 ? `rank ${slowest.source} sends` : `${number} ranks send`;
  const link = document.levels[slowest.level]?.name ?? "";
  const verb = { add: "adds", copy: "keeps", move: "takes" }[slowest.how] ?? "takes";
  const target = number === 1 ? `rank ${slowest.target} ${verb} it` : `each receiver ${verb} it`;
  return `Step ${step} of ${document.steps.length}, ${taken.phase}: ${who} ${bytes(slowest.bytes)}, ${target}; ${seconds(taken.seconds)}, as the ${link} link needs.${ended(document, step)}`;
}

function ended(document: CollectiveDocument, step: number): string {
  const phase = document.phases.find(({ first, num_steps }) => first + num_steps === step);
  return phase ? ` With that the ${phase.phase} is done.` : "";
}

/** The message that the step waits for. */
export function slowestOf(step: CollectiveStep) {
  return step.messages.reduce<(typeof step.messages)[number] | undefined>(
    (most, each) => (most === undefined || each.seconds > most.seconds ? each : most),
    undefined,
  );
}

export type Cells = ([number, number] | null)[][];

/** What every rank holds after so many steps. */
export const cellsAfter = (document: CollectiveDocument, step: number): Cells =>
  document.steps[step - 1]?.cells ?? document.first;

/** Left edges of the ranks' columns; nodes stand apart. */
export function columns(
  nodes: readonly (readonly number[])[],
  width: number,
  gap: number,
  margin = 0,
): { wide: number; left: number[] } {
  const number = nodes.reduce((sum, node) => sum + node.length, 0);
  const wide = Math.min(84, (width - margin - gap * (nodes.length - 1)) / number);
  const start = margin + (width - margin - wide * number - gap * (nodes.length - 1)) / 2;
  const left: number[] = [];
  nodes.forEach((node, index) => {
    for (const rank of node) left[rank] = start + rank * wide + index * gap;
  });
  return { wide, left };
}

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
