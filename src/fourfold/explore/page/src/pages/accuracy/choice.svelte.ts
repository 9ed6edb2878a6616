/** What is chosen on this page, which the address holds, and the documents of it. */

import { Shown } from "$lib/api/shown.svelte.ts";
import { Choices, CONTROLS, shownBy } from "$lib/state/choices.ts";
import type { Figure, Filter, Model, Order } from "./runs.ts";

export const PARTS = { record: "accuracy", run: "accuracy_run" } as const;
export const page = new Shown("accuracy", PARTS);

class Choice extends Choices {
  get figure(): Figure {
    return this.own("figure") === "memory" ? "memory" : "time";
  }
  get model(): Model {
    return this.own("model") === "constant" && this.figure === "time" ? "constant" : "fourfold";
  }
  get order(): Order {
    const found = this.own("order");
    return found === "best" || found === "longest" ? found : "worst";
  }
  get filter(): Filter {
    const word = (key: keyof Filter) => this.own(key) ?? "";
    return {
      software: word("software"),
      device: word("device"),
      kind: word("kind"),
      format: word("format"),
      size: word("size"),
    };
  }
  /** The run that is looked at. */
  get run(): string | undefined {
    return this.own("run");
  }
  /** Whether the table has all rows. */
  get whole(): boolean {
    return this.own("rows") === "all";
  }
}
/** Where the controls stand. */
export const choice = new Choice("accuracy", CONTROLS);
/** What is shown. */
export const shown = new Choice("accuracy", shownBy(page));
