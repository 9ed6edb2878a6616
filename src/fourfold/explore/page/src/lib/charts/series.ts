/** A number by step, and the ends of a scale on which it is drawn. */

export interface Series {
  readonly steps: readonly number[];
  readonly values: readonly number[];
}

/** Above this many times the middle of the values, the largest hundredth may lie out of the picture. */
const FAR = 4;

/** The least and the most that a scale shows: of all series and a level, but for a few values far above all others. */
export function endsOf(
  all: readonly (Series | undefined)[],
  level?: number,
  base?: number,
): [number, number] {
  const values = all.flatMap((each) => each?.values ?? []).sort((one, other) => one - other);
  const most = values.at(-1) ?? 1;
  const usual = values[Math.floor(0.99 * (values.length - 1))] ?? most;
  const middle = values[values.length >> 1] ?? most;
  const least = values[0] ?? 0;
  const high = Math.max(
    most - middle > FAR * (usual - least) ? usual : most,
    level ?? Number.NEGATIVE_INFINITY,
  );
  const low = Math.min(least, level ?? least, base ?? least);
  return high > low ? [low, high] : [low - (Math.abs(low) || 1) * 0.1, low + (Math.abs(low) || 1) * 0.1];
}

/** Powers of ten from one number to another, each `by` powers above the one before. */
export function tens(from: number, to: number, by = 1): number[] {
  const found = [];
  for (let power = Math.ceil(Math.log10(from)); power <= Math.log10(to); power += by) found.push(10 ** power);
  return found;
}

/** The point nearest to a step; -1 where there is none. */
export function nearestTo(series: Series, step: number): number {
  const { steps } = series;
  let low = 0;
  let high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((steps[middle] ?? 0) < step) low = middle + 1;
    else high = middle;
  }
  if (low === steps.length) return low - 1;
  return low > 0 && step - (steps[low - 1] ?? 0) < (steps[low] ?? 0) - step ? low - 1 : low;
}

/** The value of the point nearest to a step. */
export function valueAt(series: Series, step: number): number | undefined {
  return series.values[nearestTo(series, step)];
}
