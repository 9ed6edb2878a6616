/** Scene: a long text on several ranks. */

import { bytes, perCent, precise, seconds, whole } from "$lib/units.ts";
import { scene } from "../scene.ts";

const LONG = "preset:llama3-405b-128k";

export const ring = scene({
  id: "ring",
  place: "rank",
  title: "A text too long for one rank",
  figure: "ring",
  moves: true,
  parts: { block: "block", run: "simulate" },
  knobs: { cp: { label: "Context-parallel ranks", values: ["2", "4", "8", "16"], start: "8" } },
  asks: ({ cp }) => ({
    block: { run: LONG, overrides: { "layout.cp_method": "ring" }, cp: Number(cp) },
    run: { run: LONG, overrides: {} },
  }),
  guess: {
    question:
      "One run of tokens for each of {cp} ranks, causal attention: how many times the first rank's work has the last?",
    scale: { from: 1, to: 100, written: (value) => `${precise(value)} ×` },
  },
  truth: ({ block }) =>
    block?.ring
      ? Math.max(...block.ring.contiguous_scores) / Math.min(...block.ring.contiguous_scores)
      : undefined,
  numbers: ({ block, run }) => {
    const found = block?.ring ?? undefined;
    const traffic = run?.communication.filter(({ axes }) => axes.split("+").includes("cp")) ?? [];
    const sum = (key: "busy_seconds" | "exposed_seconds" | "sent_bytes"): number =>
      traffic.reduce((all, each) => all + each[key], 0);
    return {
      length: found && whole(found.length),
      shifts: found && whole(found.num_shifts),
      shift: found && bytes(found.shift_bytes),
      ratio: found && precise(Math.max(...found.contiguous_scores) / Math.min(...found.contiguous_scores)),
      share: found && perCent((found.scores[0] ?? 0) / found.scores.reduce((all, each) => all + each, 0)),
      even: found && precise(Math.max(...found.scores) / Math.min(...found.scores)),
      method: run?.layout.cp_method.replaceAll("_", "-"),
      sent: run && bytes(sum("sent_bytes")),
      busy: run && seconds(sum("busy_seconds")),
      exposed: run && seconds(sum("exposed_seconds")),
      step: run && seconds(run.step_seconds),
    };
  },
  sentences: [
    {
      text: "The same model later reads {length} tokens. {cp} ranks of [context parallelism](context-parallelism-cp) share a sequence.",
      part: "rect.work",
    },
    {
      text: "Queries stay, keys and values go round a ring: {shifts} shifts of {shift} in each block.",
      part: "rect.keys",
    },
    {
      text: "Cut in runs, the last rank would do {ratio} times the work of the first, which waits. The marks show it.",
      part: "line.other",
    },
    {
      text: "Cut in twice as many chunks, an early and a late one for each rank, all have {share} of the triangle.",
      part: "rect.now-bar, rect.before",
    },
  ],
  changes: [
    {
      text: "More ranks, {cp} of them, make the plain split worse and leave this one even.",
      part: "line.other",
    },
    {
      text: "The published run gathers keys and values ({method}) in place of a ring: {sent} a device, links busy {busy} of {step}, {exposed} of it waited for.",
    },
  ],
});
