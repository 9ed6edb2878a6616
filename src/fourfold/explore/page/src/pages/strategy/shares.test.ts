import { expect, test } from "vitest";
import { exposedAxes, memoryOf, sharesOf } from "./shares.ts";

test("every kind of exposed communication names its axes, and nothing else does", () => {
  const kinds = {
    "exposed tp communication": "tp",
    "exposed cp+tp communication": "cp+tp",
    "dp_shard reduce": "dp_shard",
    "dp_shard+cp parameter all gather": "dp_shard+cp",
    "dp_shard gather": "dp_shard",
    "tied reduce tied": "tied",
    matmuls: undefined,
    "memory-bound kernels": undefined,
    "pipeline bubble": undefined,
    "norm and other sums": undefined,
    "compute/communication contention": undefined,
    "the software, once a step": undefined,
  };
  for (const [kind, axes] of Object.entries(kinds)) expect(exposedAxes(kind)).toBe(axes);
});

test("no second is lost, and no byte", () => {
  const shares = sharesOf({
    matmuls: 3,
    "exposed tp communication": 1,
    "tp reduce": 0.5,
    "pipeline bubble": 2,
    imbalance: 0.5,
    host: 0.25,
  });
  expect([shares.compute, shares.bubble, shares.imbalance, shares.exposed.get("tp")]).toEqual([
    3.25, 2, 0.5, 1.5,
  ]);
  const memory = memoryOf({
    pp_rank: 0,
    device_bytes: 120,
    program_bytes: 100,
    instruction: "F",
    by_kind_bytes: { params: 10, shard: 5, master: 20, saved: 60, unknown: 5 },
  });
  expect([...memory.values()].reduce((sum, size) => sum + size, 0)).toBe(120);
  expect(memory.get("parameters")).toBe(15);
});
