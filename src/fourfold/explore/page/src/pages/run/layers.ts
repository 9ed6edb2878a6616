/** A quantity of every layer as shares of its range, by its logarithm where it spans more than a factor of 20. */

import type { LayersDocument } from "$generated/documents.ts";

export const NAMES: Record<string, string> = {
  gradient_norm: "Gradient norm",
  weight_norm: "Weight norm",
  update_ratio: "Update / weights",
  activation_rms: "Residual stream, RMS",
  largest_score: "Largest attention score",
  expert_load_max: "Expert load, max/mean",
  expert_load_min: "Expert load, min/mean",
  expert_entropy: "Entropy of expert loads",
};
const LEAST = ["expert_load_min", "expert_entropy"];
/** Which number of a span stands for it. */
export const wordOf = (quantity: string): string => (LEAST.includes(quantity) ? "least" : "most");

export interface Row {
  segment: string;
  values: readonly (number | null)[];
  /** From 0, the least of all, to 1. */
  shares: readonly (number | null)[];
}
export interface Cells {
  steps: readonly number[];
  /** The segments that have the quantity. */
  rows: readonly Row[];
  least: number;
  most: number;
  isLogarithmic: boolean;
}
const SPAN = 20;

export function cellsOf(layers: LayersDocument, quantity: string): Cells | undefined {
  const columns = layers.values[quantity] ?? [];
  let [least, most] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const column of columns)
    for (const value of column)
      if (value !== null) [least, most] = [Math.min(least, value), Math.max(most, value)];
  if (least > most) return undefined;
  const isLogarithmic = least > 0 && most > SPAN * least;
  const scale = isLogarithmic ? Math.log : (value: number) => value;
  const [low, wide] = [scale(least), scale(most) - scale(least)];
  const share = (value: number | null) =>
    value === null ? null : wide > 0 ? (scale(value) - low) / wide : 0.5;
  const rows = layers.segments
    .map((segment, index) => ({ segment, values: columns[index] ?? [] }))
    .filter(({ values }) => values.some((value) => value !== null))
    .map(({ segment, values }) => ({ segment, values, shares: values.map(share) }));
  return { steps: layers.steps, rows, least, most, isLogarithmic };
}
