/** Sentences about the steps of a collective, and places of what is drawn of them. */

import type { CollectiveDocument, CollectiveStep } from "$generated/documents.ts";
import { bytes, seconds } from "$lib/units.ts";

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
