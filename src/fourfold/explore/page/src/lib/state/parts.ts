/** The parts of the page Parallelism, and which of them has a figure: addresses name either. */

/** The parts of the page Parallelism, one at a time. */
export const PARTS = ["tensor", "context", "expert", "zero"] as const;
export type Part = (typeof PARTS)[number];

/** Figures of the page Parallelism, by the part that has them. */
const FIGURES: Readonly<Record<string, Part>> = {
  block: "tensor",
  ring: "context",
  experts: "expert",
  "zero-0": "zero",
  "zero-1": "zero",
  "zero-2": "zero",
  "zero-3": "zero",
  hsdp: "zero",
};
/** The part of Parallelism that has a figure. */
export const partOf = (figure: string | undefined): Part | undefined =>
  figure === undefined ? undefined : FIGURES[figure];
