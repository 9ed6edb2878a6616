/** Scene: what failures cost, and what checkpoints and spares make of it. */

import { duration, perCent, precise, whole } from "$lib/units.ts";
import { scene } from "../scene.ts";
import { RUN } from "./run.ts";

const [MINUTE, HOUR] = [60, 3600];
const OWN = "as measured";
/** Minutes below an hour. */
const time = (seconds: number): string =>
  seconds < HOUR && seconds >= MINUTE ? `${precise(seconds / MINUTE)} min` : duration(seconds);

export const failures = scene({
  id: "failures",
  place: "run",
  title: "Something breaks every few hours",
  figure: "failures",
  parts: { step: "simulate" },
  knobs: {
    hours: {
      label: "Hours between failures of one device",
      values: ["5k", "10k", "20k", OWN, "100k", "200k", "500k"],
      start: OWN,
      written: (value) => (value === OWN ? value : `${value} hours`),
    },
    saving: {
      label: "Seconds that a checkpoint takes",
      values: ["1", "5", "20", "60", "300", "900"],
      start: "60",
      written: (value) => time(Number(value)),
    },
    restart: {
      label: "Seconds that a restart takes",
      values: ["60", "300", "600", "1800", "3600"],
      start: "600",
      written: (value) => time(Number(value)),
    },
  },
  asks: ({ hours, saving, restart }) => ({
    step: {
      run: RUN,
      overrides: {},
      checkpoint_seconds: saving,
      restart_seconds: restart,
      ...(hours === OWN ? {} : { failure_hours: hours }),
    },
  }),
  guess: {
    question: "A device of its kind runs for years. How many hours does the whole job run between failures?",
    scale: { from: 0.1, to: 1000, written: (value) => `${Number(value.toPrecision(2))} h` },
  },
  truth: ({ step }) => {
    const found = step?.run?.failures;
    return found ? found.mean_seconds_between / HOUR : undefined;
  },
  numbers: ({ step }) => {
    const [run, found] = [step?.run, step?.run?.failures];
    if (!step || !run || !found) return {};
    return {
      devices: whole(step.devices),
      between: time(found.mean_seconds_between),
      expected: found.expected === null ? "no end of them" : whole(found.expected),
      best: time(found.best_interval_seconds),
      steps: whole(found.checkpoint_steps),
      goodput: perCent(found.goodput_with_spares),
      without: perCent(found.goodput_without_spares),
      spares: whole(found.spare_devices),
      repair: time(found.repair_seconds),
      training: duration(run.training_seconds),
      total: duration(run.seconds),
    };
  },
  sentences: [
    {
      text: "{devices} devices together fail every {between}: {expected} times before the run ends.",
      part: ".days",
    },
    {
      text: "Each time the steps since the last checkpoint are lost, and a restart takes {restart}.",
      part: ".days",
    },
    {
      text: "A checkpoint takes {saving}. The best time to the next is {best}, or {steps} steps.",
      part: ".rows",
    },
    { text: "[Goodput](goodput) is then {goodput}: {training} of steps become {total}.", part: ".rows" },
  ],
  changes: [
    {
      text: "Without {spares} spares each failure waits {repair} for a repair: goodput {without}.",
      part: ".rows",
    },
    {
      text: "Devices that fail {hours}, checkpoints of {saving}, restarts of {restart}: drag them.",
      part: ".days",
    },
  ],
});
