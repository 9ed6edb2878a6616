/** The collective of the address: what it is to reach, where its ranks are, its steps; and every change of them. */

import type { HandGoalDocument } from "$generated/documents.ts";
import { ask } from "$lib/api/client.ts";
import { Live } from "$lib/api/live.svelte.ts";
import { Choices, CONTROLS } from "$lib/state/choices.ts";
import {
  fitted,
  framed,
  inOrder,
  linkOf,
  placesText,
  plain,
  readSteps,
  type Steps,
  shardsText,
} from "./plan.ts";

export const KINDS = [
  { value: "all_gather", label: "all-gather" },
  { value: "reduce_scatter", label: "reduce-scatter" },
  { value: "all_reduce", label: "all-reduce" },
  { value: "broadcast", label: "broadcast" },
] as const;
export type Kind = (typeof KINDS)[number]["value"];
export const [LEAST, MOST] = [2, 8] as const;

class Hand extends Choices {
  /** What the engine says of it. */
  readonly live = new Live("by_hand", "board.by_hand");

  constructor() {
    super("board", CONTROLS, "c");
  }

  get kind(): Kind {
    const found = this.own("kind");
    return KINDS.find(({ value }) => value === found)?.value ?? "all_gather";
  }
  get ranks(): number {
    return this.number("ranks", 4);
  }
  get nodes(): number {
    return this.number("nodes", 1);
  }
  get nodeOf(): readonly number[] {
    return this.own("at")?.split(",").map(Number) ?? inOrder(this.ranks, this.nodes);
  }
  get shards(): readonly number[] {
    return this.own("shards")?.split(",").map(Number) ?? plain(this.ranks);
  }
  get link(): string {
    return this.own("steps") ?? "";
  }
  /** Undefined where the link's text is no plan: the engine says why. */
  get steps(): Steps | undefined {
    return readSteps(this.link, this.ranks);
  }
  get bytes(): number {
    return this.number("bytes", 1e9);
  }
  get cluster(): string {
    return this.own("cluster")?.split(":")[0] || "dgx-h100";
  }
  /** Whether chunks may be summed at all. */
  get sums(): boolean {
    return this.kind === "all_reduce" || this.kind === "reduce_scatter";
  }

  /** The request of what is on the board. */
  get body(): Record<string, unknown> {
    return { ...this.#frame(), steps: this.link };
  }

  #frame(): Record<string, unknown> {
    return {
      kind: this.kind,
      ranks: this.ranks,
      nodes: this.nodes,
      node_of: this.nodeOf,
      shards: this.shards,
      cluster: this.cluster,
      buffer_bytes: this.bytes,
    };
  }

  /** A move of a hand: each is a step of undo. */
  put(steps: Steps): void {
    this.move({ steps: linkOf(steps) });
  }
  place(nodeOf: readonly number[]): void {
    this.move({ at: placesText(nodeOf, this.nodes) });
  }
  share(shards: readonly number[]): void {
    this.move({ shards: shardsText(shards) });
  }

  setKind(kind: Kind): void {
    this.move({ kind, shards: undefined, steps: undefined });
  }
  /** Another size: what has a place there stays. */
  resize(ranks: number, nodes: number): void {
    const steps = linkOf(fitted(this.steps ?? [], ranks));
    this.move({
      ranks: String(ranks),
      nodes: String(Math.min(nodes, ranks)),
      at: undefined,
      shards: undefined,
      steps,
    });
  }
  setBytes(value: number): void {
    this.change({ bytes: String(value) });
  }
  setCluster(name: string): void {
    this.change({ cluster: name });
  }

  clear(): void {
    this.move({ steps: undefined });
  }
  /** Nothing but an empty board of the first size: for an address that is none. */
  reset(): void {
    this.move(
      Object.fromEntries(
        ["kind", "ranks", "nodes", "at", "shards", "steps", "bytes", "cluster"].map((key) => [
          key,
          undefined,
        ]),
      ),
    );
  }

  /** Lets an algorithm write all steps. Throws the engine's message. */
  async fill(name: string): Promise<void> {
    const found = await ask("by_hand", { ...this.#frame(), fill: name }, "board.by_hand.fill");
    this.move({ steps: found.link || undefined });
  }

  /** Opens a file. Throws the engine's message. */
  async open(file: string): Promise<void> {
    const asked = { file, cluster: this.cluster, buffer_bytes: this.bytes };
    const found = await ask("by_hand", asked, "board.by_hand.file");
    this.move({ ...framed({ ...found, nodeOf: found.node_of }), steps: found.link || undefined });
  }

  /** A goal's board, empty. */
  begin(goal: HandGoalDocument, nodeOf: readonly number[] = goal.node_of): void {
    this.move({
      ...framed({ ...goal, nodeOf, shards: plain(goal.ranks) }),
      cluster: goal.cluster,
      bytes: String(goal.buffer_bytes),
      steps: undefined,
    });
  }
}

export const hand = new Hand();
