/** Scene: where each axis of the layout lies on the cluster. */

import type { SimulationDocument } from "$generated/documents.ts";
import { bytes, perCent, seconds, whole } from "$lib/units.ts";
import { scene } from "../scene.ts";
import { CLUSTER, step } from "./run.ts";

const sentOf = (found: SimulationDocument): number =>
  found.communication.reduce((sum, each) => sum + each.sent_bytes, 0);

export const cluster = scene({
  id: "cluster",
  place: "cluster",
  title: "The order of the axes is a layout too",
  figure: "cluster",
  parts: { first: "simulate", machine: "cluster", groups: "groups", step: "simulate", other: "simulate" },
  knobs: {
    axes: { label: "Axis whose groups are drawn", values: ["tp", "pp", "dp_shard"], start: "dp_shard" },
    outermost: { label: "Outermost axis", values: ["dp", "pp"], start: "dp" },
  },
  asks: ({ axes, outermost }) => ({
    first: step(),
    machine: ({ first }) => first && { cluster: `${CLUSTER}:${first.devices}` },
    groups: { ...step({ "layout.outermost": outermost }), rank: 0, axes },
    step: step({ "layout.outermost": outermost }),
    other: step({ "layout.outermost": outermost === "dp" ? "pp" : "dp" }),
  }),
  guess: {
    question: "Which links does a step fill for the largest part of its time?",
    options: [
      { value: "nvlink", label: "NVLink in a node" },
      { value: "rack", label: "in a rack" },
      { value: "pod", label: "in a pod" },
      { value: "aggregation", label: "between pods" },
    ],
  },
  truth: ({ step: found }) =>
    found?.links.reduce((most, each) => (each.full_seconds > most.full_seconds ? each : most)).name,
  numbers: ({ machine, groups, step: found, other }, { axes }) => {
    const group = groups?.choices.find((each) => each.axes === axes);
    const outer = machine?.levels.at(-1);
    const busiest = found?.links.reduce((most, each) =>
      each.full_seconds > most.full_seconds ? each : most,
    );
    return {
      devices: machine && whole(machine.devices),
      nodes: machine && whole(machine.levels[0]?.blocks ?? 0),
      pods: machine && whole(machine.levels.at(-2)?.blocks ?? 0),
      inner: machine && `${bytes(machine.levels[0]?.device_bytes_per_second ?? 0)}/s`,
      outer: outer && `${bytes(outer.device_bytes_per_second)}/s`,
      size: group && whole(group.size),
      count: group && whole(group.groups),
      levels: group?.levels.join(" and "),
      busiest: busiest?.name,
      full: busiest && perCent(busiest.full_share),
      step: found && seconds(found.step_seconds),
      other: other && seconds(other.step_seconds),
      sent: found && bytes(sentOf(found)),
      otherSent: other && bytes(sentOf(other)),
    };
  },
  sentences: [
    {
      text: "{devices} devices in {nodes} nodes and {pods} pods. A device sends {inner} in its node, {outer} between pods.",
      part: ".levels svg",
    },
    {
      text: "The {axes} axis has {count} groups of {size} ranks. They cross {levels}.",
      part: ".machine canvas",
    },
    {
      text: "{busiest} is busiest, with {full} of the step: most bytes take the fastest links, and that is intended.",
      part: ".levels rect.busiest",
    },
    {
      text: "With {outermost} outermost the step takes {step}, with the other axis there {other}. A device sends {sent} with the one, {otherSent} with the other.",
      part: ".levels svg",
    },
  ],
  changes: [
    {
      text: "Put {outermost} outermost: a pipeline's transfers wait for one another, so they cost more on slow links than gradients do.",
      part: ".levels svg",
    },
    { text: "See the groups of {axes}.", part: ".machine canvas" },
  ],
});
