/** Colours and keys of a roofline's kernels: the operations' colours of the timeline, by phase. */

import type { KernelPoint } from "$generated/documents.ts";

export const PHASES = [
  { name: "forward", colour: "var(--operation-F)" },
  { name: "backward", colour: "var(--operation-B)" },
  { name: "recomputation", colour: "var(--operation-K)" },
  { name: "optimizer", colour: "var(--operation-U)" },
] as const;

/** `backward, inputs` and `backward, weights` are backward; the gradient norm is the optimizer's. */
export function colourOf({ phase }: KernelPoint): string {
  const found = PHASES.find(({ name }) => phase.startsWith(name));
  return found?.colour ?? "var(--operation-U)";
}

export const keyOf = ({ segment, phase, name }: KernelPoint): string => `${segment}/${phase}/${name}`;

/** Without `_proj`, which the parameters of every block have; what is done once a step by its phase. */
export const nameOf = ({ name, phase }: KernelPoint): string =>
  name === "elementwise" ? phase : name.replaceAll("_proj", "");
