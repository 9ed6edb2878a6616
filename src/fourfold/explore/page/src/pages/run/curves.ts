/** Which numbers of a run are drawn over its steps, in which order, and how they are read. */

import type { ComparisonDocument, RunDocument } from "$generated/documents.ts";
import type { Series } from "$lib/charts/series.ts";
import { bytes, count, perCent, precise, seconds } from "$lib/units.ts";

export interface Curve {
  key: string;
  title: string;
  series: Series;
  /** How many values the run has of these steps, of which the series may have fewer. */
  numValues: number;
  format: (value: number) => string;
  dots?: Series | undefined;
  level?: { value: number; name: string } | undefined;
  base?: number;
}

const exponent = (value: number): string =>
  value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(1) : precise(value);
const KNOWN: Record<string, [title: string, format: (value: number) => string, base?: number]> = {
  loss: ["Loss", precise],
  grad_norm: ["Gradient norm", precise, 0],
  lr: ["Learning rate", exponent, 0],
  tokens_per_second: ["Throughput, tokens/s", count, 0],
  mfu: ["MFU", (value) => perCent(value, value < 0.0995 ? 1 : 0), 0],
  step_seconds: ["Step", seconds, 0],
  peak_memory_bytes: ["Peak memory", bytes, 0],
  expert_load_max_over_mean: ["Expert load, max/mean", precise, 1],
  auxiliary_loss: ["Auxiliary loss", precise],
  mtp_loss: ["MTP loss", precise],
  z_loss: ["z-loss of the logits", precise],
};
/** Numbers that other charts show, or that only count. */
const ELSEWHERE = ["validation_loss", "tokens", "skipped_steps"];

/** The curves of a run. A number that is not known by name is drawn under its key; steps that were skipped only where there are any. */
export function curvesOf(run: RunDocument, comparison: ComparisonDocument | undefined): Curve[] {
  const levels: Record<string, number | null | undefined> = {
    step_seconds: comparison?.predicted_step_seconds,
    peak_memory_bytes: comparison && Math.max(...comparison.ranks.map((rank) => rank.predicted_peak_bytes)),
  };
  const own = Object.keys(run.curves).filter((key) => !(key in KNOWN) && !ELSEWHERE.includes(key));
  if ((run.latest.skipped_steps ?? 0) > 0) own.push("skipped_steps");
  const found: Curve[] = [];
  for (const key of [...Object.keys(KNOWN), ...own]) {
    const series = run.curves[key];
    if (!series || series.steps.length === 0) continue;
    const [title, format, base] = KNOWN[key] ?? [key.replaceAll("_", " "), precise];
    const level = levels[key];
    found.push({
      key,
      title,
      series,
      numValues: series.num_values,
      format,
      ...(key === "loss" && { dots: run.curves.validation_loss }),
      ...(level != null && { level: { value: level, name: `predicted ${format(level)}` } }),
      ...(base !== undefined && { base }),
    });
  }
  return found;
}

/** The steps that the curves show, as the address holds them: `1000-2000`. */
export type Range = readonly [number, number];

export function rangeFrom(text: string): Range | undefined {
  const found = /^(\d{1,15})-(\d{1,15})$/.exec(text);
  const [first, last] = [Number(found?.[1]), Number(found?.[2])];
  return found && first < last ? [first, last] : undefined;
}

export const rangeText = ([first, last]: Range): string => `${first}-${last}`;
