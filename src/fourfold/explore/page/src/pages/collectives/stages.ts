/** ZeRO-0 to 3 and HSDP: what each is, and its request of a setup. */

import type { Setup } from "$lib/state/setup.ts";

export const STAGES = [
  { name: "ZeRO-0", zero: 0, replicas: 1, says: "every rank holds everything" },
  { name: "ZeRO-1", zero: 1, replicas: 1, says: "optimizer states are divided" },
  { name: "ZeRO-2", zero: 2, replicas: 1, says: "gradients too, as soon as they are reduced" },
  { name: "ZeRO-3", zero: 3, replicas: 1, says: "parameters too, gathered when a segment runs" },
  { name: "HSDP", zero: 3, replicas: 2, says: "ZeRO-3 inside each of two replicas" },
] as const;
type StageName = (typeof STAGES)[number]["name"];

/** The requests of all stages. `degree`: of the set-up's data parallelism, where it is stated; replicas share it. */
export function stages(setup: Setup, degree: number | undefined): Record<StageName, object> {
  const { "layout.dp_shard": _, ...kept } = setup.overrides;
  const bodies = STAGES.map(({ name, zero, replicas }) => {
    const shards =
      degree === undefined ? {} : { "layout.dp_shard": Math.max(1, Math.floor(degree / replicas)) };
    const overrides = { ...kept, ...shards, "layout.zero": zero, "layout.dp_replicate": replicas };
    return [name, { ...setup, overrides, memory: true }];
  });
  return Object.fromEntries(bodies) as Record<StageName, object>;
}
