/** What is said of a collective by hand. */

import type { HandDocument, HandFigures } from "$generated/documents.ts";
import { bytes, seconds } from "$lib/units.ts";

/** A fill's name as a person reads it. */
export const fillName = (name: string): string =>
  ({
    ring_by_node: "ring, node by node",
    scatter_all_gather: "scatter, then all-gather",
    halving_doubling: "halving, then doubling",
  })[name] ?? name;

/** A goal's figure. */
export const measured = (measure: string, figures: HandFigures): string =>
  measure === "seconds" ? seconds(figures.seconds) : `${bytes(figures.network_bytes)} between nodes`;

/** Of which ranks a cell has the values. */
export function heldWords(held: readonly number[], kind: string): string {
  if (held.length === 0) return "none of it";
  if (kind === "all_gather" || kind === "broadcast") return "has it";
  return `summed over rank${held.length > 1 ? "s" : ""} ${held.join(", ")}`;
}

/** What every rank holds before a step, as far as the steps run. */
export function holdsBefore(document: HandDocument, step: number): readonly number[][][] {
  for (let before = Math.min(step, document.steps.length) - 1; before >= 0; before -= 1) {
    const found = document.steps[before]?.holds;
    if (found) return found;
  }
  return document.first;
}
