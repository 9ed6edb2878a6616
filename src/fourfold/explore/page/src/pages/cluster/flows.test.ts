import { expect, test } from "vitest";
import type {
  FlowCurve,
  GroupsDocument,
  LinkDocument,
  SimulationDocument,
} from "../../generated/documents.ts";
import { flowingAt, meanFlow, pieceAt, pipelineRanks } from "./flows.ts";

const curve = (pp_rank: number, ...levels: Record<string, number[]>[]): FlowCurve => ({
  pp_rank,
  ends_seconds: [1, 2],
  levels,
});
const link = (device_bytes_per_second: number) => ({ device_bytes_per_second }) as LinkDocument;
const CURVES = [curve(0, { tp: [100, 0], pp: [0, 20] }, {}), curve(1, { tp: [0, 50] }, { pp: [10, 0] })];
const STEP = { flows_over_time: CURVES, links: [link(200), link(40)] } as unknown as SimulationDocument;
const GROUPS = { world_size: 8, pp_stride: 4 } as GroupsDocument;

test("devices of one pipeline rank send what it sends, and those of several the mean", () => {
  const flowing = flowingAt(STEP, GROUPS, 0.2);
  expect(flowing?.(0, 1, 0)).toEqual({
    rate: 100,
    share: 0.5,
    parts: [{ axes: "tp", rate: 100, share: 0.5 }],
  });
  expect(flowing?.(4, 4, 0).rate).toBe(0);
  expect(flowing?.(0, 8, 0).rate).toBe(50);
  expect(flowing?.(0, 8, 1)).toEqual({
    rate: 5,
    share: 0.125,
    parts: [{ axes: "pp", rate: 5, share: 0.125 }],
  });
  expect(flowingAt(STEP, GROUPS, 0.7)?.(4, 4, 0).rate).toBe(50);
});

test("a device that has no rank sends nothing, and what is not known is not drawn", () => {
  expect(flowingAt(STEP, GROUPS, 0)?.(8, 1, 0).rate).toBe(0);
  expect(flowingAt({ links: [] } as unknown as SimulationDocument, GROUPS, 0)).toBeUndefined();
  expect(flowingAt(STEP, undefined, 0)).toBeUndefined();
});

test("those that send most come first", () => {
  expect(meanFlow(CURVES, 0, 1, link(200)).parts.map(({ axes }) => axes)).toEqual(["tp", "pp"]);
});

test("the step's end is in its last piece", () => {
  const [first] = CURVES;
  expect([0, 0.49, 0.5, 1].map((moment) => first && pieceAt(first, moment))).toEqual([0, 0, 1, 1]);
});

test("pipeline ranks of a block, where pp is outermost and where it is not", () => {
  expect(pipelineRanks(0, 128, 128, 4)).toEqual([0]);
  expect(pipelineRanks(120, 16, 128, 4)).toEqual([0, 1]);
  expect(pipelineRanks(0, 512, 128, 4)).toEqual([0, 1, 2, 3]);
  expect(pipelineRanks(24, 16, 8, 4)).toEqual([0, 3]);
});
