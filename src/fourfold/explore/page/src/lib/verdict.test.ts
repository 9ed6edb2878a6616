import { expect, test } from "vitest";
import { remedyOf } from "./verdict.ts";

test("the value that works is the change of its key", () => {
  const cases: [string, { key: string; value: string } | undefined][] = [
    [
      "run: layout.tp = 3: does not divide model.num_heads = 32; a value that works: 4",
      { key: "layout.tp", value: "4" },
    ],
    [
      "batch.sequence_length = 131072 exceeds model.max_position = 8192; allowed: at most 8192",
      { key: "batch.sequence_length", value: "8192" },
    ],
    ["the layout needs more; what works: layout.dp_shard=8", { key: "layout.dp_shard", value: "8" }],
    [
      "layout.schedule = 'x' is unknown; a value that works: '1f1b'",
      { key: "layout.schedule", value: "1f1b" },
    ],
    [
      "layout.virtual_stages = 3: two stages; a value that works: 2, or another",
      { key: "layout.virtual_stages", value: "2" },
    ],
    ["nothing fits", undefined],
    ["--price 'free': a value that works: --price 2.5", undefined],
  ];
  for (const [message, change] of cases) expect(remedyOf(message), message).toEqual(change);
});
