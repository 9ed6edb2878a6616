/** What the page's address says of the pipeline, with what holds where it says nothing. */

import type { StepDocument } from "$generated/documents.ts";
import { times as PASSES } from "$generated/ops.ts";
import { catalog } from "$lib/api/catalog.svelte.ts";
import { Pair } from "$lib/api/pair.svelte.ts";
import { Choices, numberOf, type State } from "$lib/state/choices.ts";
import { valuesOf } from "$lib/state/editing.svelte.ts";
import { session } from "$lib/state/session.svelte.ts";
import { setupOf } from "$lib/state/setup.ts";
import { editedOf, editsSecond } from "$lib/state/sides.ts";
import type { Params } from "$lib/state/url.ts";

export { scheduleName } from "./names.ts";
/** Passes whose times a pipeline of one's own may set. */
export { PASSES };
export type Pass = (typeof PASSES)[number];
/** Parameters of a pipeline of one's own, beside the set-up's. */
const OWN = ["ranks", "microbatches", "v", "schedule", "times", ...PASSES];

export class Pipeline extends Choices {
  #step: () => StepDocument | undefined;

  /** The pipeline of a state, and the set-up's step where that is drawn. */
  constructor(state: State, step: () => StepDocument | undefined) {
    super("pipeline", state);
    this.#step = step;
  }

  /** Whether the pipeline is one's own: some of it is stated on this page, or the set-up has none. */
  get isFree(): boolean {
    return OWN.some((name) => this.own(name) !== undefined) || !this.hasSetup;
  }
  /** Whether the set-up has a pipeline. */
  get hasSetup(): boolean {
    return Number(valuesOf(this.state.params())["layout.pp"] ?? 1) > 1;
  }
  /** The step of the set-up, where its pipeline is drawn. */
  get setup(): StepDocument | undefined {
    return this.isFree ? undefined : this.#step();
  }

  get ranks(): number {
    const stated = numberOf(this.state.get("layout.pp"), 1);
    return this.setup?.layout.pp ?? this.number("ranks", stated > 1 ? stated : 4);
  }
  get microbatches(): number {
    return this.setup?.num_microbatches ?? this.number("microbatches", Math.max(8, 2 * this.ranks));
  }
  get virtualStages(): number {
    const stated = Math.max(2, numberOf(this.state.get("layout.virtual_stages"), 2));
    return this.setup?.layout.virtual_stages ?? this.number("v", stated);
  }
  get schedule(): string {
    const stated = this.own("schedule") ?? this.state.get("layout.schedule") ?? "1f1b";
    return this.setup?.layout.schedule ?? stated;
  }
  /** Whether stages take the seconds of the cluster; else times that are set. */
  get priced(): boolean {
    return this.setup !== undefined || this.own("times") === "cluster";
  }
  /** Whether the critical path is drawn. */
  get pathed(): boolean {
    return this.own("path") !== "off";
  }
  time(pass: Pass): number {
    return this.number(pass, pass === "transfer" ? 0 : 1);
  }
  /** Changes a parameter; one of the set-up's pipeline makes it one's own, which begins as the set-up's. */
  put(name: string, value: string | number | undefined): void {
    const begun = OWN.includes(name) && !this.isFree ? this.#detached() : {};
    session.change({ ...begun, [`pipeline.${name}`]: value === undefined ? undefined : String(value) });
  }
  /** Makes the pipeline one's own, as it is. */
  detach(): void {
    session.change(this.#detached());
  }
  /** Draws the set-up's. */
  follow(): void {
    session.change(Object.fromEntries(OWN.map((name) => [`pipeline.${name}`, undefined])));
  }
  #detached(): Record<string, string> {
    return {
      "pipeline.ranks": String(this.ranks),
      "pipeline.microbatches": String(this.microbatches),
      "pipeline.v": String(this.virtualStages),
      "pipeline.schedule": this.schedule,
      "pipeline.times": "cluster",
    };
  }
  /** The names of all schedules, in the catalog's order. */
  get names(): string[] {
    return (catalog.document?.schedules ?? []).map((each) => each.name);
  }
  /** The request of a schedule's document. */
  body(schedule = this.schedule): object {
    const times = Object.fromEntries(PASSES.map((pass) => [pass, this.time(pass)]));
    return {
      ...setupOf(this.state.params()),
      schedule,
      ranks: this.ranks,
      microbatches: this.microbatches,
      virtual_stages: this.virtualStages,
      ...(this.priced ? {} : { times }),
    };
  }
}

/** The pipeline of one set-up's state. */
const pipelineOf = (params: Params, step: () => StepDocument | undefined): Pipeline =>
  new Pipeline({ get: (key) => params[key], params: () => params }, step);

/** What is shown: the set-up's step where its pipeline is drawn, and the pipeline. */
export const page = new Pair("pipeline", { step: "simulate", drawn: "pipeline" });
/** One set-up of what is shown, and its pipeline. */
export type PipelineSide = (typeof page.sides)[number];
export const shownOf = ({ params, documents }: PipelineSide): Pipeline =>
  pipelineOf(params, () => documents.step);
/** What the controls stand at: the set-up's pipeline is that of the set-up being edited. */
export const pipeline = new Pipeline(
  { get: (key) => editedOf(session.params)[key], params: () => editedOf(session.params) },
  () => (editsSecond(session.params) ? page.second : page.first)?.documents.step,
);
/** The requests of one set-up's state. */
export function asked(params: Params): {
  step: object | undefined;
  drawn: object | ((found: { step?: StepDocument }) => object | undefined);
} {
  const own = pipelineOf(params, () => undefined);
  if (own.isFree) return { step: undefined, drawn: own.body() };
  const setup = setupOf(params);
  return { step: setup, drawn: ({ step }) => (step ? bodyOf(setup, step) : undefined) };
}
/** The set-up's own pipeline, in seconds. */
function bodyOf(setup: object, step: StepDocument): object {
  const { schedule, pp, virtual_stages } = step.layout;
  return { ...setup, schedule, ranks: pp, microbatches: step.num_microbatches, virtual_stages };
}
