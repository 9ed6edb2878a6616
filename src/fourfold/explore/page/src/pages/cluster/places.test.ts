import { describe, expect, it } from "vitest";
import type { ClusterDocument, MachineLevel } from "../../generated/documents.ts";
import {
  columnsFor,
  countBetween,
  deviceAt,
  eachBlock,
  membersOf,
  type Places,
  placeOf,
  placesOf,
  type Rect,
  type Shown,
} from "./places.ts";

const level = (devices: number, parts: number, dimensions: number[] = []): MachineLevel =>
  ({
    name: `l${devices}`,
    kind: dimensions.length ? "torus" : "switch",
    devices,
    parts,
    dimensions,
  }) as MachineLevel;
const cluster = (devices: number, ...levels: MachineLevel[]): ClusterDocument =>
  ({ devices, levels }) as ClusterDocument;
const CLUSTERS = [
  cluster(1, level(1, 1)),
  cluster(64, level(8, 8), level(64, 8)),
  cluster(320, level(8, 8), level(160, 20), level(320, 2)),
  cluster(144, level(72, 72), level(144, 2)),
  cluster(64, level(64, 64, [4, 4, 4])),
  cluster(512, level(256, 256, [16, 16]), level(512, 2)),
  cluster(102400, level(8, 8), level(256, 32), level(102400, 400)),
];

function shownBlocks(places: Places, view: Rect, least: number): Shown[] {
  const found: Shown[] = [];
  eachBlock(places, view, least, (block) => found.push(block));
  return found;
}

describe("places", () => {
  it("puts every device where it is found again, and none over another", () => {
    for (const each of CLUSTERS) {
      const places = placesOf(each, 1.8);
      const step = Math.max(1, Math.floor(each.devices / 500));
      for (let device = 0; device < each.devices; device += step) {
        const { x, y, width, height } = placeOf(places, device);
        expect(deviceAt(places, x + width / 2, y + height / 2)).toBe(device);
        for (let tier = 1; tier < places.tiers.length; tier += 1) {
          const block = placeOf(places, device, tier);
          expect(block.x).toBeLessThan(x);
          expect(block.y + block.height).toBeGreaterThan(y + height);
        }
      }
      expect(deviceAt(places, -1, 0.5)).toBeUndefined();
    }
  });

  it("shows all devices once where there is room, and few blocks where there is none", () => {
    const everything = { x: -1e9, y: -1e9, width: 2e9, height: 2e9 };
    for (const each of CLUSTERS) {
      const places = placesOf(each, 1.8);
      const all = shownBlocks(places, everything, 0).filter(({ tier }) => tier === 0);
      expect(all.map(({ first }) => first)).toEqual(
        Array.from({ length: each.devices }, (_, index) => index),
      );
      const wide = places.tiers.at(-1)?.width ?? 1;
      const few = shownBlocks(places, everything, wide / 200);
      expect(few.length).toBeLessThan(40_000);
      const covered = few
        .filter(({ whole, tier }) => whole || tier === 0)
        .reduce((sum, { count }) => sum + count, 0);
      expect(covered).toBe(each.devices);
    }
  });

  it("draws only what is seen", () => {
    const places = placesOf(CLUSTERS[6] as ClusterDocument, 1.8);
    const { x, y } = placeOf(places, 51_234);
    const seen = shownBlocks(places, { x: x + 0.1, y: y + 0.1, width: 0.5, height: 0.5 }, 0);
    expect(seen.filter(({ tier }) => tier === 0).map(({ first }) => first)).toEqual([51_234]);
    expect(seen.length).toBe(places.tiers.length);
  });

  it("finds a group and counts its devices in a block", () => {
    const members = membersOf(Int32Array.from([0, 1, 0, 1, 0, 1, 2, 2]), 1);
    expect([...members]).toEqual([1, 3, 5]);
    expect(countBetween(members, 2, 6)).toBe(2);
    expect(countBetween(members, 4, 5)).toBe(0);
    expect(columnsFor(8, { x: 0, y: 0, width: 1, height: 1 }, 2)).toBe(4);
  });
});
