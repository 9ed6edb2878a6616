/** The programs of the address: their setting, the prices' cluster, the moves, the goal; and every change of them. */

import type { MovesDocument, MovesGoal } from "$generated/documents.ts";
import { ask } from "$lib/api/client.ts";
import { Live } from "$lib/api/live.svelte.ts";
import { Choices, CONTROLS } from "$lib/state/choices.ts";
import { linkOf, type Order, readLink } from "./moves.ts";

const [SETTING, CLUSTER] = ["zero3", "dgx-h100:8"] as const;

class Programs extends Choices {
  /** What the engine says of them. */
  readonly live = new Live("moves", "moves");
  /** The last answer that was one: its instructions are those of the setting whatever is moved. */
  #known = $derived(this.live.document);

  constructor() {
    super("board", CONTROLS);
  }

  get setting(): string {
    return this.own("program") ?? SETTING;
  }
  get cluster(): string {
    return this.own("cluster") ?? CLUSTER;
  }
  get link(): string {
    return this.own("moves") ?? "";
  }
  get goal(): string | undefined {
    return this.own("goal");
  }
  get body(): Record<string, unknown> {
    const [goal, why] = [this.goal, this.own("why")];
    return {
      setting: this.setting,
      cluster: this.cluster,
      moves: this.link,
      ...(goal === undefined ? {} : { goal }),
      ...(why === undefined ? {} : { why }),
    };
  }
  /** The setting's lists; undefined until the engine has said them. */
  get lists(): MovesDocument["lists"] | undefined {
    return this.#known?.setting === this.setting ? this.#known.lists : undefined;
  }
  /** The orders of the address, which come before the engine's answer to them. */
  get orders(): Order[] | undefined {
    const lists = this.lists;
    return (
      lists &&
      readLink(
        this.link,
        lists.map(({ instructions }) => instructions.length),
      )
    );
  }

  /** A move of a hand: each is a step of undo. */
  put(list: number, order: Order): void {
    const [lists, orders] = [this.lists, this.orders];
    if (!lists || !orders) return;
    const all = orders.map((each, number) => (number === list ? order : each));
    const movable = lists.map(({ instructions }) => instructions.map((each) => each.movable));
    this.move({ moves: linkOf(all, movable) || undefined, why: undefined });
  }
  reset(): void {
    const begun = this.live.document?.goals.find((goal) => goal.id === this.goal);
    this.move({ moves: begun?.opening || undefined, why: undefined });
  }
  choose(setting: string): void {
    this.move({
      program: setting === SETTING ? undefined : setting,
      moves: undefined,
      goal: undefined,
      why: undefined,
    });
  }
  price(cluster: string): void {
    this.move({ cluster: cluster === CLUSTER ? undefined : cluster });
  }
  answer(why: string): void {
    this.move({ why: why || undefined });
  }

  /** The moves stay, the goal does not. */
  leave(): void {
    this.move({ goal: undefined, why: undefined });
  }

  /** A goal's setting with the moves that it begins with. Throws the engine's message. */
  async begin(goal: MovesGoal): Promise<void> {
    let opening = goal.opening;
    if (opening === null) {
      const found = await ask("moves", { setting: goal.setting, cluster: this.cluster }, "goal");
      opening = found.goals.find((each) => each.id === goal.id)?.opening ?? "";
    }
    this.move({
      program: goal.setting === SETTING ? undefined : goal.setting,
      moves: opening || undefined,
      goal: goal.id,
      why: undefined,
    });
  }
}

/** A goal's name among those that this browser has reached: goals of the other part have names of their own. */
export const nameOf = (goal: MovesGoal): string => `program-${goal.id}`;

export const programs = new Programs();
