/** Lanes, colours and memory of a list over time. Pure, from the engine's answer. */

import type { MovesInstruction, MovesList, MovesPrice, MovesTimes } from "$generated/documents.ts";
import {
  axisColour,
  MEMORY_GROUPS,
  type MemoryGroup,
  memoryColour,
  memoryGroup,
  memoryName,
  operationColour,
  operationOf,
} from "$lib/palette.ts";
import type { Kind, Lane } from "$lib/timeline/lanes.ts";

const COMPUTE = "compute";
const HOST: readonly string[] = ["to_host", "from_host"];
/** The kinds of spans that any list may have, beside those of its streams. */
const WAITS: Kind = { name: "waits for what was started", colour: "var(--time-idle)", hatched: true };

/** The colour of an instruction: of its operation, of the axis that it sends over, of what it joins, or of the memory that it frees. */
export function colourOf(step: MovesInstruction, all: readonly MovesInstruction[]): string {
  if (operationOf(step.letter)) return operationColour(step.letter);
  const joined = step.starts === null ? undefined : all[step.starts];
  if (joined) return colourOf(joined, all);
  if (step.stream !== COMPUTE) return streamColour(step.stream);
  return step.frees.length > 0 && step.reads.length === 0
    ? memoryColour("parameters")
    : "var(--time-compute)";
}
/** The two directions of the link to the host are no axis of the mesh: activations travel there. */
const streamColour = (stream: string): string =>
  HOST.includes(stream) ? memoryColour("activations") : axisColour(stream);

/** A price to draw, and the orders that it is of. */
export interface Drawn {
  price: MovesPrice;
  orders: readonly (readonly number[])[];
  /** That of the compiler's orders. */
  before: MovesPrice;
  /** What it is where it is none of what is on the board. */
  words: string;
}

export interface Lanes {
  lanes: Lane[];
  kinds: Kind[];
  /** By lane, the place in the order of each of its spans. */
  places: number[][];
}

/** Computation with its waits, and a lane for each stream that carries something. */
export function lanesOf(list: MovesList, order: readonly number[], times: MovesTimes, chosen: number): Lanes {
  const kinds: Kind[] = [];
  const kindOf = (kind: Kind): number => {
    const found = kinds.findIndex(({ name, colour }) => name === kind.name && colour === kind.colour);
    return found >= 0 ? found : kinds.push(kind) - 1;
  };
  const step = (place: number) => list.instructions[order[place] ?? 0];
  const joined = (place: number): number | null => step(place)?.starts ?? null;
  const marked = (place: number): number => {
    const which = order[place];
    return which === chosen || joined(place) === chosen ? 1 : 0;
  };
  const lane = (
    name: string,
    spans: readonly { place: number; start: number; end: number; kind: Kind }[],
  ): Lane => ({
    name,
    start: Float64Array.from(spans, (each) => each.start),
    end: Float64Array.from(spans, (each) => each.end),
    kind: Uint8Array.from(spans, (each) => kindOf(each.kind)),
    marked: Uint8Array.from(spans, (each) => marked(each.place)),
    text: (index) => step(spans[index]?.place ?? 0)?.short ?? "",
  });
  const computed = times.starts.flatMap((start, place) => {
    const [end, own] = [times.ends[place] ?? start, step(place)];
    if (!own || end <= start) return [];
    const kind = own.letter === "wait" ? WAITS : { name: own.does, colour: colourOf(own, list.instructions) };
    return [{ place, start, end, kind }];
  });
  const names = [...new Set(times.streams.map(({ stream }) => stream))]
    .filter((name) => name !== COMPUTE)
    .sort();
  const carried = names.map((name) =>
    times.streams
      .filter(({ stream, end, start }) => stream === name && end > start)
      .sort((one, other) => one.start - other.start)
      .map(({ index, start, end }) => {
        const own = step(index);
        return { place: index, start, end, kind: { name: own?.does ?? name, colour: streamColour(name) } };
      }),
  );
  const rows = [computed, ...carried];
  return {
    lanes: rows.map((spans, number) => lane(number === 0 ? COMPUTE : (names[number - 1] ?? ""), spans)),
    kinds,
    places: rows.map((spans) => spans.map(({ place }) => place)),
  };
}

/** Memory while each instruction runs, from 0 where the rank holds least to 1 where it holds most. */
export function sharesOf(live: readonly number[]): number[] {
  const [least, most] = [Math.min(...live), Math.max(...live)];
  return live.map((each) => (each - least) / (most - least || 1));
}

/** `0.0015146` -> `1,514.6 us`: moves are worth a few of them. */
export const microseconds = (value: number): string =>
  `${(value * 1e6).toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 })} us`;

export interface Layer {
  group: MemoryGroup;
  name: string;
  colour: string;
  /** By span, from how many bytes to how many. */
  from: number[];
  to: number[];
}

/** Memory by group, one on the other; groups without a byte are left out. */
export function layersOf(times: MovesTimes): Layer[] {
  const sums = times.memory_ends.map(() => 0);
  return MEMORY_GROUPS.flatMap((group) => {
    const own = Object.entries(times.memory).filter(([kind]) => memoryGroup(kind) === group);
    if (!own.some(([, sizes]) => sizes.some((size) => size > 0))) return [];
    const from = [...sums];
    for (const [, sizes] of own)
      sizes.forEach((size, span) => {
        sums[span] = (sums[span] ?? 0) + size;
      });
    return [{ group, name: memoryName(group), colour: memoryColour(group), from, to: [...sums] }];
  });
}
