/** The board of the address: its size, its rows, the times of its stages; and every change of them. */

import type { GoalDocument } from "$generated/documents.ts";
import { times as PASSES } from "$generated/ops.ts";
import { ask } from "$lib/api/client.ts";
import { Live } from "$lib/api/live.svelte.ts";
import { type Changes, Choices, CONTROLS } from "$lib/state/choices.ts";
import { fitted, line, linkOf, type Operation, type Rows, readRows } from "./order.ts";

export { PASSES };
type Pass = (typeof PASSES)[number];

class Board extends Choices {
  /** What the engine says of it. */
  readonly live = new Live("board", "board");

  constructor() {
    super("board", CONTROLS);
  }

  get ranks(): number {
    return this.number("ranks", 3);
  }
  get microbatches(): number {
    return this.number("microbatches", 4);
  }
  /** The rank of every stage. */
  get stages(): readonly number[] {
    const stated = this.own("stages");
    return stated ? stated.split(",").map(Number) : line(this.ranks);
  }
  /** The stages of a rank. */
  held(rank: number): number[] {
    return this.stages.flatMap((each, stage) => (each === rank ? [stage] : []));
  }
  get link(): string {
    return this.own("rows") ?? "";
  }
  /** Undefined where the link's text is no board: the engine says why. */
  get rows(): Rows | undefined {
    return readRows(this.link, this.ranks);
  }
  time(pass: Pass): number {
    return this.number(pass, pass === "transfer" ? 0 : 1);
  }
  /** How many times longer each stage takes; undefined: all alike. */
  get durations(): number[] | undefined {
    return this.own("durations")?.split(",").map(Number);
  }
  get operations(): readonly Operation[] {
    return this.live.document?.operations ?? [];
  }

  /** The request of what is on the board. */
  get body(): Record<string, unknown> {
    return { ...this.#size(), rows: this.link };
  }

  #size(): Record<string, unknown> {
    const durations = this.durations;
    return {
      ranks: this.ranks,
      microbatches: this.microbatches,
      stages: this.stages,
      times: Object.fromEntries(PASSES.map((pass) => [pass, this.time(pass)])),
      ...(durations ? { durations } : {}),
    };
  }

  /** A move of a hand: each is a step of undo. */
  put(rows: Rows): void {
    this.move({ rows: linkOf(rows) });
  }

  /** Another size: what has a place there stays. */
  resize(ranks: number, microbatches: number, stages: readonly number[]): void {
    const rows = fitted(this.rows ?? [], ranks, stages, microbatches);
    const durations = this.durations?.length === stages.length ? this.own("durations") : undefined;
    this.move({ ...sized(ranks, microbatches, stages), rows: linkOf(rows), durations });
  }

  setTime(pass: Pass, value: number): void {
    this.change({ [pass]: String(value) });
  }
  setDuration(stage: number, value: number): void {
    const all = this.stages.map((_, number) => this.durations?.[number] ?? 1);
    this.change({ durations: all.map((each, number) => (number === stage ? value : each)).join(",") });
  }

  clear(): void {
    this.move({ rows: undefined });
  }

  /** Lets a schedule write all rows. Throws the engine's message. */
  async fill(name: string, limit?: number): Promise<void> {
    const found = await ask("board", { ...this.#size(), fill: name, ...(limit ? { limit } : {}) }, "fill");
    this.move({ rows: found.link });
  }

  /** Opens a schedule file. Throws the engine's message. */
  async open(file: string): Promise<void> {
    const { ranks, microbatches, stages, link } = await ask("board", { file }, "file");
    this.move({ ...sized(ranks, microbatches, stages), rows: link, durations: undefined });
  }

  /** A goal's board, with these rows. */
  begin(goal: GoalDocument, rows: string | undefined): void {
    const times = PASSES.map((pass) => [pass, String(goal.times[pass] ?? 0)]);
    this.move({
      ...sized(goal.ranks, goal.microbatches, goal.stages),
      ...Object.fromEntries(times),
      durations: goal.durations?.join(","),
      rows,
    });
  }
}

function sized(ranks: number, microbatches: number, stages: readonly number[]): Changes {
  const plain = stages.join() === line(ranks).join();
  return {
    ranks: String(ranks),
    microbatches: String(microbatches),
    stages: plain ? undefined : stages.join(","),
  };
}

export const board = new Board();
