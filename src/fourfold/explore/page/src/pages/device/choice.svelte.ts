/** What the person looks at inside the device; the address holds it. */

import { Pair } from "$lib/api/pair.svelte.ts";
import { Choices, CONTROLS, shownBy } from "$lib/state/choices.ts";

class Choice extends Choices {
  get segment(): string {
    return this.own("segment") ?? "";
  }

  get kernel(): string | undefined {
    return this.own("kernel");
  }

  get causal(): boolean {
    return this.own("causal") !== "0";
  }

  get order(): "2022" | "2023" {
    return this.own("order") === "2022" ? "2022" : "2023";
  }

  get frame(): number {
    return Math.max(0, Math.floor(this.number("frame", 40)));
  }

  /** A size of the attention that is looked at; undefined: the model's. */
  size(key: "tokens" | "heads" | "head_dim" | "fast_kb"): number | undefined {
    return this.number(key, undefined);
  }
}

/** What the controls stand at. */
export const choice = new Choice("device", CONTROLS);
/** What is shown. */
export const page = new Pair("device", { roofline: "roofline", attention: "attention" });
/** The choices that are shown: those of its documents. */
export const shown = new Choice("device", shownBy(page));
