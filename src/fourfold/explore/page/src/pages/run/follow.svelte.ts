/** The run as it stands, asked for again while it changes: soon after a change, later and later while nothing does. */

import type { ComparisonDocument, RunDocument } from "$generated/documents.ts";
import { ask, isFile, messageOf, Refused } from "$lib/api/client.ts";
import type { Range } from "./curves.ts";

const [SOON_MS, LATE_MS, GROWTH] = [1000, 15_000, 1.5] as const;
/** How long a run waits for the comparison that it is shown with; an answer that takes longer than the others is lost. */
const [PATIENT_MS, LOST_MS, LOST_COMPARISON_MS] = [5000, 30_000, 120_000] as const;

export class Follow {
  run = $state.raw<RunDocument | undefined>();
  /** The steps that the curves of `run` were asked for. */
  range = $state.raw<Range | undefined>();
  comparison = $state.raw<ComparisonDocument | undefined>();
  /** Why there is no run, and why there is no comparison. */
  error = $state("");
  comparisonError = $state("");
  comparing = $state(false);
  /** The server does not answer: what is shown is the last answer. */
  lost = $state(false);
  #delay: number = SOON_MS;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #range: Range | undefined;
  #asking = 0;
  #compared: Promise<void> | undefined;
  #measured: number | null = null;

  /** Follows, with curves of these steps; gives what ends it. */
  start(range: Range | undefined): () => void {
    this.#range = range;
    this.#delay = SOON_MS;
    void this.#look();
    const seen = (): void => {
      if (!document.hidden) this.#again(0);
    };
    document.addEventListener("visibilitychange", seen);
    return () => {
      document.removeEventListener("visibilitychange", seen);
      clearTimeout(this.#timer);
      this.#asking += 1;
    };
  }

  #again(milliseconds: number): void {
    clearTimeout(this.#timer);
    if (!isFile && !document.hidden) this.#timer = setTimeout(() => void this.#look(), milliseconds);
  }

  async #look(): Promise<void> {
    this.#asking += 1;
    const turn = this.#asking;
    const range = this.#range;
    try {
      const steps = range ? { first: range[0], last: range[1] } : {};
      const found = await ask("run", steps, "run.state", AbortSignal.timeout(LOST_MS));
      if (turn !== this.#asking) return;
      const isMeasured = found.measured_time !== null && found.measured_time !== this.#measured;
      const show = (): void => {
        this.#delay = changed(this.run, found) ? SOON_MS : Math.min(this.#delay * GROWTH, LATE_MS);
        this.run = found;
        this.range = range;
        this.error = "";
        this.lost = false;
      };
      // a run is shown with the comparison of what it has measured, and before there is any without one
      if (!isMeasured || this.comparison === undefined) show();
      if (isMeasured) {
        this.#compared ??= this.#compare(found.measured_time).finally(() => {
          this.#compared = undefined;
        });
        await Promise.race([this.#compared, new Promise((resolve) => setTimeout(resolve, PATIENT_MS))]);
        if (turn !== this.#asking) return;
        show();
      }
    } catch (error) {
      if (turn !== this.#asking) return;
      this.#delay = Math.min(this.#delay * GROWTH, LATE_MS);
      this.lost = this.run !== undefined;
      this.error = messageOf(error);
    }
    this.#again(this.#delay);
  }

  async #compare(measured: number | null): Promise<void> {
    this.comparing = true;
    try {
      const signal = AbortSignal.timeout(LOST_COMPARISON_MS);
      this.comparison = await ask("comparison", {}, "run.comparison", signal);
      this.comparisonError = "";
      this.#measured = measured;
    } catch (error) {
      this.comparison = undefined;
      this.comparisonError = messageOf(error);
      if (error instanceof Refused && error.status === 200) this.#measured = measured; // else asked again later
    }
    this.comparing = false;
  }
}

/** Whether anything happened between two answers. */
function changed(before: RunDocument | undefined, now: RunDocument): boolean {
  const marks = ({ step, num_events, state, latest, notes, ranks }: RunDocument) =>
    JSON.stringify([
      step,
      num_events,
      state,
      latest,
      notes,
      ranks.map((rank) => [rank.step, rank.index, rank.state]),
    ]);
  return before === undefined || marks(before) !== marks(now);
}
