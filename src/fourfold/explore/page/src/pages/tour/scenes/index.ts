/** The scenes of the tour, in its order. */

import type { Scene } from "../scene.ts";
import { attention } from "./attention.ts";
import { block } from "./block.ts";
import { cluster } from "./cluster.ts";
import { experts } from "./experts.ts";
import { failures } from "./failures.ts";
import { halves } from "./halves.ts";
import { node } from "./node.ts";
import { pipeline } from "./pipeline.ts";
import { ring } from "./ring.ts";
import { roofline } from "./roofline.ts";
import { state } from "./state.ts";
import { run } from "./whole.ts";
import { zero } from "./zero.ts";

/** The run that all scenes look at: Llama 3 405B as its paper states it. */
export { RUN } from "./run.ts";

export const scenes: readonly Scene[] = [
  state,
  roofline,
  attention,
  block,
  zero,
  ring,
  node,
  pipeline,
  halves,
  experts,
  cluster,
  failures,
  run,
];
