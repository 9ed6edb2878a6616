/** What the person looks at on this page; the address holds it. */

import { Pair } from "$lib/api/pair.svelte.ts";
import { Choices, CONTROLS, shownBy } from "$lib/state/choices.ts";

/** A part of the picture: how often it is enlarged, and where its middle is, as shares of the picture. */
export interface View {
  scale: number;
  x: number;
  y: number;
}
export const WHOLE: View = { scale: 1, x: 0.5, y: 0.5 };

class Choice extends Choices {
  /** What the colours of devices and blocks say: what flows, or whose group. */
  get colour(): "flows" | "groups" {
    return this.own("colour") === "groups" ? "groups" : "flows";
  }

  /** The clock: a share of the step; where gradients are reduced beside the last passes, most axes send. */
  get moment(): number {
    return Math.min(1, Math.max(0, this.number("moment", 85) / 100));
  }

  get axes(): string | undefined {
    return this.own("axes");
  }

  get rank(): number {
    return Math.max(0, Math.floor(this.number("rank", 0)));
  }

  get view(): View {
    const [scale, x, y] = (this.own("view") ?? "").split(",").map(Number);
    const valid = [scale, x, y].every((each) => Number.isFinite(each));
    return valid && scale !== undefined && scale >= 1 ? { scale, x: x ?? 0.5, y: y ?? 0.5 } : WHOLE;
  }

  /** Keeps the part of the picture. */
  look({ scale, x, y }: View): void {
    const places = Math.ceil(Math.log10(scale)) + 3;
    const text =
      scale <= 1.001
        ? undefined
        : [scale.toPrecision(4), x.toFixed(places), y.toFixed(places)].map(Number).join();
    this.change({ view: text });
  }
}

/** What the controls stand at. */
export const choice = new Choice("cluster", CONTROLS);
/** What is shown. */
export const page = new Pair("cluster", {
  machine: "cluster",
  groups: "groups",
  step: "simulate",
});
/** One set-up of what is shown. */
export type ClusterSide = (typeof page.sides)[number];
/** The choices that are shown: those of its documents. */
export const shown = new Choice("cluster", shownBy(page));
