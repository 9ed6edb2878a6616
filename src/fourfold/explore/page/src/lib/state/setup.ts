/** The request that a state stands for: `run`, `overrides` by dotted keys, and options of `fourfold simulate`. */

import type { Params } from "./url.ts";

export type Value = string | number | boolean | Value[] | { [key: string]: Value };
export interface Setup {
  run?: string;
  overrides: Record<string, Value>;
  [option: string]: Value | undefined;
}

export const SECTIONS = ["model", "batch", "layout", "precision", "optimizer", "data"] as const;
/** Keys of other sections, whose names pages use for their own parameters. */
export const SINGLE = [
  "run.attention_backend",
  "cluster.software",
  "cluster.attention",
  "cluster.norms",
  "cluster.softmax",
  "cluster.loss",
  "cluster.rotary",
  "cluster.optimizer",
  "cluster.tp_collectives",
  "cluster.dispatcher",
  "cluster.ep_collectives",
  "cluster.experts",
  "cluster.launches",
  "checkpoint.memory_every_steps",
] as const;
export const OPTIONS = [
  "cluster",
  "software",
  "gemm_dtype",
  "context_bytes",
  "fragmentation",
  "tokens",
  "failure_hours",
  "checkpoint_seconds",
  "restart_seconds",
  "repair_seconds",
  "price",
] as const;
/** Whether a parameter is of the set-up, and not of a page. */
export const isOfSetup = (key: string): boolean =>
  key === "run" || isKey(key) || OPTIONS.some((option) => option === key);

const isKey = (key: string): boolean =>
  SECTIONS.some((section) => key.startsWith(`${section}.`)) || SINGLE.some((each) => each === key);

/** A parameter's value: a number, true, false or a list where it reads as one, else text. */
export function valueFrom(text: string): Value {
  if (!/^(-?[\d.]+(e[+-]?\d+)?|true|false|[[{].*)$/i.test(text)) return text;
  try {
    return JSON.parse(text) as Value;
  } catch {
    return text;
  }
}

/** A value as a parameter. */
export function textOf(value: Value): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** The request that a state of one set-up stands for. */
export function setupOf(params: Params): Setup {
  const setup: Setup = { overrides: {} };
  if (params.run !== undefined) setup.run = params.run;
  for (const [key, text] of Object.entries(params)) if (isKey(key)) setup.overrides[key] = valueFrom(text);
  for (const option of OPTIONS) {
    const text = params[option];
    if (text === undefined || text === "") continue;
    setup[option] = option === "fragmentation" ? Number(text) : text;
  }
  return setup;
}
