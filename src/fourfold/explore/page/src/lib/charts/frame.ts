/** How canvases give their pictures to the frame around them: they hand them over, and take them back. */

import { escaped } from "./shapes.ts";

export const FRAME = Symbol("frame");
export interface CanvasPicture {
  /** Stands beside it where a frame has several. */
  name: string;
  width: number;
  height: number;
  svg: string;
}
export type FramePictures = (picture: () => CanvasPicture) => () => void;

const NAMES = 120;
const GAP = 10;

/** One picture of a frame's pictures: the only one, or all below each other with their names. */
export function together(pictures: readonly CanvasPicture[]): CanvasPicture | undefined {
  const [first] = pictures;
  if (first === undefined || pictures.length === 1) return first;
  let height = 0;
  const rows = pictures.map((each) => {
    const y = height;
    height += each.height + GAP;
    const name = `<text y="${y + 12}" font-size="12" font-family="sans-serif">${escaped(each.name)}</text>`;
    return name + each.svg.replace("<svg ", `<svg x="${NAMES}" y="${y}" `);
  });
  const width = NAMES + first.width;
  const open = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" fill="currentColor">`;
  return { name: first.name, width, height, svg: `${open}${rows.join("")}</svg>` };
}
