/** The run that the tour goes through, and requests that several scenes make of it. */

import { times } from "$generated/ops.ts";

/** Llama Team 2024, table 4, row 2. */
export const RUN = "preset:llama3-405b-16k";
/** The cluster's kind, of which a scene may take another number of devices. */
export const CLUSTER = "h100-24576";
/** The run's step with keys that a scene changes. */
export const step = (overrides: Record<string, unknown> = {}): object => ({ run: RUN, overrides });
/** Forward, input and weight gradients take one unit each, transfers none. */
export const UNITS = Object.fromEntries(times.map((pass) => [pass, pass === "transfer" ? 0 : 1]));
