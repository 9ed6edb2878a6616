/** The pages, in the order of the navigation; each is loaded when it is first opened. */

import type { Component } from "svelte";
import type { PageName } from "../lib/state/url.ts";

interface Page {
  title: string;
  load: () => Promise<{ default: Component }>;
}

export const pages: Record<PageName, Page> = {
  strategy: { title: "Strategy", load: () => import("./strategy/Strategy.svelte") },
  pipeline: { title: "Pipeline", load: () => import("./pipeline/Pipeline.svelte") },
  parallelism: { title: "Parallelism", load: () => import("./parallelism/Parallelism.svelte") },
  collectives: { title: "Collectives", load: () => import("./collectives/Collectives.svelte") },
  device: { title: "Device", load: () => import("./device/Device.svelte") },
  cluster: { title: "Cluster", load: () => import("./cluster/Cluster.svelte") },
  run: { title: "Run", load: () => import("./run/Run.svelte") },
  tasks: { title: "Tasks", load: () => import("./tasks/Tasks.svelte") },
  board: { title: "Board", load: () => import("./board/Board.svelte") },
  accuracy: { title: "Accuracy", load: () => import("./accuracy/Accuracy.svelte") },
  tour: { title: "Tour", load: () => import("./tour/Tour.svelte") },
};
