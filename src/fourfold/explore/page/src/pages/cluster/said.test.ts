import { expect, test } from "vitest";
import type { AxesGroups, ClusterDocument, SimulationDocument } from "../../generated/documents.ts";
import { carriedSentence, placeWords, ratioSentences } from "./said.ts";

const CLUSTER = {
  device: { memory_bytes_per_second: 3e12 },
  levels: [
    { name: "nvlink", devices: 8, device_bytes_per_second: 450e9, ratio: 6.67, memory_ratio: 6.67 },
    { name: "rack", devices: 16, device_bytes_per_second: 50e9, ratio: 9, memory_ratio: 60 },
    { name: "pod", devices: 512, device_bytes_per_second: 50e9, ratio: 1, memory_ratio: 60 },
  ],
} as unknown as ClusterDocument;

test("each level is compared with the one inside, and an equal one with the innermost", () => {
  const [node, rack, pod] = ratioSentences(CLUSTER);
  expect(node).toContain("a device sends 450 GB/s: its memory is 6.67 times as fast");
  expect(rack).toContain("through rack of 16, 50.0 GB/s: 9 times slower than inside nvlink.");
  expect(pod).toContain("as fast as through rack, 1/9 of nvlink.");
});

test("the bytes of a step are told by level and axes, and sum to all of them", () => {
  const step = {
    links: [
      { name: "nvlink", total_bytes: 90e9, sent_bytes: { tp: 90e9, "pp+tp": 10 } },
      { name: "rack", total_bytes: 4e9, sent_bytes: { cp: 4e9 } },
      { name: "pod", total_bytes: 6e9, sent_bytes: { dp: 5e9, pp: 1e9 } },
    ],
  } as unknown as SimulationDocument;
  expect(carriedSentence(step)).toBe(
    "Of the bytes that a device sends in a step nvlink carries 90.0 %: tp 90.0 GB. The network beyond it carries 10.0 %: dp 5.00 GB, cp 4.00 GB, pp 1.00 GB.",
  );
  expect(carriedSentence({ links: [] } as unknown as SimulationDocument)).toBe("In a step nothing is sent.");
});

test("an axis lies in one block, or crosses levels", () => {
  const groups = (size: number, members: number[], levels: string[]) =>
    ({ size, members, levels }) as unknown as AxesGroups;
  expect(placeWords(groups(8, [8, 8, 8], ["nvlink"]), CLUSTER)).toBe("all 8 ranks inside one nvlink");
  expect(placeWords(groups(2, [1, 2, 2], ["rack"]), CLUSTER)).toBe(
    "each of 2 ranks in another nvlink, all in one rack; its hops cross rack",
  );
  expect(placeWords(groups(16, [4, 8, 16], ["nvlink", "pod"]), CLUSTER)).toBe(
    "4 of 16 ranks in one nvlink, all in one pod; its hops cross nvlink and pod",
  );
});
