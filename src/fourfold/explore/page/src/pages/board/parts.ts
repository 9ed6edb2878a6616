/** The parts of the page Board, one at a time, each with a place in the address (`board.part`). */

export const PARTS = ["schedule", "program", "collective"] as const;
export type Part = (typeof PARTS)[number];

/** What a person does in each. */
export const TITLES: Record<Part, string> = {
  schedule: "Build it yourself",
  program: "Move the program",
  collective: "Build a collective",
};

/** The part that an address names, or that has the figure that it scrolls to. */
export const partOf = (named: string | undefined, figure: string | undefined): Part =>
  PARTS.find((part) => part === named) ??
  (figure?.startsWith("program-") ? "program" : figure?.endsWith("-by-hand") ? "collective" : "schedule");
