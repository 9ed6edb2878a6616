/** What the person chose on this page; the address holds it. */

import { catalog } from "$lib/api/catalog.svelte.ts";
import { session } from "$lib/state/session.svelte.ts";

export const KINDS = [
  { value: "all_reduce", label: "all-reduce" },
  { value: "reduce_scatter", label: "reduce-scatter" },
  { value: "all_gather", label: "all-gather" },
  { value: "all_to_all", label: "all-to-all" },
] as const;
export type Kind = (typeof KINDS)[number]["value"];

const number = (key: string, otherwise: number): number => {
  const found = Number(session.get(`collectives.${key}`) ?? otherwise);
  return Number.isFinite(found) ? found : otherwise;
};

class Choice {
  get kind(): Kind {
    const found = session.get("collectives.kind");
    return KINDS.find(({ value }) => value === found)?.value ?? "all_reduce";
  }

  get algorithm(): string | undefined {
    return session.get("collectives.algorithm");
  }

  get ranks(): number {
    return number("ranks", 8);
  }

  get perNode(): number {
    return number("per_node", 4);
  }

  get bytes(): number {
    return number("bytes", 1e9);
  }

  /** Steps that have been taken. */
  get step(): number {
    return Math.max(0, Math.round(number("step", 1)));
  }

  /** Degrees of an axis that cuts a block. */
  get tp(): number {
    return number("tp", 4);
  }

  get cp(): number {
    return number("cp", 4);
  }

  get ep(): number {
    return number("ep", 4);
  }

  get sequenceParallel(): boolean {
    return session.get("collectives.sequence") !== "off";
  }

  /** Where a walk through a block, a ring or an exchange stands. */
  at(key: string, otherwise: number): number {
    return Math.max(0, Math.round(number(key, otherwise)));
  }

  /** A share of the training step. */
  get moment(): number {
    return Math.min(1, Math.max(0, number("moment", 45) / 100));
  }

  /** This page's, else that of the setup, without its number of devices. */
  get cluster(): string {
    const run = session.get("run")?.replace(/^preset:/, "");
    const preset = catalog.document?.presets.find(({ name }) => name.replace(/^preset:/, "") === run);
    const named = session.get("collectives.cluster") ?? session.get("cluster") ?? preset?.cluster;
    return named?.split(":")[0] || "dgx-h100";
  }

  /** Changes keys of this page. */
  change(changes: Readonly<Record<string, string | undefined>>): void {
    const own = Object.entries(changes).map(([key, value]) => [`collectives.${key}`, value] as const);
    session.change(Object.fromEntries(own));
  }
}

export const choice = new Choice();

/** The request for the document. */
export function asked(): object {
  const body = {
    kind: choice.kind,
    ranks: choice.ranks,
    per_node: choice.perNode,
    buffer_bytes: choice.bytes,
    cluster: choice.cluster,
  };
  return choice.algorithm === undefined ? body : { ...body, algorithm: choice.algorithm };
}
