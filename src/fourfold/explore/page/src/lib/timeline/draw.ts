/** The picture of a timeline: ticks, names, lanes, the span that is pointed at, the cursor. */

import type { ScaleLinear } from "d3-scale";
import { colours, inkOn } from "../charts/pen.ts";
import type { Kind, Lane, Spot } from "./lanes.ts";
import { paintLanes } from "./paint.ts";

/** Pixels of the names on the left, of the notes on the right, of the ticks on top. */
export const NAME = 92;
export const NOTE = 64;
export const AXIS = 24;
/** Spans of so many pixels have a frame and text of their own. */
const WIDE = 14;

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

/** Draws it on a canvas of `wide` x `high` CSS pixels. */
export function draw(surface: HTMLCanvasElement, wide: number, high: number, picture: Picture): void {
  const { lanes, kinds, format, scale, last, tops, rowHeight, noted, cursor, spot } = picture;
  const ratio = devicePixelRatio || 1;
  const size = [Math.round(wide * ratio), Math.round(high * ratio)] as const;
  if (surface.width !== size[0] || surface.height !== size[1]) [surface.width, surface.height] = size;
  const context = surface.getContext("2d");
  if (!context) return;
  const style = getComputedStyle(surface);
  const resolved = colours(surface);
  const fills = kinds.map((kind) => resolved(kind.colour));
  const inks = fills.map(inkOn);
  const [ink, soft, line, sunken] = ["--ink", "--soft", "--line", "--sunken"].map((name) =>
    style.getPropertyValue(name).trim(),
  ) as [string, string, string, string];
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, wide, high);
  context.font = `12px ${style.fontFamily}`;
  context.textBaseline = "middle";
  const [left, right] = [NAME, wide - noted];
  const [from, to] = [scale.invert(left), scale.invert(right)];
  context.fillStyle = soft;
  context.textAlign = "center";
  for (const tick of scale.ticks(Math.max(2, Math.floor((right - left) / 110)))) {
    const x = scale(tick);
    if (x < left - 1 || x > right + 1) continue;
    context.fillText(format(tick), Math.min(Math.max(x, left + 14), right - 14), AXIS / 2 - 2);
    context.strokeStyle = line;
    context.beginPath();
    context.moveTo(x, AXIS - 5);
    context.lineTo(x, high);
    context.stroke();
  }
  const every = Math.ceil(15 / rowHeight);
  lanes.forEach((lane, number) => {
    const top = tops[number] ?? 0;
    const tall = (lane.thin ? rowHeight / 2 : rowHeight) - 3;
    context.fillStyle = soft;
    context.textAlign = "left";
    const named = number % every === 0;
    if (named) context.fillText(clipped(lane.name, 14), 2, top + tall / 2, NAME - 8);
    if (lane.note && named) {
      context.textAlign = "right";
      context.fillText(lane.note, wide - 2, top + tall / 2, NOTE - 8);
    }
  });
  context.save();
  context.beginPath();
  context.rect(left, 0, right - left, high);
  context.clip();
  context.textAlign = "center";
  const tall = (number: number): number => (lanes[number]?.thin ? rowHeight / 2 : rowHeight) - 3;
  const top = (number: number): number => tops[number] ?? 0;
  const area = { left, width: right - left, from, to, top, tall };
  const each = (number: number, index: number): void => {
    const lane = lanes[number];
    if (!lane) return;
    const x = scale(lane.start[index] ?? 0);
    const long = scale(lane.end[index] ?? 0) - x;
    context.fillStyle = fills[lane.kind[index] ?? 0] ?? soft;
    context.fillRect(x, top(number), long - 1, tall(number));
    if (lane.marked?.[index]) frame(context, ink, x + 1, top(number) + 1, long - 3, tall(number) - 2);
    const text = lane.text?.(index);
    if (text && tall(number) >= 13 && long > 7 * text.length + 4) {
      context.fillStyle = inks[lane.kind[index] ?? 0] ?? "#fff";
      context.fillText(text, x + long / 2, top(number) + tall(number) / 2 + 0.5);
    }
  };
  const end = Math.min(right, scale(last));
  paintLanes(context, lanes, area, { fills, ground: sunken, ink, end, wide: WIDE, each });
  const pointed = spot && spot.index >= 0 ? lanes[spot.lane] : undefined;
  if (spot && pointed) {
    const x = scale(pointed.start[spot.index] ?? 0);
    const long = Math.max(2, scale(pointed.end[spot.index] ?? 0) - x - 1);
    frame(context, ink, x, top(spot.lane) + 1, long, tall(spot.lane) - 2);
  }
  context.restore();
  if (cursor !== null && cursor >= from && cursor <= to) {
    context.strokeStyle = ink;
    context.beginPath();
    context.moveTo(scale(cursor), AXIS - 8);
    context.lineTo(scale(cursor), high);
    context.stroke();
  }
}

function frame(
  context: CanvasRenderingContext2D,
  ink: string,
  ...box: [number, number, number, number]
): void {
  context.strokeStyle = ink;
  context.lineWidth = 2;
  context.strokeRect(...box);
  context.lineWidth = 1;
}

const clipped = (text: string, most: number): string =>
  text.length > most ? `${text.slice(0, most - 1)}…` : text;
