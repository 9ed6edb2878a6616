/** Which colour a word of a document has. The colours themselves are custom properties of `generated/palette.css`. */

import { palette } from "$generated/palette.ts";

export type MemoryGroup = keyof typeof palette.memory;
export type Axis = keyof typeof palette.axis;
export const MEMORY_GROUPS = Object.keys(palette.memory) as MemoryGroup[];
export const AXES = Object.keys(palette.axis) as Axis[];

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
