/** Orders of instructions, and the text of an address that says where those stand that were moved. Pure: the verifier alone says what
 * is right. */

/** A list, by the compiler's numbers of its instructions; numbers that are missing are taken out. */
export type Order = readonly number[];

/** Between the lists of a link, between its moves. */
const [LISTS, MOVES] = [":", "."] as const;
const MOVE = /^(\d{1,4})(?:-(\d{1,4})|x)$/;

/** The orders of lists so long; undefined where the text is none of them: the engine says why. */
export function readLink(text: string, lengths: readonly number[]): Order[] | undefined {
  const parts = text === "" ? lengths.map(() => "") : text.split(LISTS);
  if (parts.length !== lengths.length) return undefined;
  const found = parts.map((part, list) => readOrder(part, lengths[list] ?? 0));
  return found.every((order) => order !== undefined) ? found : undefined;
}

function readOrder(text: string, length: number): Order | undefined {
  const moved = new Set<number>();
  const places = new Map<number, number>();
  for (const word of text === "" ? [] : text.split(MOVES)) {
    const [, which, place] = MOVE.exec(word) ?? [];
    if (which === undefined || Number(which) >= length || moved.has(Number(which))) return undefined;
    if (place !== undefined && places.has(Number(place))) return undefined;
    moved.add(Number(which));
    if (place !== undefined) places.set(Number(place), Number(which));
  }
  const left = length - moved.size + places.size;
  if ([...places.keys()].some((place) => place >= left)) return undefined;
  const others = Array.from({ length }, (_, number) => number).filter((number) => !moved.has(number));
  return Array.from({ length: left }, (_, place) => places.get(place) ?? others.shift() ?? 0);
}

/** The shortest text of these orders; empty where nothing is moved. `movable`: by list and number. */
export function linkOf(orders: readonly Order[], movable: readonly (readonly boolean[])[]): string {
  const parts = orders.map((order, list) => partOf(order, movable[list] ?? []));
  return parts.some((part) => part !== "") ? parts.join(LISTS) : "";
}

function partOf(order: Order, movable: readonly boolean[]): string {
  const kept = keptOf(order, movable);
  const there = new Set(order);
  const moves = order.flatMap((which, place) => (kept.has(which) ? [] : [`${which}-${place}`]));
  const out = movable.flatMap((_, which) => (there.has(which) ? [] : [`${which}x`]));
  return [...moves, ...out].join(MOVES);
}

/** The most instructions whose order is the compiler's, all that compute among them: the others are moved. */
export function keptOf(order: Order, movable: readonly boolean[]): Set<number> {
  const fixed = order.filter((which) => !movable[which]);
  const kept = new Set(fixed);
  const bounds = [-1, ...fixed, movable.length];
  const places = [-1, ...fixed.map((which) => order.indexOf(which)), order.length];
  for (let gap = 0; gap + 1 < bounds.length; gap += 1) {
    const [low, high] = [bounds[gap] ?? 0, bounds[gap + 1] ?? 0];
    const between = order.slice((places[gap] ?? 0) + 1, places[gap + 1]);
    for (const which of rising(between.filter((each) => low < each && each < high))) kept.add(which);
  }
  return kept;
}

/** A longest rising subsequence, by patience sorting. */
function rising(numbers: readonly number[]): number[] {
  const tails: number[] = [];
  const before = new Map<number, number | undefined>();
  for (const number of numbers) {
    const found = tails.findIndex((tail) => tail >= number);
    const at = found < 0 ? tails.length : found;
    before.set(number, tails[at - 1]);
    tails[at] = number;
  }
  const result: number[] = [];
  for (let last = tails.at(-1); last !== undefined; last = before.get(last)) result.unshift(last);
  return result;
}

/** An instruction put at a place of the order without it; within its ends. */
export function moved(order: Order, which: number, place: number): Order {
  const rest = order.filter((each) => each !== which);
  const at = Math.min(Math.max(0, place), rest.length);
  return [...rest.slice(0, at), which, ...rest.slice(at)];
}

export const without = (order: Order, which: number): Order => order.filter((each) => each !== which);

/** The place at which a row dropped at a height would stand, in a list of rows so tall. */
export function placeAt(y: number, tall: number, length: number): number {
  return Math.min(Math.max(0, Math.round(y / tall)), length);
}

/** Where a dragged row lands: a gap counts rows with the dragged one among them. */
export const landing = (from: number, gap: number): number => (gap > from ? gap - 1 : gap);
