/** The scenes of the tour, in its order. */

import type { Scene } from "../scene.ts";
import { pipeline } from "./pipeline.ts";
import { roofline } from "./roofline.ts";
import { state } from "./state.ts";

/** The run that all scenes look at: Llama 3 405B as its paper states it. */
export { RUN } from "./run.ts";

export const scenes: readonly Scene[] = [state, roofline, pipeline];
