/** What a timeline draws: lanes of spans on one axis of time. Pure, so that it is tested without a canvas. */

/** Spans of a lane, in order of time, none overlapping another. `kind[i]` counts into the timeline's kinds. */
export interface Lane {
  name: string;
  /** Beside the name on the right: the lane's bubble, say. */
  note?: string;
  start: Float64Array;
  end: Float64Array;
  kind: Uint8Array;
  /** What stands in span i where there is room: a microbatch's number. */
  text?: (index: number) => string;
  /** Lanes with `thin` are drawn half as high: communication under its rank's computation. */
  thin?: boolean;
}

export interface Kind {
  name: string;
  /** A CSS colour; `var(--...)` is resolved when it is drawn. */
  colour: string;
  hatched?: boolean;
}

/** A place in the picture. */
export interface Spot {
  lane: number;
  index: number;
}

export interface Bar {
  from: number;
  to: number;
  kind: number;
  /** The span, or -1 where several are too thin to tell apart. */
  index: number;
}

/** The first span that ends after `time`. */
export function firstAfter(lane: Lane, time: number): number {
  let low = 0;
  let high = lane.end.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((lane.end[middle] ?? 0) <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The span at a time; -1 where the lane idles. */
export function spanAt(lane: Lane, time: number): number {
  const index = firstAfter(lane, time);
  return index < lane.start.length && (lane.start[index] ?? 0) <= time ? index : -1;
}

/**
 * The bars of a lane between two times. Spans shorter than `least` are joined with those that begin within `least` of the first,
 * so that no more bars are drawn than there are pixels; a joined bar has the kind that fills most of it.
 */
export function barsOf(lane: Lane, from: number, to: number, least: number): Bar[] {
  const { start, end, kind } = lane;
  const bars: Bar[] = [];
  let index = firstAfter(lane, from);
  while (index < start.length && (start[index] ?? 0) < to) {
    const begin = start[index] ?? 0;
    const first = index;
    if ((end[index] ?? 0) - begin >= least) {
      bars.push({ from: begin, to: end[index] ?? 0, kind: kind[index] ?? 0, index });
      index += 1;
      continue;
    }
    const spent = new Map<number, number>();
    let covered = 0;
    do {
      const length = (end[index] ?? 0) - (start[index] ?? 0);
      if (length >= least) break;
      spent.set(kind[index] ?? 0, (spent.get(kind[index] ?? 0) ?? 0) + length);
      covered += length;
      index += 1;
    } while (index < start.length && (start[index] ?? 0) < begin + least);
    const [most] = [...spent].sort((one, other) => other[1] - one[1]);
    bars.push({
      from: begin,
      to: begin + covered,
      kind: most?.[0] ?? 0,
      index: index - first === 1 ? first : -1,
    });
  }
  return bars;
}

/** The end of the last span of all lanes. */
export function endOf(lanes: readonly Lane[]): number {
  return lanes.reduce((end, lane) => Math.max(end, lane.end[lane.end.length - 1] ?? 0), 0);
}
