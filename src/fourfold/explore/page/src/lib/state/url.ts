/** The page's state as the address holds it: `#/PAGE?key=value&...`. Keys are the run file's, options, `PAGE.NAME`, and `figure`: the
 * figure that is scrolled to. */

import { isOfSetup } from "./setup.ts";

export const PAGES = [
  "strategy",
  "pipeline",
  "parallelism",
  "collectives",
  "device",
  "cluster",
  "run",
  "tasks",
  "board",
  "accuracy",
  "tour",
] as const;
export type PageName = (typeof PAGES)[number];
/** The first page that is not of the set-up alone. */
export const AFTER_SETUP = "run" satisfies PageName;
/** Whether a page is of the set-up: from Strategy to Cluster. */
export const ofSetup = (page: PageName): boolean => PAGES.indexOf(page) < PAGES.indexOf(AFTER_SETUP);
export type Params = Readonly<Record<string, string>>;
export interface Place {
  page: PageName;
  params: Params;
}

/** Reads the part of an address after `#`. What it does not know becomes the first page, or `first`. */
export function readHash(hash: string, first: PageName = "strategy"): Place {
  const [path = "", query = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s, 2);
  const page = PAGES.find((each) => each === path) ?? first;
  const params: Record<string, string> = {};
  for (const [key, value] of new URLSearchParams(query)) params[key] = value;
  return { page, params };
}

/** Writes it: keys in order, and nothing escaped that a person could read. */
export function writeHash({ page, params }: Place): string {
  const parts = Object.keys(params)
    .sort()
    .map((key) => `${escaped(key)}=${escaped(params[key] ?? "")}`);
  return parts.length ? `#/${page}?${parts.join("&")}` : `#/${page}`;
}

function escaped(text: string): string {
  return encodeURIComponent(text).replace(/%3A/g, ":").replace(/%2C/g, ",").replace(/%20/g, "+");
}

/** The parameters with some changed; `undefined` takes one away. */
export function withChanges(params: Params, changes: Readonly<Record<string, string | undefined>>): Params {
  const found: Record<string, string> = { ...params };
  for (const [key, value] of Object.entries(changes)) {
    if (value === undefined) delete found[key];
    else found[key] = value;
  }
  return found;
}

/** What the page shows before a person has chosen anything: a model of 8 billion parameters on one node, at a usual price. */
export const START: Params = {
  "model.preset": "llama3.1-8b",
  cluster: "dgx-h100:8",
  "batch.global_sequences": "64",
  "batch.sequence_length": "8192",
  "precision.compute": "bf16",
  "layout.zero": "3",
  "layout.recompute": "selective",
  tokens: "15T",
  price: "2.5",
  failure_hours: "50k",
};

/** What the Cluster page shows before: 64 nodes of two to a rack, so that tp fills a node, cp a rack, and pp and data parallelism cross them. */
export const START_OF_CLUSTER: Params = {
  "model.preset": "llama3-70b",
  cluster: "h100-24576:512",
  "batch.global_sequences": "128",
  "batch.sequence_length": "8192",
  "precision.compute": "bf16",
  "layout.tp": "8",
  "layout.cp": "2",
  "layout.pp": "4",
  "layout.schedule": "interleaved_1f1b",
  "layout.virtual_stages": "5",
  "layout.zero": "1",
  "layout.recompute": "selective",
};

/** Keys without which there is no step: a link may leave them out. */
const NEEDED = ["cluster", "batch.global_sequences", "batch.sequence_length", "precision.compute"] as const;

/** The state, with the start's keys where it says nothing of a model, and with those that a step needs where it has a model alone. */
export function orStart(params: Params, page: PageName = "strategy"): Params {
  if (params.run !== undefined) return params;
  if (!Object.keys(params).some((key) => key.startsWith("model."))) {
    const own = page === "cluster" && !Object.keys(params).some(isOfSetup);
    return { ...(own ? START_OF_CLUSTER : START), ...params };
  }
  const filled = NEEDED.filter((key) => params[key] === undefined).map((key) => [key, START[key] ?? ""]);
  return filled.length > 0 ? { ...Object.fromEntries(filled), ...params } : params;
}
