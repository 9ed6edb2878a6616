/** The figures of the scenes, each loaded when its scene is read: they stand the figures of the other pages at the scene's places. */

import type { Component } from "svelte";
import type { FigureProps } from "../tour.svelte.ts";

export const figures: Readonly<Record<string, () => Promise<{ default: Component<FigureProps> }>>> = {
  boxes: () => import("./Boxes.svelte"),
  roofline: () => import("./Roofline.svelte"),
  attention: () => import("./Attention.svelte"),
  block: () => import("./Block.svelte"),
  node: () => import("./Node.svelte"),
  pipeline: () => import("./Pipeline.svelte"),
  zero: () => import("./Zero.svelte"),
  ring: () => import("./Ring.svelte"),
  experts: () => import("./Experts.svelte"),
  cluster: () => import("./Cluster.svelte"),
  failures: () => import("./Failures.svelte"),
  run: () => import("./Run.svelte"),
};
