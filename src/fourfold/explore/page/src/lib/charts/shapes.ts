/** The shapes of a picture, in one list: a canvas shows it, and a file that is given away has it as SVG. */

/** `fill` and `stroke`: colours, `var(--...)` among them; a shape without a fill is not filled. */
export interface Paint {
  fill?: string | undefined;
  stroke?: string | undefined;
  /** Pixels of the stroke. */
  width?: number;
  radius?: number;
  dash?: number;
  alpha?: number;
}
export interface Lettering {
  fill?: string;
  align?: "left" | "center" | "right";
  bold?: boolean;
  /** The most pixels that the words may take. */
  most?: number;
}
interface Box {
  x: number;
  y: number;
  wide: number;
  high: number;
}
export type Shape =
  | ({ kind: "rect"; paint: Paint } & Box)
  | { kind: "line"; points: readonly (readonly [number, number])[]; paint: Paint }
  | ({ kind: "text"; x: number; y: number; words: string } & Lettering)
  /** A row of columns, each of a pixel `0xAABBGGRR` from its top to its bottom. */
  | ({ kind: "columns"; pixels: Uint32Array } & Box)
  /** What follows is seen inside of this box alone, until `unclip`. */
  | ({ kind: "clip" } & Box)
  | { kind: "unclip" };
/** A colour as it is on the page: `#rrggbb` of `var(--...)`. */
export type Resolved = (colour: string) => string;

export class Shapes {
  readonly list: Shape[] = [];

  rect(x: number, y: number, wide: number, high: number, paint: Paint): void {
    this.list.push({ kind: "rect", x, y, wide, high, paint });
  }
  line(points: readonly (readonly [number, number])[], paint: Paint): void {
    this.list.push({ kind: "line", points, paint });
  }
  text(x: number, y: number, words: string, lettering: Lettering = {}): void {
    this.list.push({ kind: "text", x, y, words, ...lettering });
  }
  columns(x: number, y: number, wide: number, high: number, pixels: Uint32Array): void {
    this.list.push({ kind: "columns", x, y, wide, high, pixels });
  }
  /** What `inside` adds is seen in this box alone. */
  clip(x: number, y: number, wide: number, high: number, inside: () => void): void {
    this.list.push({ kind: "clip", x, y, wide, high });
    inside();
    this.list.push({ kind: "unclip" });
  }
}

/** Colours of the page: `var(--...)` as it is resolved on an element, anything else as it stands. */
export function colours(element: Element): Resolved {
  const style = getComputedStyle(element);
  const known = new Map<string, string>();
  return (colour) => {
    const name = /^var\((--[\w-]+)\)$/.exec(colour)?.[1];
    if (!name) return colour;
    let found = known.get(name);
    if (found === undefined) {
      found = style.getPropertyValue(name).trim();
      known.set(name, found);
    }
    return found;
  };
}

/** Black or white, whichever is read better on a colour `#rrggbb`. */
export function inkOn(colour: string): string {
  const parts = [1, 3, 5].map((place) => Number.parseInt(colour.slice(place, place + 2), 16) / 255);
  const [r = 0, g = 0, b = 0] = parts.map((each) =>
    each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#0b1118" : "#ffffff";
}

const SOFT = "var(--soft)";

/** Draws the shapes, in CSS pixels. */
export function drawOn(context: CanvasRenderingContext2D, { list }: Shapes, of: Resolved): void {
  const family = getComputedStyle(context.canvas).fontFamily;
  const sheet = sheetOf(list);
  let row = 0;
  let [filled, alpha, font] = ["", 1, ""];
  context.textBaseline = "middle";
  context.imageSmoothingEnabled = false;
  /** Setting a colour costs more than a rectangle: only where it changes. */
  const fillWith = (colour: string, share = 1): void => {
    if (colour !== filled) {
      filled = colour;
      context.fillStyle = of(colour);
    }
    if (share !== alpha) {
      alpha = share;
      context.globalAlpha = share;
    }
  };
  const finish = ({ fill, stroke, width = 1, dash = 0, alpha: share }: Paint): void => {
    fillWith(fill ?? filled, share);
    if (fill) context.fill();
    if (stroke) {
      context.strokeStyle = of(stroke);
      context.lineWidth = width;
      context.setLineDash(dash ? [dash, dash] : []);
      context.stroke();
    }
  };
  for (const shape of list) {
    if (shape.kind === "rect") {
      const { x, y, wide, high, paint } = shape;
      if (!paint.stroke && !paint.radius && paint.fill) {
        fillWith(paint.fill, paint.alpha);
        context.fillRect(x, y, wide, high);
      } else {
        context.beginPath();
        context.roundRect(x, y, wide, high, paint.radius ?? 0);
        finish(paint);
      }
    } else if (shape.kind === "line") {
      context.beginPath();
      for (const [x, y] of shape.points) context.lineTo(x, y);
      finish(shape.paint);
    } else if (shape.kind === "text") {
      const own = `${shape.bold ? "600 " : ""}12px ${family}`;
      if (own !== font) context.font = font = own;
      context.textAlign = shape.align ?? "left";
      fillWith(shape.fill ?? SOFT);
      context.fillText(shape.words, shape.x, shape.y, shape.most);
    } else if (shape.kind === "columns") {
      fillWith(filled);
      const { x, y, wide, high, pixels } = shape;
      if (sheet) context.drawImage(sheet, 0, row, pixels.length, 1, x, y, wide, high);
      row += 1;
    } else if (shape.kind === "clip") {
      context.save();
      context.beginPath();
      context.rect(shape.x, shape.y, shape.wide, shape.high);
      context.clip();
    } else {
      context.restore();
      [filled, alpha, font] = ["", context.globalAlpha, ""];
    }
  }
}

/** All rows of columns as one picture, a row of pixels for each. */
function sheetOf(list: readonly Shape[]): OffscreenCanvas | undefined {
  const rows = list.flatMap((shape) => (shape.kind === "columns" ? [shape.pixels] : []));
  const width = Math.max(0, ...rows.map(({ length }) => length));
  if (width === 0) return undefined;
  const picture = new ImageData(width, rows.length);
  const pixels = new Uint32Array(picture.data.buffer);
  rows.forEach((each, row) => {
    pixels.set(each, row * width);
  });
  const sheet = new OffscreenCanvas(width, rows.length);
  sheet.getContext("2d")?.putImageData(picture, 0, 0);
  return sheet;
}

export const escaped = (text: string): string =>
  text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");

const ANCHORS = { left: "start", center: "middle", right: "end" } as const;
const short = (value: number): number => Math.round(value * 100) / 100;

/** The shapes as a file of this size. */
export function svgOf({ list }: Shapes, width: number, height: number, of: Resolved): string {
  const style = ({ fill, stroke, width: wide = 1, dash, alpha }: Paint): string =>
    [
      `fill="${fill ? of(fill) : "none"}"`,
      stroke ? `stroke="${of(stroke)}" stroke-width="${wide}"` : "",
      dash ? `stroke-dasharray="${dash}"` : "",
      alpha === undefined ? "" : `opacity="${alpha}"`,
    ].join(" ");
  const size = ({ x, y, wide, high }: Box): string =>
    `x="${short(x)}" y="${short(y)}" width="${short(wide)}" height="${short(high)}"`;
  const written = (shape: Shape): string => {
    if (shape.kind === "rect")
      return `<rect ${size(shape)} rx="${shape.paint.radius ?? 0}" ${style(shape.paint)}/>`;
    if (shape.kind === "line") {
      const places = shape.points.map(([x, y]) => `${short(x)},${short(y)}`).join(" ");
      return `<polyline points="${places}" ${style(shape.paint)}/>`;
    }
    if (shape.kind === "text") {
      const weight = shape.bold ? ' font-weight="600"' : "";
      const place = `x="${short(shape.x)}" y="${short(shape.y + 4)}" text-anchor="${ANCHORS[shape.align ?? "left"]}"`;
      const look = `font-size="12" font-family="sans-serif"${weight} fill="${of(shape.fill ?? SOFT)}"`;
      return `<text ${place} ${look}>${escaped(shape.words)}</text>`;
    }
    if (shape.kind === "columns") return runsOf(shape);
    if (shape.kind === "unclip") return "</svg>";
    const { x, y, wide, high } = shape;
    return `<svg ${size(shape)} viewBox="${short(x)} ${short(y)} ${short(wide)} ${short(high)}">`;
  };
  const ground = `<rect width="100%" height="100%" fill="${of("var(--surface)")}"/>`;
  const open = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">`;
  return `${open}${ground}${list.map(written).join("")}</svg>`;
}

/** Neighbouring columns of one pixel as one rectangle, all of a pixel as one path. */
function runsOf({ x, y, wide, high, pixels }: Box & { pixels: Uint32Array }): string {
  const paths = new Map<number, string>();
  const step = wide / pixels.length;
  for (let from = 0; from < pixels.length; ) {
    const pixel = pixels[from] ?? 0;
    let to = from + 1;
    while (to < pixels.length && pixels[to] === pixel) to += 1;
    const long = short((to - from) * step);
    const box = `M${short(x + from * step)} ${short(y)}h${long}v${short(high)}h${-long}z`;
    if (pixel >>> 24) paths.set(pixel, (paths.get(pixel) ?? "") + box);
    from = to;
  }
  const hex = (pixel: number): string =>
    [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255]
      .map((part) => part.toString(16).padStart(2, "0"))
      .join("");
  return [...paths]
    .map(
      ([pixel, d]) => `<path d="${d}" fill="#${hex(pixel)}" fill-opacity="${short((pixel >>> 24) / 255)}"/>`,
    )
    .join("");
}
