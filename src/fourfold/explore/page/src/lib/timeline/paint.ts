/** Paints lanes on a canvas. Narrow spans become columns of pixels of one picture, so that a long step costs no more than a short one. */

import { columnsOf, type Lane } from "./lanes.ts";

/** Where the lanes stand, in CSS pixels, and the times at their edges. */
export interface Area {
  left: number;
  width: number;
  from: number;
  to: number;
  top: (lane: number) => number;
  tall: (lane: number) => number;
}

interface Looks {
  /** Of the kinds, `#rrggbb`. */
  fills: readonly string[];
  ground: string;
  ink: string;
  /** Where the ground of the lanes ends, in CSS pixels. */
  end: number;
  /** Spans of at least so many pixels are drawn by `each`. */
  wide?: number;
  each?: (lane: number, index: number) => void;
}

const UNDERLINE = 3;

/** `#rrggbb` as a pixel of image data, without its opacity. */
const pixelOf = (colour: string): number => {
  const number = Number.parseInt(colour.slice(1, 7), 16);
  return ((number & 0xff) << 16) | (number & 0xff00) | (number >> 16);
};

export function paintLanes(
  context: CanvasRenderingContext2D,
  lanes: readonly Lane[],
  area: Area,
  looks: Looks,
): void {
  const ratio = devicePixelRatio || 1;
  const count = Math.max(1, Math.round(area.width * ratio));
  const fills = looks.fills.map(pixelOf);
  const ink = pixelOf(looks.ink) | (255 << 24);
  const picture = new ImageData(count, 2 * Math.max(1, lanes.length));
  const pixels = new Uint32Array(picture.data.buffer);
  const found = lanes.map((lane, number) => {
    const wide = (looks.wide ?? Number.POSITIVE_INFINITY) * ratio;
    const { kind, share, marked, wide: bars } = columnsOf(lane, area.from, area.to, count, wide, ratio);
    for (let column = 0; column < count; column += 1) {
      const part = share[column] ?? 0;
      // little is still seen
      if (part > 0)
        pixels[2 * number * count + column] =
          (fills[kind[column] ?? 0] ?? 0) | (Math.round(255 * Math.sqrt(Math.min(1, part))) << 24);
      if (marked[column]) pixels[(2 * number + 1) * count + column] = ink;
    }
    return bars;
  });
  const sheet = new OffscreenCanvas(picture.width, picture.height);
  sheet.getContext("2d")?.putImageData(picture, 0, 0);
  context.imageSmoothingEnabled = false;
  found.forEach((bars, number) => {
    const [top, tall] = [area.top(number), area.tall(number)];
    context.fillStyle = looks.ground;
    context.fillRect(area.left, top, looks.end - area.left, tall);
    context.drawImage(sheet, 0, 2 * number, count, 1, area.left, top, area.width, tall);
    if (lanes[number]?.marked) {
      const low = Math.min(UNDERLINE, tall / 2);
      context.drawImage(sheet, 0, 2 * number + 1, count, 1, area.left, top + tall - low, area.width, low);
    }
    for (const index of bars) looks.each?.(number, index);
  });
}
