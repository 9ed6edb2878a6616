/** What a timeline draws: lanes of spans on one axis of time. Pure, so that it is tested without a canvas. */

/** Spans of a lane, in order of time, none overlapping another. `kind[i]` counts into the timeline's kinds. */
export interface Lane {
  name: string;
  /** Beside the name on the right: the lane's bubble, say. */
  note?: string;
  start: Float64Array;
  end: Float64Array;
  kind: Uint8Array;
  /** 1 for spans of the critical path, which have a frame. */
  marked?: Uint8Array;
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

/** Columns of pixels of a lane, and the spans that are too wide for them. */
export interface Columns {
  /** The kind that fills most of each column. */
  kind: Uint8Array;
  /** How much of each column is filled, from 0 to 1. */
  share: Float32Array;
  /** 1 where a marked span reaches into the column. */
  marked: Uint8Array;
  /** Spans that are drawn one by one. */
  wide: number[];
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
 * The columns of a lane between two times, so that no more is drawn than there are pixels. Spans of at least `wide` columns are left
 * to the caller; those of more than three end a column `apart` early, which tells them from the next.
 */
export function columnsOf(
  lane: Lane,
  from: number,
  to: number,
  count: number,
  wide: number,
  apart = 1,
): Columns {
  const found: Columns = {
    kind: new Uint8Array(count),
    share: new Float32Array(count),
    marked: new Uint8Array(count),
    wide: [],
  };
  const { start, end, kind, marked } = lane;
  const scale = count / (to - from || 1);
  const most = new Float64Array(count);
  const spent = new Float64Array(256);
  let open = -1;
  for (let index = firstAfter(lane, from); index < start.length && (start[index] ?? 0) < to; index += 1) {
    const first = ((start[index] ?? 0) - from) * scale;
    let last = ((end[index] ?? 0) - from) * scale;
    if (last - first >= wide) {
      found.wide.push(index);
      continue;
    }
    if (last - first > 3 * apart) last -= apart;
    const own = kind[index] ?? 0;
    for (let column = Math.max(0, Math.floor(first)); column < last && column < count; column += 1) {
      if (column !== open) spent.fill(0);
      open = column;
      const part = Math.min(last, column + 1) - Math.max(first, column);
      const sum = (spent[own] ?? 0) + part;
      spent[own] = sum;
      found.share[column] = (found.share[column] ?? 0) + part;
      if (marked?.[index]) found.marked[column] = 1;
      if (sum > (most[column] ?? 0)) {
        most[column] = sum;
        found.kind[column] = own;
      }
    }
  }
  return found;
}

/** The end of the last span of all lanes. */
export function endOf(lanes: readonly Lane[]): number {
  return lanes.reduce((end, lane) => Math.max(end, lane.end[lane.end.length - 1] ?? 0), 0);
}

/** The last time before `time` at which a span begins or ends, or the first after it. */
export function momentBeside(lanes: readonly Lane[], time: number, back: boolean): number | undefined {
  const beside = lanes.flatMap((lane) => {
    const index = firstAfter(lane, time);
    const near = [index - 2, index - 1, index, index + 1];
    return near.flatMap((each) => [lane.start[each] ?? Number.NaN, lane.end[each] ?? Number.NaN]);
  });
  const found = beside.filter((each) => (back ? each < time : each > time));
  return found.length > 0 ? (back ? Math.max(...found) : Math.min(...found)) : undefined;
}
