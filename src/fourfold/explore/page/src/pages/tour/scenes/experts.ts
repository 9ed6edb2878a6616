/** Scene: tokens travel to their experts. DeepSeek-V3 in place of Llama 3. */

import { bytes, perCent, seconds, whole } from "$lib/units.ts";
import { scene } from "../scene.ts";

const MIXTURE = "preset:deepseek-v3-2k";
const DRAWN = 4;

export const experts = scene({
  id: "experts",
  place: "cluster",
  title: "Tokens travel to their experts",
  figure: "experts",
  moves: true,
  parts: { block: "block", step: "simulate" },
  knobs: {
    ep: { label: "Expert-parallel ranks", values: ["8", "16", "32", "64"], start: "64" },
    overlap: { label: "Exchange behind another microbatch", values: ["off", "on"], start: "off" },
  },
  asks: ({ ep, overlap }) => ({
    block: { run: MIXTURE, overrides: {}, ep: DRAWN },
    step: {
      run: MIXTURE,
      overrides: { "layout.ep": Number(ep), "layout.overlap_experts": overlap === "on" },
    },
  }),
  guess: {
    question:
      "How many bytes does one device send to experts and back in a step, with experts over {ep} ranks?",
    scale: { from: 1e6, to: 1e14, written: (value) => bytes(value) },
  },
  truth: ({ step }) => step?.communication.find(({ axes }) => axes === "ep")?.sent_bytes,
  numbers: ({ block, step }) => {
    const found = block?.experts ?? undefined;
    const traffic = step?.communication.find(({ axes }) => axes === "ep");
    return {
      experts: found && whole(found.num_experts),
      chosen: found && whole(found.top_k),
      sent: traffic && bytes(traffic.sent_bytes),
      levels: traffic?.levels.join(" and "),
      busy: traffic && seconds(traffic.busy_seconds),
      exposed: traffic && seconds(traffic.exposed_seconds),
      behind: traffic && perCent(1 - traffic.exposed_seconds / traffic.busy_seconds, 0),
      step: step && seconds(step.step_seconds),
      memory: step && bytes(step.memory_bytes),
      fits: step && (step.fits ? "fits" : "does not fit"),
      room: step && bytes(step.memory_limit_bytes),
    };
  },
  sentences: [
    {
      text: "A second course, DeepSeek-V3: {experts} experts in a block, and a [router](router) that gives each token {chosen}.",
      part: "rect.expert",
    },
    {
      text: "Most are on other ranks, so a token's row goes there by [all-to-all](all-to-all), and comes back.",
      part: "path.away",
    },
    {
      text: "In a step a device sends {sent} over {levels}. Links are busy for {busy} of {step}.",
      part: ".network svg",
    },
    {
      text: "The step waits for {exposed}. With overlap {overlap}, {behind} passes while something else computes.",
      part: ".network svg",
    },
  ],
  changes: [
    {
      text: "Experts over {ep} ranks: the fewer, the shorter the way, and the more experts a device holds. Memory peaks at {memory} and {fits} into {room}.",
      part: ".network svg",
    },
    { text: "Turn overlap {overlap}: a microbatch's exchange then runs behind another one's computation." },
  ],
});
