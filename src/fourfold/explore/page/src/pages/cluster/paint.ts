/** The drawing of a cluster: blocks with their links' load, devices by their group, the chosen group and its hops. */

import type { ClusterDocument, GroupsDocument, SimulationDocument } from "$generated/documents.ts";
import { inkOn, type Resolved, type Shapes } from "$lib/charts/shapes.ts";
import { axisColour } from "$lib/palette.ts";
import { bytes, whole } from "$lib/units.ts";
import type { Flow, Flowing } from "./flows.ts";
import { countBetween, eachBlock, type Places, placeOf, type Rect, type Shown, type Tier } from "./places.ts";

export interface Scene {
  cluster: ClusterDocument;
  places: Places;
  groups: GroupsDocument | undefined;
  /** The group of every rank, and the members of the chosen one. */
  numbers: Int32Array;
  members: Int32Array;
  rank: number;
  hover: number | undefined;
  links: SimulationDocument["links"] | undefined;
  /** What flows at the clock's moment, where colours say that. */
  flowing: Flowing | undefined;
  busiest: number;
  scale: number;
  x: number;
  y: number;
  width: number;
  height: number;
  /** Colours as they are on the page. */
  resolved: Resolved;
}

const LEAST_PIXELS = 3.4;
const MOST_HOPS = 64;
const NAMED_HEAD = 14;

/** Adds its shapes; gives the number of blocks and devices among them. */
export function paint(shapes: Shapes, scene: Scene): number {
  const { scale, x, y, width, height } = scene;
  const view = { x: -x / scale, y: -y / scale, width: width / scale, height: height / scale };
  const onScreen = ({ x: left, y: top, width: wide, height: high }: Rect): Rect => ({
    x: left * scale + x,
    y: top * scale + y,
    width: wide * scale,
    height: high * scale,
  });
  let drawn = 0;
  const later: (() => void)[] = [];
  eachBlock(scene.places, view, LEAST_PIXELS / scale, (block) => {
    const tier = scene.places.tiers[block.tier];
    if (!tier) return;
    drawn += 1;
    const rect = onScreen(block.rect);
    if (block.tier === 0) {
      device(shapes, scene, block.first, rect);
      if (rect.width > 30 && rect.height > 16) later.push(() => named(shapes, scene, block.first, rect));
    } else if (block.whole) closed(shapes, scene, block, rect);
    else opened(shapes, scene, block, tier, rect);
  });
  wires(shapes, scene, onScreen, view);
  hops(shapes, scene, onScreen);
  for (const each of later) each();
  whereabouts(shapes, onScreen(placeOf(scene.places, scene.rank)));
  return drawn;
}

const groupColour = ({ groups }: Scene): string => (groups?.axes ? axisColour(groups.axes) : "var(--accent)");

function device(shapes: Shapes, scene: Scene, index: number, rect: Rect): void {
  const ranks = scene.groups?.world_size ?? 0;
  const number = scene.numbers[index];
  const chosen = number !== undefined && number === scene.numbers[scene.rank];
  const radius = rect.width > 14 ? Math.min(5, rect.width / 8) : 0;
  const { x, y, width, height } = rect;
  if (scene.groups && index >= ranks) {
    shapes.rect(x, y, width, height, {
      fill: "var(--surface)",
      ...(width > 5 ? { stroke: "var(--line)" } : {}),
      radius,
    });
  } else if (scene.flowing) {
    sending(shapes, scene, scene.flowing, index, rect, radius);
    if (chosen && width > 5)
      shapes.rect(x, y, width, height, {
        stroke: groupColour(scene),
        width: Math.min(2.5, width / 9),
        radius,
      });
  } else if (chosen) {
    shapes.rect(x, y, width, height, { fill: groupColour(scene), radius });
  } else {
    // neighbouring groups differ in shade
    const alpha = number === undefined ? 0.75 : [0.95, 0.6, 0.78, 0.45][number % 4];
    shapes.rect(x, y, width, height, {
      fill: "var(--device)",
      radius,
      ...(alpha === undefined ? {} : { alpha }),
    });
  }
  if (index === scene.rank || index === scene.hover) {
    const wide = Math.min(3, Math.max(1.5, width / 8));
    shapes.rect(x, y, width, height, {
      stroke: "var(--ink)",
      width: index === scene.rank ? wide : 1,
      radius,
    });
  }
}

/** A device that sends: a stripe for each axes, as wide as its part of the links' time, as strong as it fills them. */
function sending(
  shapes: Shapes,
  { cluster }: Scene,
  flowing: Flowing,
  first: number,
  { x, y, width, height }: Rect,
  radius: number,
  count = 1,
): void {
  shapes.rect(x, y, width, height, { fill: "var(--quiet)", radius });
  const parts = cluster.levels.flatMap((_, level) => flowing(first, count, level).parts);
  const all = parts.reduce((sum, part) => sum + part.share, 0);
  if (all <= 0) return;
  const paint = { alpha: strength(all), radius: parts.length > 1 ? 0 : radius };
  let left = x;
  for (const { axes, share } of parts) {
    const wide = (width * share) / all;
    shapes.rect(left, y, wide, height, { fill: axisColour(axes), ...paint });
    left += wide;
  }
}

/** How strong a colour is where so much of a link is filled: little is seen, too. */
const strength = (share: number): number => 0.3 + 0.7 * Math.sqrt(Math.min(1, share));

function named(shapes: Shapes, scene: Scene, index: number, { x, y, width, height }: Rect): void {
  const number = scene.numbers[index];
  const chosen = number !== undefined && number === scene.numbers[scene.rank];
  const [middle, across] = [y + height / 2, x + width / 2];
  const long = 7.4 * String(index).length + 6;
  const filled = chosen && !scene.flowing;
  if (filled && scene.members.length <= MOST_HOPS)
    shapes.rect(across - long / 2, middle - 8, long, 16, { fill: groupColour(scene), radius: 4 });
  shapes.text(across, middle, String(index), {
    fill: filled ? inkOn(scene.resolved(groupColour(scene))) : "var(--ink)",
    align: "center",
    bold: index === scene.rank,
  });
}

/** A ring around a rank that is too small to be seen. */
function whereabouts(shapes: Shapes, { x, y, width, height }: Rect): void {
  if (width > 9) return;
  const [across, down, radius] = [x + width / 2, y + height / 2, 13];
  shapes.rect(across - radius, down - radius, 2 * radius, 2 * radius, {
    stroke: "var(--surface)",
    width: 5,
    radius,
  });
  shapes.rect(across - radius, down - radius, 2 * radius, 2 * radius, {
    stroke: "var(--ink)",
    width: 2,
    radius,
  });
}

/** A block whose inside is too small: how full it is of the chosen group. */
function closed(shapes: Shapes, scene: Scene, { first, count }: Shown, { x, y, width, height }: Rect): void {
  const ranks = Math.max(0, Math.min(count, (scene.groups?.world_size ?? count) - first));
  if (scene.flowing && ranks) {
    sending(shapes, scene, scene.flowing, first, { x, y, width, height }, 0, count);
    return;
  }
  shapes.rect(x, y, width, height, { fill: "var(--device)", alpha: ranks ? 0.62 : 0.15 });
  const own = countBetween(scene.members, first, first + count);
  if (own) {
    const share = own / count;
    shapes.rect(x, y, width, height, { fill: "var(--surface)" });
    shapes.rect(x, y, width, height, { fill: groupColour(scene), alpha: 0.45 + 0.55 * Math.sqrt(share) });
  }
}

function opened(shapes: Shapes, scene: Scene, { first }: Shown, tier: Tier, rect: Rect): void {
  const { x, y, width, height } = rect;
  const small = Math.min(width, height);
  const radius = Math.min(10, small / 14);
  const level = tier.level;
  shapes.rect(x, y, width, height, {
    fill: level !== undefined && level % 2 === 0 ? "var(--surface)" : "var(--inside)",
    ...(small > 12 ? { stroke: "var(--edge)" } : {}),
    radius,
  });
  const unit = width / tier.width;
  const inset = tier.left * unit;
  const head = (tier.top - tier.left) * unit;
  if (level === undefined) {
    if (inset > 12) shapes.text(x + inset, y + inset / 2, `plane ${(first / tier.devices) % planes(scene)}`);
    return;
  }
  const link = scene.cluster.levels[level];
  const load = scene.links?.[level];
  const room = width - 2 * inset;
  const flow = scene.flowing?.(first, Math.min(tier.devices, scene.places.devices - first), level);
  const thick = Math.min(flow ? 10 : 6, Math.max(1, head * (flow ? 0.34 : 0.22)));
  const named = head + inset * 0.55 > NAMED_HEAD + thick && room > 60;
  const top = y + inset * 0.75 + head - thick;
  if (named && link) {
    const words = [
      link.blocks > 1 ? `${link.name} ${whole(first / tier.devices)}` : link.name,
      flow
        ? `${bytes(flow.rate)}/s of ${bytes(link.device_bytes_per_second)}/s a device`
        : `${bytes(link.device_bytes_per_second)}/s a device`,
    ];
    const middle = y + (top - y) / 2 + 1.5;
    shapes.text(x + inset, middle, words[0] ?? "", { fill: "var(--ink)", bold: true });
    const long = 7.2 * (words[0]?.length ?? 0) + 14;
    if (room > long + (flow ? 185 : 130)) shapes.text(x + inset + long, middle, words[1] ?? "");
    if (!flow && level === scene.busiest && room > long + 290)
      shapes.text(x + width - inset, middle, "busiest", {
        align: "right",
        fill: "var(--ink)",
        bold: true,
      });
  }
  if (head < 2.5) return;
  if (flow) {
    gauge(shapes, flow, x + inset, top, room, thick);
    return;
  }
  if (!load) return;
  shapes.rect(x + inset, top, room, thick, { fill: "var(--sunken)" });
  let left = x + inset;
  const filled = room * Math.min(1, load.full_share);
  for (const [axes, size] of Object.entries(load.sent_bytes)) {
    const long = (filled * size) / (load.total_bytes || 1);
    shapes.rect(left, top, long, thick, { fill: axisColour(axes) });
    left += long;
  }
  if (level === scene.busiest && named)
    shapes.rect(x + inset - 1.5, top - 1.5, room + 3, thick + 3, {
      stroke: "var(--ink)",
      width: 1.5,
      radius: 2,
    });
}

/** How full the links of a block are now, by axes. */
function gauge(shapes: Shapes, { parts }: Flow, x: number, y: number, wide: number, thick: number): void {
  shapes.rect(x, y, wide, thick, { fill: "var(--sunken)" });
  let left = 0;
  for (const { axes, share } of parts) {
    const long = Math.min(share, 1 - left) * wide;
    shapes.rect(x + left * wide, y, long, thick, { fill: axisColour(axes) });
    left += share;
    if (left >= 1) return;
  }
}

const planes = ({ cluster }: Scene): number => {
  const { dimensions, devices } = cluster.levels[0] ?? { dimensions: [], devices: 1 };
  const [rows = 1, columns = 1] = dimensions.slice(-2);
  return Math.max(1, devices / (rows * columns));
};

/** The links of a torus, with the ends that are joined drawn out of the picture's edge. */
function wires(shapes: Shapes, scene: Scene, onScreen: (rect: Rect) => Rect, view: Rect): void {
  const [level] = scene.cluster.levels;
  if (level?.kind !== "torus" || scene.scale < 12) return;
  const [rows, columns] = level.dimensions.slice(-2) as [number, number | undefined];
  if (columns === undefined) return;
  const [wrapsDown, wrapsAcross] = level.wraps.slice(-2);
  const step = 1 + (scene.places.tiers[1]?.stepX ?? 1) - 1;
  eachBlock(scene.places, view, 0.5, (block) => {
    if (block.tier !== 0) return;
    const { x, y, width, height } = onScreen(block.rect);
    const at = block.first % (rows * columns);
    const [row, column] = [Math.floor(at / columns), at % columns];
    const [gap, half] = [step * scene.scale - width, width / 2];
    const paint = { stroke: "var(--edge)", width: Math.min(3, width / 12) };
    const stub = (points: [number, number][]): void => shapes.line(points, { ...paint, dash: 3 });
    if (column < columns - 1)
      shapes.line(
        [
          [x + width, y + half],
          [x + width + gap, y + half],
        ],
        paint,
      );
    else if (wrapsAcross)
      stub([
        [x + width, y + half],
        [x + width + gap * 0.75, y + half],
      ]);
    if (row < rows - 1)
      shapes.line(
        [
          [x + half, y + height],
          [x + half, y + height + gap],
        ],
        paint,
      );
    else if (wrapsDown)
      stub([
        [x + half, y + height],
        [x + half, y + height + gap * 0.75],
      ]);
    if (column === 0 && wrapsAcross)
      stub([
        [x - gap * 0.75, y + half],
        [x, y + half],
      ]);
    if (row === 0 && wrapsDown)
      stub([
        [x + half, y - gap * 0.75],
        [x + half, y],
      ]);
  });
}

/** Lines from member to member of the chosen group, in the order of a ring; those through the busiest level are thick. */
function hops(shapes: Shapes, scene: Scene, onScreen: (rect: Rect) => Rect): void {
  const { members, groups, places, cluster } = scene;
  if (members.length < 2 || members.length > MOST_HOPS || !groups) return;
  const centre = (member: number): [number, number] => {
    const rect = onScreen(placeOf(places, member));
    return [rect.x + rect.width / 2, rect.y + rect.height / 2];
  };
  const ends = [...members];
  const chain = groups.axes === "pp";
  ends.forEach((member, index) => {
    const next = ends[index + 1] ?? (chain || ends.length === 2 ? undefined : ends[0]);
    if (next === undefined) return;
    const level = cluster.levels.findIndex(
      ({ devices }) => Math.floor(member / devices) === Math.floor(next / devices),
    );
    const [from, to] = [centre(member), centre(next)];
    const bold = level === scene.busiest;
    shapes.line(bowed(from, to, scene.scale), { stroke: "var(--surface)", width: bold ? 6 : 4, alpha: 0.7 });
    shapes.line(bowed(from, to, scene.scale), { stroke: groupColour(scene), width: bold ? 3.5 : 1.8 });
  });
}

/** A line with a slight bow, so that hops back along a row are seen beside those that went; straight between neighbours. */
function bowed([x, y]: [number, number], [toX, toY]: [number, number], least: number): [number, number][] {
  const [across, down] = [toX - x, toY - y];
  const far = Math.hypot(across, down) || 1;
  const bow = far < 1.6 * least ? 0 : Math.min(24, far * 0.12);
  return Array.from({ length: 13 }, (_, step) => {
    const share = step / 12;
    const out = (bow * 4 * share * (1 - share)) / far;
    return [x + across * share + down * out, y + down * share - across * out];
  });
}
