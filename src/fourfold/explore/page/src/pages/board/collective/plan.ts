/** Steps of messages, places of ranks, and what a hand does with them. Pure: the engine alone says what is right. */

import type { Changes } from "$lib/state/choices.ts";

/** A: the target adds the chunks to its own; K: it keeps them in place of its own. */
export type How = "A" | "K";
export interface Message {
  how: How;
  chunks: readonly number[];
  source: number;
  target: number;
}
export type Step = readonly Message[];
export type Steps = readonly Step[];

/** Between the steps of a link. */
const BETWEEN = ":";
const WORD = /^([AK])(\d{1,2}(?:,\d{1,2})*)\.(\d{1,2})-(\d{1,2})$/;

/** `A3,4.0-1`; undefined for what is no message. */
export function messageOf(word: string): Message | undefined {
  const [, how, chunks, source, target] = WORD.exec(word) ?? [];
  if (how === undefined || chunks === undefined) return undefined;
  return {
    how: how as How,
    chunks: chunks.split(",").map(Number),
    source: Number(source),
    target: Number(target),
  };
}
export const wordOf = ({ how, chunks, source, target }: Message): string =>
  `${how}${chunks.join(",")}.${source}-${target}`;

/** The steps of a link; undefined where it is none between so many ranks. */
export function readSteps(link: string, ranks: number): Steps | undefined {
  const steps = link === "" ? [] : link.split(BETWEEN).map((text) => text.split(" ").filter((word) => word));
  const found = steps.map((words) => words.map(messageOf));
  const right = (each: Message | undefined): each is Message =>
    each !== undefined && [...each.chunks, each.source, each.target].every((number) => number < ranks);
  return found.every((step) => step.every(right)) ? (found as Message[][]) : undefined;
}

/** Empty steps at the end are none; nothing where all are: an address need not hold it. */
export function linkOf(steps: Steps): string | undefined {
  const last = steps.findLastIndex((step) => step.length > 0);
  return last < 0
    ? undefined
    : steps
        .slice(0, last + 1)
        .map((step) => step.map(wordOf).join(" "))
        .join(BETWEEN);
}

const withStep = (steps: Steps, at: number, step: Step): Steps =>
  Array.from({ length: Math.max(steps.length, at + 1) }, (_, index) =>
    index === at ? step : (steps[index] ?? []),
  );

/** With chunks sent in a step; what goes the same way between the same ranks is one message. */
export function sent(steps: Steps, at: number, message: Message): Steps {
  const step = steps[at] ?? [];
  const same = step.findIndex(
    (each) => each.how === message.how && each.source === message.source && each.target === message.target,
  );
  const joined = step.map((each, index) =>
    index === same ? { ...each, chunks: [...each.chunks, ...message.chunks] } : each,
  );
  return withStep(steps, at, same < 0 ? [...step, message] : joined);
}

export function taken(steps: Steps, at: number, index: number): Steps {
  return withStep(
    steps,
    at,
    (steps[at] ?? []).filter((_, place) => place !== index),
  );
}

/** A message put into another step. */
export function moved(steps: Steps, at: number, index: number, to: number): Steps {
  const message = steps[at]?.[index];
  return message === undefined || to < 0 ? steps : sent(taken(steps, at, index), to, message);
}

/** The message that has a step's chunk of this number, counted over all messages of the step. */
export function messageAt(step: Step, number: number): number {
  let before = 0;
  return step.findIndex((each) => {
    before += each.chunks.length;
    return number < before;
  });
}

/** The steps between fewer ranks: messages of ranks and chunks that are still there. */
export const fitted = (steps: Steps, ranks: number): Steps =>
  steps.map((step) =>
    step.flatMap((each) => {
      const chunks = each.chunks.filter((chunk) => chunk < ranks);
      return chunks.length > 0 && each.source < ranks && each.target < ranks ? [{ ...each, chunks }] : [];
    }),
  );

export const seatsOf = (ranks: number, nodes: number): number => Math.ceil(ranks / nodes);
/** The node of every rank where node after node is filled. */
export const inOrder = (ranks: number, nodes: number): number[] =>
  Array.from({ length: ranks }, (_, rank) => Math.floor(rank / seatsOf(ranks, nodes)));
export const plain = (ranks: number): number[] => Array.from({ length: ranks }, (_, rank) => rank);

/** The ranks of every node, and as many numbers from `ranks` on as it has empty seats. */
export function seated(nodeOf: readonly number[], nodes: number): number[][] {
  const seats = seatsOf(nodeOf.length, nodes);
  let empty = nodeOf.length;
  return Array.from({ length: nodes }, (_, node) => {
    const held = plain(nodeOf.length).filter((rank) => nodeOf[rank] === node);
    while (held.length < seats) {
      held.push(empty);
      empty += 1;
    }
    return held;
  });
}

/** The width of a column, and the left edge of every rank's and empty seat's: nodes stand apart, `margin` is left of them. */
export function columns(
  seats: readonly (readonly number[])[],
  width: number,
  gap: number,
  margin: number,
): { wide: number; left: readonly number[] } {
  const number = seats.flat().length;
  const room = width - margin - gap * (seats.length - 1);
  const wide = Math.max(8, Math.min(84, room / number));
  const start = margin + Math.max(0, room - wide * number) / 2;
  const left: number[] = [];
  let place = 0;
  seats.forEach((ranks, node) => {
    for (const rank of ranks) {
      left[rank] = start + place * wide + node * gap;
      place += 1;
    }
  });
  return { wide, left };
}

/** A rank on another's place, and that one on its. */
export const swapped = (all: readonly number[], one: number, other: number): number[] =>
  all.map((each, index) =>
    index === one ? (all[other] ?? each) : index === other ? (all[one] ?? each) : each,
  );

/** A rank on a node: where the node is full, its last rank takes the place that becomes free. */
export function placedOn(nodeOf: readonly number[], rank: number, node: number, nodes: number): number[] {
  if (nodeOf[rank] === node) return [...nodeOf];
  const there = plain(nodeOf.length).filter((each) => nodeOf[each] === node);
  const last = there.at(-1);
  return there.length < seatsOf(nodeOf.length, nodes) || last === undefined
    ? nodeOf.map((each, index) => (index === rank ? node : each))
    : swapped(nodeOf, rank, last);
}

/** Where a collective takes place. */
export interface Frame {
  kind: string;
  ranks: number;
  nodes: number;
  nodeOf: readonly number[];
  shards: readonly number[];
}
export const placesText = (nodeOf: readonly number[], nodes: number): string | undefined =>
  nodeOf.join() === inOrder(nodeOf.length, nodes).join() ? undefined : nodeOf.join();
export const shardsText = (shards: readonly number[]): string | undefined =>
  shards.join() === plain(shards.length).join() ? undefined : shards.join();
/** Keys that state where a collective takes place. */
export const framed = ({ kind, ranks, nodes, nodeOf, shards }: Frame): Changes => ({
  kind,
  ranks: String(ranks),
  nodes: String(nodes),
  at: placesText(nodeOf, nodes),
  shards: shardsText(shards),
});
