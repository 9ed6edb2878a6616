/** Rows of entries and what a hand does with them. Pure: the verifier alone says what is right. */

export type Rows = readonly (readonly string[])[];
/** A place in a row; one behind its last entry is its end. */
export interface Place {
  rank: number;
  index: number;
}
export interface Entry {
  letter: string;
  stage: number;
  microbatch: number;
}
/** An operation, and those that a stage and microbatch then has none of. */
export interface Operation {
  letter: string;
  excludes: readonly string[];
}

/** Between the rows of a link. */
const BETWEEN = ":";
const ENTRY = /^([A-Z])(\d{1,7})\.(\d{1,7})$/;

/** `F3.0`; undefined for what is no entry. */
export function entryOf(token: string): Entry | undefined {
  const [, letter, stage, microbatch] = ENTRY.exec(token) ?? [];
  return letter === undefined ? undefined : { letter, stage: Number(stage), microbatch: Number(microbatch) };
}
export const tokenOf = ({ letter, stage, microbatch }: Entry): string => `${letter}${stage}.${microbatch}`;

/** The rows of a link; undefined where it is none of so many ranks. */
export function readRows(link: string, ranks: number): Rows | undefined {
  const rows = link === "" ? Array.from({ length: ranks }, () => "") : link.split(BETWEEN);
  const found = rows.map((row) => row.split(" ").filter((token) => token !== ""));
  const right = found.length === ranks && found.every((row) => row.every((token) => entryOf(token)));
  return right ? found : undefined;
}
/** Nothing where all rows are empty: an address need not hold it. */
export const linkOf = (rows: Rows): string | undefined =>
  rows.some((row) => row.length > 0) ? rows.map((row) => row.join(" ")).join(BETWEEN) : undefined;

const withRow = (rows: Rows, rank: number, row: readonly string[]): Rows =>
  rows.map((each, number) => (number === rank ? row : each));

export function inserted(rows: Rows, { rank, index }: Place, token: string): Rows {
  const row = rows[rank] ?? [];
  return withRow(rows, rank, [...row.slice(0, index), token, ...row.slice(index)]);
}

export function removed(rows: Rows, { rank, index }: Place): Rows {
  return withRow(rows, rank, rows[rank]?.filter((_, place) => place !== index) ?? []);
}

/** An entry taken from one place and put before what stands at another, as both are before the move. */
export function moved(rows: Rows, from: Place, to: Place): Rows {
  const token = rows[from.rank]?.[from.index];
  if (token === undefined) return rows;
  const behind = from.rank === to.rank && to.index > from.index ? 1 : 0;
  return inserted(removed(rows, from), { rank: to.rank, index: to.index - behind }, token);
}

/** The first microbatch that an operation of a stage may still take, as an entry; undefined where all are there. */
export function nextEntry(
  rows: Rows,
  operation: Operation,
  stage: number,
  microbatches: number,
): string | undefined {
  const there = new Set(rows.flat());
  const letters = [operation.letter, ...operation.excludes];
  for (let microbatch = 0; microbatch < microbatches; microbatch += 1) {
    const taken = letters.some((letter) => there.has(tokenOf({ letter, stage, microbatch })));
    if (!taken) return tokenOf({ letter: operation.letter, stage, microbatch });
  }
  return undefined;
}

/** The rows on a board of another size: those entries that have a place there. */
export function fitted(rows: Rows, ranks: number, stages: readonly number[], microbatches: number): Rows {
  const all = rows.flat();
  return Array.from({ length: ranks }, (_, rank) =>
    all.filter((token) => {
      const entry = entryOf(token);
      return entry && stages[entry.stage] === rank && entry.microbatch < microbatches;
    }),
  );
}

/** Where the stages lie: one a rank, or two on a V. */
export const line = (ranks: number): number[] => Array.from({ length: ranks }, (_, rank) => rank);
export const vee = (ranks: number): number[] => [...line(ranks), ...line(ranks).reverse()];
export const round = (ranks: number): number[] => [...line(ranks), ...line(ranks)];
