/** Scene: the whole run, predicted and as it was measured. */

import { count, dollars, duration, perCent, seconds } from "$lib/units.ts";
import { scene } from "../scene.ts";
import { RUN } from "./run.ts";

const DAY = 86_400;

export const run = scene({
  id: "run",
  place: "run",
  title: "Days, dollars, and what was measured",
  figure: "run",
  parts: { step: "simulate" },
  knobs: {
    price: {
      label: "Dollars for a device and hour",
      values: ["1", "1.5", "2", "2.5", "3", "4", "6"],
      start: "2.5",
      written: (value) => `$${value}`,
    },
    tokens: {
      label: "Tokens",
      values: ["1T", "2T", "5T", "10T", "15.6T", "30T"],
      start: "15.6T",
      written: (value) => value.replace("T", " T"),
    },
  },
  asks: ({ price, tokens }) => ({
    step: { run: RUN, overrides: {}, price, tokens },
  }),
  guess: {
    question: "How many days do {tokens} tokens take, failures included?",
    scale: { from: 1, to: 1000, written: (value) => `${Number(value.toPrecision(2))} days` },
  },
  truth: ({ step }) => (step?.run?.seconds == null ? undefined : step.run.seconds / DAY),
  numbers: ({ step }) => {
    const own = step?.run;
    if (!step || !own) return {};
    const spent = Object.values(step.time_shares.exposed).reduce((sum, share) => sum + share, 0);
    return {
      step: seconds(step.step_seconds),
      mfu: perCent(step.mfu),
      compute: perCent(step.time_shares.compute),
      exposed: perCent(spent),
      bubble: perCent(step.time_shares.bubble),
      days: duration(own.seconds),
      hours: own.device_hours === null ? undefined : count(own.device_hours),
      dollars: own.dollars === null ? undefined : dollars(own.dollars),
      published: step.published ? seconds(step.published.step_seconds) : undefined,
      error: step.published ? perCent(Math.abs(step.published.error)) : undefined,
      side: step.published && step.published.error < 0 ? "faster" : "slower",
      low: step.step_seconds_interval ? seconds(step.step_seconds_interval[0]) : undefined,
      high: step.step_seconds_interval ? seconds(step.step_seconds_interval[1]) : undefined,
    };
  },
  sentences: [
    {
      text: "All scenes together make one step: {step}, at an [MFU](mfu) of {mfu}.",
      part: "svg[data-chart] rect.part",
    },
    {
      text: "Devices compute {compute} of the time, wait {exposed} for collectives, and {bubble} for the pipeline.",
      part: "[data-legend]",
    },
    { text: "{tokens} tokens take {days} and {hours} device hours; at {price} each, {dollars}." },
    {
      text: "Meta measured {published} a step, and the prediction is {error} {side}. No blind test: three of Meta's runs fitted its software profile. Four of five such runs lie between {low} and {high}.",
      part: "line.mark",
    },
  ],
  changes: [
    { text: "Another price, {price}, or fewer tokens, {tokens}." },
    { text: "A better step: open the run in Strategy, below, and ask for the best layout." },
  ],
});
