import { scaleLinear } from "d3-scale";
import { expect, test, vi } from "vitest";
import { together } from "../export.ts";
import { NAME, timeline } from "../timeline/draw.ts";
import type { Lane } from "../timeline/lanes.ts";
import { drawOn, Shapes, svgOf } from "./shapes.ts";

const of = (colour: string): string => (colour.startsWith("var") ? "#123456" : colour);
const lane: Lane = {
  name: "rank <0>",
  note: "7 %",
  start: Float64Array.of(0, 40, 41, 42),
  end: Float64Array.of(40, 40.5, 41.5, 90),
  kind: Uint8Array.of(0, 1, 0, 1),
  marked: Uint8Array.of(1, 0, 1, 0),
  text: (index) => `${index}`,
};
const kinds = [
  { name: "forward", colour: "#0000ff" },
  { name: "backward", colour: "#00ff00" },
];

function drawing(): Shapes {
  const shapes = new Shapes();
  const scale = scaleLinear([0, 100], [NAME, 492]);
  timeline(shapes, of, 500, 60, {
    lanes: [lane],
    kinds,
    format: String,
    scale,
    last: 100,
    tops: [24],
    rowHeight: 30,
    noted: 8,
    cursor: 50,
    spot: { lane: 0, index: 3 },
  });
  return shapes;
}

/** What a canvas is told, as `[method, ...arguments]`. */
function told(shapes: Shapes): unknown[][] {
  const calls: unknown[][] = [];
  const methods =
    "fillRect roundRect lineTo fillText drawImage rect beginPath clip save restore fill stroke setLineDash";
  const context = Object.fromEntries(
    methods.split(" ").map((name) => [name, (...given: unknown[]) => calls.push([name, ...given])]),
  );
  vi.stubGlobal("getComputedStyle", () => ({ fontFamily: "sans-serif" }));
  vi.stubGlobal(
    "OffscreenCanvas",
    class {
      getContext = () => ({ putImageData: () => undefined });
    },
  );
  vi.stubGlobal(
    "ImageData",
    class {
      data: Uint8ClampedArray;
      constructor(width: number, height: number) {
        this.data = new Uint8ClampedArray(4 * width * height);
      }
    },
  );
  drawOn({ ...context, canvas: {}, globalAlpha: 1 } as unknown as CanvasRenderingContext2D, shapes, of);
  vi.unstubAllGlobals();
  return calls;
}

test("a canvas and a file show the same rectangles, lines and words at the same places", () => {
  const shapes = drawing();
  const calls = told(shapes);
  const file = svgOf(shapes, 500, 60, of);
  const numbers = (pattern: RegExp): number[][] =>
    [...file.matchAll(pattern)].map((found) => found.slice(1).map(Number));
  const close = (one: unknown[][], other: number[][]): void => {
    expect(other.length).toBe(one.length);
    one.forEach((row, index) => {
      row.forEach((value, place) => {
        expect(other[index]?.[place]).toBeCloseTo(value as number, 1);
      });
    });
  };
  const boxes = calls
    .filter(([name]) => name === "fillRect" || name === "roundRect")
    .map((call) => call.slice(1, 5));
  close(boxes, numbers(/<rect x="([\d.-]+)" y="([\d.-]+)" width="([\d.-]+)" height="([\d.-]+)"/g));
  const words = calls.filter(([name]) => name === "fillText");
  expect([...file.matchAll(/<text[^>]*>([^<]*)</g)].map((found) => found[1])).toEqual(
    words.map(([, text]) => String(text).replaceAll("<", "&lt;").replaceAll(">", "&gt;")),
  );
  close(
    words.map(([, , x, y]) => [x, (y as number) + 4]),
    numbers(/<text x="([\d.-]+)" y="([\d.-]+)"/g),
  );
  const points = calls.filter(([name]) => name === "lineTo").map((call) => call.slice(1));
  close(points, numbers(/([\d.-]+),([\d.-]+)/g));
  expect(calls.filter(([name]) => name === "drawImage").length).toBe(2);
  expect(calls.filter(([name]) => name === "clip").length).toBe(file.split("<svg ").length - 2);
  expect(file.split("</svg>").length).toBe(file.split("<svg ").length);
});

test("columns are written as their runs, and nothing where they are empty", () => {
  const shapes = new Shapes();
  const [full, half] = [0xff0000ff, 0x8000ff00];
  shapes.columns(10, 0, 6, 5, Uint32Array.of(0, full, full, 0, half, full));
  const paths = [
    ...svgOf(shapes, 20, 5, of).matchAll(/<path d="([^"]+)" fill="([^"]+)" fill-opacity="([^"]+)"/g),
  ];
  expect(paths.map((path) => path.slice(1))).toEqual([
    ["M11 0h2v5h-2zM15 0h1v5h-1z", "#ff0000", "1"],
    ["M14 0h1v5h-1z", "#00ff00", "0.5"],
  ]);
});

test("a frame gives away all of its pictures, and one alone as it is", () => {
  const one = { name: "1F1B", width: 40, height: 20, svg: '<svg width="40"/>' };
  expect(together([])).toBeUndefined();
  expect(together([one])).toBe(one);
  const both = together([one, { ...one, name: "<ZB>" }]);
  expect(both?.svg).toContain(">1F1B<");
  expect(both?.svg).toContain(">&lt;ZB&gt;<");
  expect(both?.svg.match(/<svg x="120" y="(\d+)"/g)).toEqual(['<svg x="120" y="0"', '<svg x="120" y="30"']);
});
