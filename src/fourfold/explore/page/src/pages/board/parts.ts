/** The parts of the page Board, one at a time, each with a place in the address (`board.part`). */

export const PARTS = ["schedule", "program"] as const;
export type Part = (typeof PARTS)[number];

/** The part that an address names, or that has the figure that it scrolls to. */
export const partOf = (named: string | undefined, figure: string | undefined): Part =>
  PARTS.find((part) => part === named) ?? (figure?.startsWith("program-") ? "program" : "schedule");
