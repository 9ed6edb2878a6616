/** Where entries stand on the board, and the arrows from those that wait to those that they wait for. */

import type { BoardDocument } from "$generated/documents.ts";
import type { Place } from "./order.ts";

/** Pixels of an entry's width, a row's height and a rank's name. */
export const [CELL, TALL, NAME] = [48, 60, 74] as const;
/** Pixels of an entry's height, and between the middles of an entry and of an arrow's end there. */
const [DEEP, ASIDE] = [34, 7] as const;

export const key = (place: Place): string => `${place.rank}.${place.index}`;

export interface Arrow {
  from: Place;
  to: Place;
  /** One of a ring of entries that wait for one another. */
  strong: boolean;
}

export function arrowsOf(verdict: BoardDocument["verdict"]): Arrow[] {
  const ring = verdict.places.flatMap((from, number) => {
    const to = verdict.awaited[number];
    return to ? [{ from, to, strong: true }] : [];
  });
  const others = verdict.blocked.flatMap(({ at: index, holder, ...from }) =>
    index === null || ring.some((each) => key(each.from) === key(from))
      ? []
      : [{ from, to: { rank: holder, index }, strong: false }],
  );
  return [...ring, ...others];
}

/** The middle of an entry. */
export function middle({ rank, index }: Place): [number, number] {
  return [NAME + (index + 0.5) * CELL, (rank + 0.5) * TALL];
}

/** A line between two entries: over the row where both stand in one. It leaves on the right and ends on the left, so that two that
 * cross are told apart. */
export function curve(from: Place, to: Place): string {
  const [[x, y], [u, v]] = [middle(from), middle(to)];
  const [begin, end] = [x + ASIDE, u - ASIDE];
  if (from.rank === to.rank) {
    const [top, high] = [y - DEEP / 2, y - TALL / 2 - 2];
    return `M${begin} ${top}C${begin} ${high} ${end} ${high} ${end} ${top - 2}`;
  }
  const way = Math.sign(v - y);
  const [out, into] = [y + (way * DEEP) / 2, v - way * (DEEP / 2 + 2)];
  return `M${begin} ${out}C${begin} ${(out + into) / 2} ${end} ${(out + into) / 2} ${end} ${into}`;
}

/** The place in rows so long that is nearest to a point of the board; undefined above and below all rows. */
export function placeAt(x: number, y: number, lengths: readonly number[]): Place | undefined {
  const rank = Math.floor(y / TALL);
  const length = lengths[rank];
  if (length === undefined) return undefined;
  const index = Math.round((x - NAME) / CELL);
  return { rank, index: Math.min(Math.max(0, index), length) };
}
