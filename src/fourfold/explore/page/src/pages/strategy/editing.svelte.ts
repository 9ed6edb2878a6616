/** Reading and changing keys of the first layout or the second; unfolds a run of the literature when it is first changed. */

import type { PresetRow } from "$generated/documents.ts";
import { catalog } from "$lib/api/catalog.svelte.ts";
import { session } from "$lib/state/session.svelte.ts";
import { SECOND, secondKeys, textOf, type Value } from "$lib/state/setup.ts";
import { type Params, withChanges } from "$lib/state/url.ts";

/** Degrees whose change leaves another number of ranks to data parallelism, which then takes all that remain. */
const DEGREES = ["layout.tp", "layout.pp", "layout.cp", "cluster", "layout.dp_replicate"];
/** Keys whose change makes other stages, among which segments are then divided evenly. */
const STAGES = ["layout.pp", "layout.virtual_stages", "layout.schedule", "model.preset", "model.num_layers"];
type Changes = Readonly<Record<string, string | undefined>>;

class Editing {
  /** Everything that the first layout states, a run of the literature's keys too. */
  #preset = $derived(presetOf(session.get("run")));
  #first = $derived(statedIn(session.params, this.#preset));
  #second = $derived(this.comparing && session.get("strategy.edit") === "b");

  get comparing(): boolean {
    return session.page === "strategy" && session.get("strategy.compare") === "1";
  }
  get second(): boolean {
    return this.#second;
  }

  /** The value that a key has in the layout being edited: stated, or the preset run's. */
  value(key: string): string | undefined {
    if (this.second) {
      const own = session.get(SECOND + key);
      if (own !== undefined) return own;
    }
    return this.#preset === undefined ? session.get(key) : this.#first[key];
  }

  differs(key: string): boolean {
    return this.second && session.get(SECOND + key) !== undefined;
  }

  /** Changes keys of the layout being edited. */
  change(changes: Changes): void {
    const all = { ...freed(changes), ...changes };
    if (this.second) {
      const first = this.#first;
      const prefixed = Object.entries(all).map(([key, value]) => {
        const same = value === first[key];
        return [SECOND + key, same ? undefined : value] as const;
      });
      session.change(Object.fromEntries(prefixed));
      return;
    }
    const preset = this.#preset;
    if (preset === undefined) session.change({ ...startKeys(), ...all }, Object.keys(changes).join());
    else
      session.replace(
        withChanges({ ...ofPages(session.params), ...unfolded(preset) }, { ...all, run: undefined }),
      );
  }

  /** Takes the second layout's keys as the first's. */
  keepSecond(): void {
    const keys = secondKeys(session.params);
    this.leave();
    session.change(keys);
  }

  begin(): void {
    session.change({ "strategy.compare": "1", "strategy.edit": "b" });
  }

  leave(): void {
    const own = Object.keys(session.params).filter((key) => key.startsWith(SECOND));
    const changes = Object.fromEntries(own.map((key) => [key, undefined]));
    session.change({ ...changes, "strategy.compare": undefined, "strategy.edit": undefined });
  }
}

export const editing = new Editing();

/** Whether a state compares two layouts, and whether its controls change the second. */
export const compares = (params: Params): boolean => params["strategy.compare"] === "1";
export const editsSecond = (params: Params): boolean => compares(params) && params["strategy.edit"] === "b";

/** Everything that the layout being edited states, in a state that is shown. */
export function valuesOf(params: Params): Params {
  const first = statedIn(params, presetOf(params.run));
  return editsSecond(params) ? { ...first, ...secondKeys(params) } : first;
}

/** The setup's cluster: stated, or that of its run, which the catalog knows; undefined until that is there. */
export function clusterOf(): string | undefined {
  const waits = session.get("run") !== undefined && catalog.document === undefined;
  return editing.value("cluster") || (waits ? undefined : "dgx-h100:8");
}

/** Whether a control stands for a key that may be changed: one of a few, or any. */
export const isOpen = (only: readonly string[] | undefined, key: string): boolean =>
  only === undefined || only.includes(key);

/** The keys of the start, once a person changes one of them. */
function startKeys(): Changes {
  return Object.fromEntries(Object.entries(session.params).filter(([key]) => !key.startsWith(SECOND)));
}

function presetOf(run: string | undefined): PresetRow | undefined {
  return run === undefined ? undefined : catalog.document?.presets.find((each) => each.name === run);
}

/** Everything that a run of the literature states, as parameters. */
export function unfolded(preset: PresetRow): Record<string, string> {
  const keys = Object.entries(preset.overrides).map(([key, value]) => [key, textOf(value as Value)] as const);
  const software = preset.software === null ? {} : { software: preset.software };
  return { ...Object.fromEntries(keys), ...software, cluster: preset.cluster };
}

function statedIn(params: Params, preset: PresetRow | undefined): Params {
  return preset === undefined ? params : { ...unfolded(preset), ...params };
}

/** Parameters that belong to pages alone. */
function ofPages(params: Params): Record<string, string> {
  return Object.fromEntries(
    Object.entries(params).filter(([key]) =>
      /^(strategy|pipeline|collectives|cluster|run|tasks)\./.test(key),
    ),
  );
}

/** Keys that a change leaves open. */
function freed(changes: Changes): Changes {
  const any = (keys: readonly string[]): boolean => keys.some((key) => key in changes);
  return {
    ...(any(DEGREES) ? { "layout.dp_shard": undefined } : {}),
    ...(any(STAGES) ? { "layout.segments_per_stage": undefined } : {}),
  };
}
