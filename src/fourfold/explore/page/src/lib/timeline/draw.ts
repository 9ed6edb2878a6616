/**
 * The shapes of a timeline: ticks, names, lanes, the span that is pointed at, the cursor. Narrow spans become columns of pixels, so that
 * a long step costs no more than a short one.
 */

import type { ScaleLinear } from "d3-scale";
import { inkOn, type Resolved, type Shapes } from "../charts/shapes.ts";
import { columnsOf, type Kind, type Lane, type Spot } from "./lanes.ts";

/** Pixels of the names on the left, of the notes on the right, of the ticks on top. */
export const NAME = 92;
export const NOTE = 64;
export const AXIS = 24;
/** Spans of so many pixels have a frame and text of their own. */
const WIDE = 14;
const UNDERLINE = 3;
const [INK, LINE] = ["var(--ink)", "var(--line)"];

export interface Picture {
  lanes: readonly Lane[];
  kinds: readonly Kind[];
  format: (time: number) => string;
  /** Times to pixels. */
  scale: ScaleLinear<number, number>;
  /** The time at which the picture ends. */
  last: number;
  /** Where each lane begins, in pixels. */
  tops: readonly number[];
  rowHeight: number;
  /** Pixels that notes take on the right. */
  noted: number;
  cursor: number | null;
  spot: Spot | null;
}

/** Adds the timeline's shapes in `wide` x `high` CSS pixels. */
export function timeline(shapes: Shapes, of: Resolved, wide: number, high: number, picture: Picture): void {
  const { lanes, kinds, format, scale, last, tops, rowHeight, noted, cursor, spot } = picture;
  const [left, right] = [NAME, wide - noted];
  const [from, to] = [scale.invert(left), scale.invert(right)];
  for (const tick of scale.ticks(Math.max(2, Math.floor((right - left) / 110)))) {
    const x = scale(tick);
    if (x < left - 1 || x > right + 1) continue;
    const middle = Math.min(Math.max(x, left + 14), right - 14);
    shapes.text(middle, AXIS / 2 - 2, format(tick), { align: "center" });
    shapes.line(
      [
        [x, AXIS - 5],
        [x, high],
      ],
      { stroke: LINE },
    );
  }
  const top = (number: number): number => tops[number] ?? 0;
  const tall = (number: number): number => (lanes[number]?.thin ? rowHeight / 2 : rowHeight) - 3;
  const every = Math.ceil(15 / rowHeight);
  lanes.forEach((lane, number) => {
    if (number % every !== 0) return;
    const y = top(number) + tall(number) / 2;
    shapes.text(2, y, clipped(lane.name, 14), { most: NAME - 8 });
    if (lane.note) shapes.text(wide - 2, y, lane.note, { align: "right", most: NOTE - 8 });
  });
  const fills = kinds.map((kind) => of(kind.colour));
  const inks = fills.map(inkOn);
  const frame = (x: number, y: number, long: number, deep: number): void =>
    shapes.rect(x, y, long, deep, { stroke: INK, width: 2 });
  const each = (number: number, index: number): void => {
    const lane = lanes[number];
    if (!lane) return;
    const [x, y, deep] = [scale(lane.start[index] ?? 0), top(number), tall(number)];
    const long = scale(lane.end[index] ?? 0) - x;
    const kind = lane.kind[index] ?? 0;
    shapes.rect(x, y, long - 1, deep, { fill: fills[kind] ?? "var(--soft)" });
    if (lane.marked?.[index]) frame(x + 1, y + 1, long - 3, deep - 2);
    const text = lane.text?.(index);
    if (text && deep >= 13 && long > 7 * text.length + 4)
      shapes.text(x + long / 2, y + deep / 2 + 0.5, text, { fill: inks[kind] ?? "#ffffff", align: "center" });
  };
  shapes.clip(left, 0, right - left, high, () => {
    const end = Math.min(right, scale(last));
    const area = { left, width: right - left, from, to, end, top, tall };
    laneShapes(shapes, of, lanes, fills, area, { wide: WIDE, each });
    const pointed = spot && spot.index >= 0 ? lanes[spot.lane] : undefined;
    if (!spot || !pointed) return;
    const x = scale(pointed.start[spot.index] ?? 0);
    const long = Math.max(2, scale(pointed.end[spot.index] ?? 0) - x - 1);
    frame(x, top(spot.lane) + 1, long, tall(spot.lane) - 2);
  });
  if (cursor !== null && cursor >= from && cursor <= to)
    shapes.line(
      [
        [scale(cursor), AXIS - 8],
        [scale(cursor), high],
      ],
      { stroke: INK },
    );
}

/** Where lanes stand, in CSS pixels, the times at their edges, and where their ground ends. */
export interface Area {
  left: number;
  width: number;
  from: number;
  to: number;
  end: number;
  top: (lane: number) => number;
  tall: (lane: number) => number;
}

/** `#rrggbb` as a pixel of image data, without its opacity. */
const pixelOf = (colour: string): number => {
  const number = Number.parseInt(colour.slice(1, 7), 16);
  return ((number & 0xff) << 16) | (number & 0xff00) | (number >> 16);
};

/** Adds lanes on their ground. `fills`: of the kinds, `#rrggbb`. Spans of at least `wide` pixels are drawn by `each`. */
export function laneShapes(
  shapes: Shapes,
  of: Resolved,
  lanes: readonly Lane[],
  fills: readonly string[],
  area: Area,
  own?: { wide: number; each: (lane: number, index: number) => void },
): void {
  const ratio = globalThis.devicePixelRatio || 1;
  const count = Math.max(1, Math.round(area.width * ratio));
  const colours = fills.map(pixelOf);
  const ink = pixelOf(of(INK)) | (255 << 24);
  lanes.forEach((lane, number) => {
    const most = (own?.wide ?? Number.POSITIVE_INFINITY) * ratio;
    const { kind, share, marked, wide } = columnsOf(lane, area.from, area.to, count, most, ratio);
    const pixels = new Uint32Array(count);
    const lines = lane.marked && new Uint32Array(count);
    for (let column = 0; column < count; column += 1) {
      const part = share[column] ?? 0;
      // little is still seen
      if (part > 0)
        pixels[column] =
          (colours[kind[column] ?? 0] ?? 0) | (Math.round(255 * Math.sqrt(Math.min(1, part))) << 24);
      if (lines && marked[column]) lines[column] = ink;
    }
    const [top, tall] = [area.top(number), area.tall(number)];
    shapes.rect(area.left, top, area.end - area.left, tall, { fill: "var(--sunken)" });
    shapes.columns(area.left, top, area.width, tall, pixels);
    const low = Math.min(UNDERLINE, tall / 2);
    if (lines) shapes.columns(area.left, top + tall - low, area.width, low, lines);
    for (const index of wide) own?.each(number, index);
  });
}

const clipped = (text: string, most: number): string =>
  text.length > most ? `${text.slice(0, most - 1)}…` : text;
