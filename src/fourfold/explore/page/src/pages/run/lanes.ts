/** A step of every pipeline rank as lanes of a timeline: computation, and what its streams carry, measured beside predicted. */

import type { RankTimeline, StepTimes } from "$generated/documents.ts";
import {
  AXES,
  axisColour,
  axisName,
  axisOf,
  OPERATIONS,
  operationColour,
  operationName,
  operationOf,
} from "$lib/palette.ts";
import type { Kind, Lane } from "$lib/timeline/lanes.ts";

const [WAIT, OTHER, FIRST_AXIS] = [0, 1, 2].map((more) => OPERATIONS.length + more) as [
  number,
  number,
  number,
];
export const kinds: readonly Kind[] = [
  ...OPERATIONS.map((op) => ({ name: operationName(op), colour: operationColour(op) })),
  { name: "waiting", colour: "var(--time-idle)" },
  { name: "other", colour: "var(--time-compute)" },
  ...AXES.map((axis) => ({ name: axisName(axis), colour: axisColour(axis) })),
];

export const SOURCES = ["measured", "predicted"] as const;
export type Source = (typeof SOURCES)[number];
/** A lane, and which instruction each of its spans is. */
export interface StepLane extends Lane {
  rank: RankTimeline;
  source: Source;
  index: Int32Array;
}

export const kindOf = (instruction: string): number => {
  const word = instruction.split(" ", 1)[0] ?? "";
  if (word === "wait") return WAIT;
  const colour = operationOf(word);
  return colour === undefined ? OTHER : OPERATIONS.indexOf(colour);
};

/** Lanes of every rank: of each source its computation, then its communication, half as high. */
export function lanesOf(timelines: readonly RankTimeline[], sources: readonly Source[]): StepLane[] {
  const lanes: StepLane[] = [];
  for (const rank of timelines) {
    let named = false;
    for (const source of sources) {
      const lane = rank[source];
      if (!lane) continue;
      const name = named ? source : `pp ${rank.pp_rank} ${source}`;
      named = true;
      lanes.push({ ...computation(rank, lane), name, rank, source });
      if (lane.streams.length > 0) lanes.push({ ...communication(lane), name: "", rank, source, thin: true });
    }
  }
  return lanes;
}

type Spans = Pick<StepLane, "start" | "end" | "kind" | "index" | "text">;

function computation(rank: RankTimeline, lane: StepTimes): Spans {
  const long = [...lane.ends.keys()].filter((each) => (lane.ends[each] ?? 0) > (lane.starts[each] ?? 0));
  const kept = Int32Array.from(long);
  return {
    index: kept,
    start: Float64Array.from(kept, (each) => lane.starts[each] ?? 0),
    end: Float64Array.from(kept, (each) => lane.ends[each] ?? 0),
    kind: Uint8Array.from(kept, (each) => kindOf(rank.instructions[each] ?? "")),
    text: (span) => / m(\d+)$/.exec(rank.instructions[kept[span] ?? 0] ?? "")?.[1] ?? "",
  };
}

/** What several streams carry at once is drawn from the end of what began before. */
function communication(lane: StepTimes): Spans {
  const spans: [number, number, number, number][] = [];
  let free = 0;
  for (const [index, begin, end, axes] of lane.streams) {
    if (end <= free) continue;
    spans.push([index, Math.max(begin, free), end, FIRST_AXIS + AXES.indexOf(axisOf(axes))]);
    free = end;
  }
  return {
    index: Int32Array.from(spans, ([index]) => index),
    start: Float64Array.from(spans, ([, start]) => start),
    end: Float64Array.from(spans, ([, , end]) => end),
    kind: Uint8Array.from(spans, ([, , , kind]) => kind),
  };
}
