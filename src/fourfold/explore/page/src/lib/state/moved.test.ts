import { expect, test } from "vitest";
import { movedPlace } from "./moved.ts";
import { PAGES, type PageName, readHash, writeHash } from "./url.ts";

const now = (hash: string, alone?: string): string => writeHash(movedPlace(readHash(hash), alone));

test("a link to a choice that moved opens its new page", () => {
  expect(now("#/collectives?collectives.block=2")).toBe(
    "#/parallelism?parallelism.block=2&parallelism.part=tensor",
  );
  expect(now("#/collectives?collectives.cp=2&collectives.turn=0")).toBe(
    "#/parallelism?parallelism.cp=2&parallelism.part=context&parallelism.turn=0",
  );
  expect(now("#/collectives?collectives.ep=8&collectives.tp=2&collectives.exchange=1")).toContain(
    "part=expert",
  );
  expect(now("#/collectives?collectives.moment=50")).toContain("parallelism.moment=50&parallelism.part=zero");
  expect(now("#/cluster?cluster=dgx-h100:16&cluster.frame=9&cluster.tokens=2048")).toBe(
    "#/device?cluster=dgx-h100:16&device.frame=9&device.tokens=2048",
  );
});

test("a link that says where its page stands stays there, with the choices under their new names", () => {
  expect(now("#/collectives?collectives.moment=50&collectives.step=3")).toBe(
    "#/collectives?collectives.step=3&parallelism.moment=50",
  );
  expect(now("#/cluster?cluster.rank=9&cluster.segment=head")).toBe(
    "#/cluster?cluster.rank=9&device.segment=head",
  );
  expect(now("#/strategy?cluster.segment=head")).toBe("#/strategy?device.segment=head");
});

test("a key of the run file is no place of a page", () => {
  expect(now("#/cluster?cluster.attention=flash-2&cluster.frame=9")).toBe(
    "#/device?cluster.attention=flash-2&device.frame=9",
  );
  expect(now("#/cluster?cluster.attention=flash-2")).toBe("#/cluster?cluster.attention=flash-2");
});

test("a figure alone, or one that is scrolled to, is looked for on its new page", () => {
  expect(now("#/collectives", "zero-3")).toBe("#/parallelism?parallelism.part=zero");
  expect(now("#/collectives?collectives.step=3", "experts")).toContain("#/parallelism?");
  expect(now("#/cluster?cluster.rank=3", "roofline")).toBe("#/device?cluster.rank=3");
  expect(now("#/cluster", "levels")).toBe("#/cluster");
  expect(now("#/collectives?figure=ring")).toBe("#/parallelism?figure=ring&parallelism.part=context");
});

test("an address of today means what it says", () => {
  for (const page of PAGES) expect(now(`#/${page}?${page}.mine=1`)).toBe(`#/${page}?${page}.mine=1`);
  const back = (page: PageName) => now(now(`#/${page}?collectives.turn=1`));
  expect(back("collectives")).toBe(now("#/collectives?collectives.turn=1"));
});
