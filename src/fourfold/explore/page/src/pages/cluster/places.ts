/** Where the devices of a cluster are drawn: blocks in blocks, each a grid of those inside. Pure, so that it is tested alone. */

import type { ClusterDocument } from "$generated/documents.ts";

export interface Rect {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** Blocks of one size. `level`: of the network, innermost 0; a plane of a torus has none, nor has the device, which is tier 0. */
export interface Tier {
  name: string;
  level: number | undefined;
  devices: number;
  /** Blocks of the tier inside: how many, and how they lie. */
  columns: number;
  /** From one of them to the next. */
  stepX: number;
  stepY: number;
  /** The first one's corner; above it is the block's name. */
  left: number;
  top: number;
  width: number;
  height: number;
}

export interface Places {
  tiers: Tier[];
  devices: number;
}

/** A block as it comes to be drawn. `whole`: what is inside is too small to be drawn. */
export interface Shown {
  tier: number;
  first: number;
  count: number;
  rect: Rect;
  whole: boolean;
}

const DEVICE: Tier = {
  name: "device",
  level: undefined,
  devices: 1,
  columns: 1,
  stepX: 0,
  stepY: 0,
  left: 0,
  top: 0,
  width: 1,
  height: 1,
};
/** Room for a block's name above what is inside, as a share of that: the innermost are seen smallest. */
const HEAD = { devices: 0.24, blocks: 0.11, outermost: 0.07 } as const;
const GAP = 0.07;
const EDGE = 0.03;
const DEVICE_GAP = 0.18;
const PLANE_GAP = 0.28;

function tierOf(
  name: string,
  level: number | undefined,
  inside: Tier,
  parts: number,
  columns: number,
  gap: number,
  outermost = false,
): Tier {
  const small = Math.min(inside.width, inside.height);
  const rows = Math.ceil(parts / columns);
  const [stepX, stepY] = [inside.width + gap * small, inside.height + gap * small];
  const [wide, high] = [columns * stepX - gap * small, rows * stepY - gap * small];
  const edge = EDGE * Math.min(wide, high) + gap * small;
  const room =
    level === undefined ? 0 : HEAD[inside.devices === 1 ? "devices" : outermost ? "outermost" : "blocks"];
  const head = room * Math.min(wide, high, inside.devices === 1 ? 3 * small : high);
  return {
    name,
    level,
    devices: parts * inside.devices,
    columns,
    stepX,
    stepY,
    left: edge,
    top: edge + head,
    width: wide + 2 * edge,
    height: high + 2 * edge + head,
  };
}

/** How many blocks side by side make a shape nearest to `aspect`, with few places left empty. */
export function columnsFor(parts: number, inside: Rect | Tier, aspect: number): number {
  let [best, least] = [1, Number.POSITIVE_INFINITY];
  for (let columns = 1; columns <= parts && columns <= 4096; columns += 1) {
    const rows = Math.ceil(parts / columns);
    const shape = (columns * inside.width) / (rows * inside.height);
    const cost = Math.abs(Math.log(shape / aspect)) + (5 * (rows * columns - parts)) / parts;
    if (cost < least) [best, least] = [columns, cost];
  }
  return best;
}

/** The places of a cluster in a picture of this aspect. A torus of three dimensions lies plane by plane. */
export function placesOf(cluster: ClusterDocument, aspect: number): Places {
  const tiers: Tier[] = [DEVICE];
  cluster.levels.forEach((level, index) => {
    const inside = tiers.at(-1) ?? DEVICE;
    const outermost = index === cluster.levels.length - 1;
    const [rows, columns] = level.dimensions.slice(-2);
    if (level.kind === "torus" && columns !== undefined) {
      const plane = rows === undefined ? columns : rows * columns;
      if (plane >= level.devices) {
        tiers.push(tierOf(level.name, index, inside, level.devices, columns, PLANE_GAP));
        return;
      }
      const sheet = tierOf("plane", undefined, inside, plane, columns, PLANE_GAP);
      tiers.push(sheet);
      const planes = Math.ceil(level.devices / plane);
      tiers.push(tierOf(level.name, index, sheet, planes, columnsFor(planes, sheet, aspect), GAP, outermost));
      return;
    }
    const wide = columnsFor(level.parts, inside, outermost ? aspect : index === 0 ? 2 : 1.4);
    const gap = index === 0 ? DEVICE_GAP : GAP;
    tiers.push(tierOf(level.name, index, inside, level.parts, wide, gap, outermost));
  });
  return { tiers, devices: cluster.devices };
}

/** The block of a tier that holds a device. */
export function placeOf({ tiers }: Places, device: number, tier = 0): Rect {
  let [x, y, rest] = [0, 0, device];
  for (let at = tiers.length - 1; at > tier; at -= 1) {
    const block = tiers[at] ?? DEVICE;
    const inside = tiers[at - 1] ?? DEVICE;
    const part = Math.floor(rest / inside.devices);
    x += block.left + (part % block.columns) * block.stepX;
    y += block.top + Math.floor(part / block.columns) * block.stepY;
    rest -= part * inside.devices;
  }
  const { width, height } = tiers[tier] ?? DEVICE;
  return { x, y, width, height };
}

/** The first devices of the blocks around a point, by their tiers: the outermost first, as far in as there is one. */
export function blocksAt(
  { tiers, devices }: Places,
  x: number,
  y: number,
): { tier: number; first: number }[] {
  const top = tiers.length - 1;
  const root = tiers[top] ?? DEVICE;
  if (x < 0 || y < 0 || x > root.width || y > root.height) return [];
  let first = 0;
  const found = [{ tier: top, first }];
  for (let at = top; at > 0; at -= 1) {
    const block = tiers[at] ?? DEVICE;
    const inside = tiers[at - 1] ?? DEVICE;
    const [column, row] = [
      Math.floor((x - block.left) / block.stepX),
      Math.floor((y - block.top) / block.stepY),
    ];
    if (column < 0 || column >= block.columns || row < 0) break;
    const part = row * block.columns + column;
    [x, y] = [x - block.left - column * block.stepX, y - block.top - row * block.stepY];
    if (x > inside.width || y > inside.height || (part + 1) * inside.devices > block.devices) break;
    first += part * inside.devices;
    if (first >= devices) break;
    found.push({ tier: at - 1, first });
  }
  return found;
}

/** The device at a point; undefined beside all. */
export function deviceAt(places: Places, x: number, y: number): number | undefined {
  const last = blocksAt(places, x, y).at(-1);
  return last?.tier === 0 ? last.first : undefined;
}

/**
 * Calls `draw` with the blocks that are seen, outer before inner. `view`: the part of the picture; `least`: a block smaller than
 * this is not drawn, and the one around it is drawn `whole`. So no more blocks are drawn than there is room for, however many
 * devices there are.
 */
export function eachBlock(places: Places, view: Rect, least: number, draw: (block: Shown) => void): void {
  const top = places.tiers.length - 1;
  const { width, height } = places.tiers[top] ?? DEVICE;
  inside(places, top, 0, { x: 0, y: 0, width, height }, view, least, draw);
}

function inside(
  places: Places,
  tier: number,
  first: number,
  rect: Rect,
  view: Rect,
  least: number,
  draw: (block: Shown) => void,
): void {
  const block = places.tiers[tier] ?? DEVICE;
  const part = places.tiers[tier - 1];
  const count = Math.min(block.devices, places.devices - first);
  if (count <= 0) return;
  const whole = part !== undefined && Math.min(part.width, part.height) < least;
  draw({ tier, first, count, rect, whole });
  if (part === undefined || whole) return;
  const parts = Math.ceil(count / part.devices);
  const rows = Math.ceil(parts / block.columns);
  const from = (start: number, step: number): number => Math.max(0, Math.floor(start / step));
  const [left, upper] = [rect.x + block.left, rect.y + block.top];
  const firstColumn = from(view.x - left, block.stepX);
  const lastColumn = Math.min(block.columns - 1, Math.floor((view.x + view.width - left) / block.stepX));
  const lastRow = Math.min(rows - 1, Math.floor((view.y + view.height - upper) / block.stepY));
  for (let row = from(view.y - upper, block.stepY); row <= lastRow; row += 1) {
    for (let column = firstColumn; column <= lastColumn; column += 1) {
      const index = row * block.columns + column;
      if (index >= parts) break;
      const x = left + column * block.stepX;
      const y = upper + row * block.stepY;
      const own = { x, y, width: part.width, height: part.height };
      inside(places, tier - 1, first + index * part.devices, own, view, least, draw);
    }
  }
}

/** How many of ascending numbers lie from `first` on and before `end`. */
export function countBetween(sorted: Int32Array, first: number, end: number): number {
  return firstFrom(sorted, end) - firstFrom(sorted, first);
}

function firstFrom(sorted: Int32Array, value: number): number {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((sorted[middle] ?? 0) < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The devices whose group is `number`, ascending. */
export function membersOf(numbers: Int32Array, number: number): Int32Array {
  const found = new Int32Array(numbers.length);
  let size = 0;
  for (let device = 0; device < numbers.length; device += 1) {
    if (numbers[device] !== number) continue;
    found[size] = device;
    size += 1;
  }
  return found.slice(0, size);
}
