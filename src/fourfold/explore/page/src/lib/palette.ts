/** Which colour a word of a document has. The colours themselves are custom properties of `generated/palette.css`. */

import { ops } from "$generated/ops.ts";
import { palette } from "$generated/palette.ts";

export type MemoryGroup = keyof typeof palette.memory;
export type Axis = keyof typeof palette.axis;
export type Operation = keyof typeof palette.operation;
export const MEMORY_GROUPS = Object.keys(palette.memory) as MemoryGroup[];
export const AXES = Object.keys(palette.axis) as Axis[];
/** The letters whose colours operations have. */
export const OPERATIONS = Object.keys(palette.operation) as Operation[];

function groupOf<Group extends string>(
  table: Readonly<Record<Group, { kinds: readonly string[] }>>,
  kind: string,
): Group | undefined {
  return (Object.keys(table) as Group[]).find((group) => table[group].kinds.includes(kind));
}

/** `saved` -> `activations`. */
export const memoryGroup = (kind: string): MemoryGroup => groupOf(palette.memory, kind) ?? "temporary";

/** `dp_shard+cp` -> `dp`: the first axis that a group names. */
export const axisOf = (axes: string): Axis => groupOf(palette.axis, axes.split("+")[0] ?? "") ?? "dp";

export const axisColour = (axes: string): string => `var(--axis-${axisOf(axes)})`;
export const memoryColour = (group: MemoryGroup): string => `var(--memory-${group})`;
export const memoryName = (group: MemoryGroup): string => palette.memory[group].name;
export const axisName = (axes: string): string => palette.axis[axisOf(axes)].name;

const COLOURS = new Map(ops.map(({ letter, colour }) => [letter, colour as Operation | null]));
/** The letter whose colour an operation has; undefined: it is drawn as other work. */
export const operationOf = (letter: string): Operation | undefined => COLOURS.get(letter) ?? undefined;
export const operationColour = (op: string): string => `var(--operation-${operationOf(op) ?? op})`;
export const operationName = (op: string): string =>
  palette.operation[operationOf(op) ?? (op as Operation)].name;

/** `backward, inputs` -> `backward`. */
const headOf = (phase: string): string => phase.split(",")[0] ?? "";
/** The phases of a step that have a colour, each with that of its first operation. */
export const PHASES = OPERATIONS.flatMap((colour) => {
  const own = ops.find(
    (each) => each.colour === colour && each.phase !== null && headOf(each.phase) === each.phase,
  );
  return own?.phase ? [{ name: own.phase, colour: operationColour(colour) }] : [];
});
/** The colour of a kernel's phase; what is done once a step is the optimizer's, which comes last. */
export const phaseColour = (phase: string): string =>
  (PHASES.find(({ name }) => name === headOf(phase)) ?? PHASES.at(-1))?.colour ?? "";
