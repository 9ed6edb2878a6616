/** Reading and changing keys of set-up A or B, whichever the controls change; unfolds a run of the literature when it is first changed. */

import type { PresetRow } from "$generated/documents.ts";
import { catalog } from "../api/catalog.svelte.ts";
import { session } from "./session.svelte.ts";
import { isOfSetup, textOf, type Value } from "./setup.ts";
import {
  clearing,
  compares,
  EDITS,
  editedOf,
  keepingSecond,
  pinning,
  SECOND,
  secondKeys,
  sidesOf,
  swapping,
} from "./sides.ts";
import { ofSetup, type Params, withChanges } from "./url.ts";

/** Degrees whose change leaves another number of ranks to data parallelism, which then takes all that remain. */
const DEGREES = ["layout.tp", "layout.pp", "layout.cp", "cluster", "layout.dp_replicate"];
/** Keys whose change makes other stages, among which segments are then divided evenly. */
const STAGES = ["layout.pp", "layout.virtual_stages", "layout.schedule", "model.preset", "model.num_layers"];
type Changes = Readonly<Record<string, string | undefined>>;

class Editing {
  /** Everything that A states, a run of the literature's keys too. */
  #preset = $derived(presetOf(session.get("run")));
  #first = $derived(statedIn(sidesOf(session.params)[0], this.#preset));
  #second = $derived(this.comparing && session.get(EDITS) === "b");

  /** Whether B stands beside A, on a page of the set-up. */
  get comparing(): boolean {
    return ofSetup(session.page) && compares(session.params);
  }
  get second(): boolean {
    return this.#second;
  }
  /** The keys in which B differs from A, with the values of both. */
  get differences(): { key: string; a: string | undefined; b: string | undefined }[] {
    return Object.entries(secondKeys(session.params)).map(([key, b]) => ({ key, a: this.#first[key], b }));
  }

  /** The value that a key has in the set-up being edited: stated, or the preset run's. */
  value(key: string): string | undefined {
    if (this.second) {
      const own = session.get(SECOND + key);
      if (own !== undefined) return own || undefined;
    }
    return this.#preset === undefined ? session.get(key) : this.#first[key];
  }

  differs(key: string): boolean {
    return this.second && session.get(SECOND + key) !== undefined;
  }

  /** Changes keys of the set-up being edited. */
  change(changes: Changes): void {
    const all = { ...freed(changes), ...changes };
    const preset = this.#preset;
    if (this.second) {
      const first = this.#first;
      const prefixed = Object.entries(all).map(([key, value]) => {
        if (!isOfSetup(key)) return [key, value] as const; // a page's own place is of both
        const same = value === first[key];
        return [SECOND + key, same ? undefined : (value ?? "")] as const;
      });
      // a run of the literature cannot leave out a key: A then states all of them
      const leavesOut = preset !== undefined && prefixed.some(([, value]) => value === "");
      const unfold = leavesOut ? { ...unfolded(preset), ...sidesOf(session.params)[0], run: undefined } : {};
      session.change({ ...unfold, ...Object.fromEntries(prefixed) }, Object.keys(changes).join());
      return;
    }
    if (preset === undefined) session.change({ ...startKeys(), ...all }, Object.keys(changes).join());
    else
      session.replace(
        withChanges({ ...ofPages(session.params), ...unfolded(preset) }, { ...all, run: undefined }),
      );
  }

  /** Pins the set-up as A; the controls then change a copy, B. */
  begin(): void {
    session.change(pinning);
  }
  edit(second: boolean): void {
    session.change({ [EDITS]: second ? "b" : undefined });
  }
  swap(): void {
    session.change(swapping(session.params, this.#first));
  }
  /** B becomes the only set-up. */
  keepSecond(): void {
    session.change(keepingSecond(session.params));
  }
  /** A becomes the only set-up. */
  leave(): void {
    session.change(clearing(session.params));
  }
}

export const editing = new Editing();

/** Everything that the set-up being edited states, in a state that is shown. */
export function valuesOf(params: Params): Params {
  const own = editedOf(params);
  return statedIn(own, presetOf(own.run));
}

/** The cluster of one set-up's state: stated, or that of its run, which the catalog knows; undefined until that is there. */
export function clusterOf(params: Params): string | undefined {
  const waits = params.run !== undefined && catalog.document === undefined;
  return statedIn(params, presetOf(params.run)).cluster || (waits ? undefined : "dgx-h100:8");
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
      /^(strategy|pipeline|parallelism|collectives|device|cluster|run|tasks|b)\./.test(key),
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
