/** Keys and names of a roofline's kernels. */

import type { KernelPoint } from "$generated/documents.ts";

export const keyOf = ({ segment, phase, name }: KernelPoint): string => `${segment}/${phase}/${name}`;

/** Without `_proj`, which the parameters of every block have; what is done once a step by its phase. */
export const nameOf = ({ name, phase }: KernelPoint): string =>
  name === "elementwise" ? phase : name.replaceAll("_proj", "");
