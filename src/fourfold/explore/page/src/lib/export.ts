/** What a chart gives away: SVG with its colours written in, PNG, CSV, JSON. */

import { escaped } from "./charts/shapes.ts";

export interface Table {
  head: string[];
  rows: (string | number | null)[][];
}

const PROPERTIES = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "text-anchor",
  "font-variant-numeric",
];

/** The SVG as a file of its own: what style sheets say of it is written on each element. */
export function svgText(svg: SVGSVGElement): string {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  const from = [svg, ...svg.querySelectorAll("*")];
  const to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((element, index) => {
    const style = getComputedStyle(element);
    const target = to[index];
    for (const name of PROPERTIES) target?.setAttribute(name, style.getPropertyValue(name));
    target?.removeAttribute("class");
    target?.removeAttribute("style");
  });
  const { width, height } = svg.getBoundingClientRect();
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  ground.setAttribute("width", "100%");
  ground.setAttribute("height", "100%");
  ground.setAttribute(
    "fill",
    getComputedStyle(document.documentElement).getPropertyValue("--surface").trim(),
  );
  copy.prepend(ground);
  return new XMLSerializer().serializeToString(copy);
}

/** What stands around a picture: its title and sentence, its colours' words, where it is from. */
export interface Caption {
  title: string;
  said: string;
  legend: readonly { name: string; colour: string }[];
  source: string;
}

const XML = "http://www.w3.org/2000/svg";
const MARGIN = 16;
const LINE = 17;
/** Mean width of a letter of 12 pixels. */
const LETTER = 6.4;

/** A picture with its caption, as a file of its own. `inner`: an SVG's text. */
export function captioned(inner: string, width: number, height: number, caption: Caption): string {
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string): string => style.getPropertyValue(name).trim();
  const full = Math.max(width, 420) + 2 * MARGIN;
  const said = wrapped(caption.said, full - 2 * MARGIN);
  const top = MARGIN + 22 + LINE * said.length + 8;
  const places = laidOut(caption.legend, full - 2 * MARGIN);
  const rows = Math.max(0, ...places.map(({ row }) => row + 1));
  const source = wrapped(caption.source, full - 2 * MARGIN);
  const legendTop = top + height + 14;
  const sourceTop = legendTop + rows * LINE + 6;
  const bottom = sourceTop + source.length * LINE + MARGIN - 6;
  const text = (
    x: number,
    y: number,
    words: string,
    more = `fill="${colour("--soft")}" font-size="12"`,
  ): string => `<text x="${x}" y="${y}" ${more}>${escaped(words)}</text>`;
  const picture = inner.replace("<svg ", `<svg x="${MARGIN}" y="${top}" `);
  return [
    `<svg xmlns="${XML}" width="${full}" height="${bottom}" viewBox="0 0 ${full} ${bottom}" font-family="system-ui, sans-serif">`,
    `<rect width="100%" height="100%" fill="${colour("--surface")}"/>`,
    text(MARGIN, MARGIN + 12, caption.title, `fill="${colour("--ink")}" font-size="15" font-weight="650"`),
    ...said.map((line, index) => text(MARGIN, MARGIN + 32 + LINE * index, line)),
    picture,
    ...places.map(
      ({ name, colour: fill, x, row }) =>
        `<rect x="${MARGIN + x}" y="${legendTop + LINE * row}" width="11" height="11" rx="3" fill="${fill}"/>` +
        text(MARGIN + x + 16, legendTop + LINE * row + 10, name),
    ),
    ...source.map((line, index) => text(MARGIN, sourceTop + 10 + LINE * index, line)),
    "</svg>",
  ].join("\n");
}

/** Words in lines of so many pixels; a word that is longer is cut. */
function wrapped(words: string, width: number): string[] {
  const most = Math.max(8, Math.floor(width / LETTER));
  const lines: string[] = [];
  for (const word of words
    .split(/\s+/)
    .flatMap((each) => each.match(new RegExp(`.{1,${most}}`, "g")) ?? [])) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + 1 + word.length <= most)
      lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines;
}

function laidOut(
  legend: Caption["legend"],
  width: number,
): { name: string; colour: string; x: number; row: number }[] {
  let [x, row] = [0, 0];
  return legend.map((each) => {
    const wide = 16 + LETTER * each.name.length + 16;
    if (x > 0 && x + wide > width) [x, row] = [0, row + 1];
    const place = { ...each, x, row };
    x += wide;
    return place;
  });
}

/** An SVG's text as pixels, twice as many as it says. */
export async function pngOf(text: string): Promise<Blob> {
  const image = new Image();
  // not decode(): that waits for a frame, which a tab that nothing changes in may never draw
  await new Promise<void>((resolve, reject) => {
    image.onload = () => resolve();
    image.onerror = () => reject(new Error("the picture could not be read"));
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  });
  const canvas = document.createElement("canvas");
  canvas.width = 2 * image.width;
  canvas.height = 2 * image.height;
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  return pngOfCanvas(canvas);
}

function pngOfCanvas(canvas: HTMLCanvasElement): Promise<Blob> {
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the picture could not be made")))),
  );
}

/** RFC 4180. */
export function csvText({ head, rows }: Table): string {
  const cell = (value: string | number | null): string => {
    const text = value === null ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return `${[head, ...rows].map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;
}

/** Between the making of a file's address and its download: asked for at once, Chromium 156 dropped 5 of 504 without a word; with
 * this pause none of 840. */
const PAUSE_MS = 100;

/** Lets the browser save it. */
export function save(name: string, content: Blob | string, kind = "text/plain"): void {
  const blob = typeof content === "string" ? new Blob([content], { type: kind }) : content;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  setTimeout(() => link.click(), PAUSE_MS);
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** How canvases give their pictures to the frame around them: they hand them over, and take them back. */
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
