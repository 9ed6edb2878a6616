/** Documents, typed as `src/generated/documents.ts` says, by the way that this page has: see `transport.ts`. */

import type { Documents, Packed } from "$generated/documents.ts";
import { server } from "./server.ts";
import { type Progress, Refused, type Transport } from "./transport.ts";

export { type Progress, Refused } from "./transport.ts";

/** Scripts of a saved page that hold its documents as text: such a page asks no server. */
const elements =
  typeof document === "undefined"
    ? []
    : [...document.querySelectorAll<HTMLScriptElement>("script[data-document]")];

/** Whether this page is a file that holds its documents. */
export const isFile = elements.length > 0;

/** The folder of the engine that computes documents in this browser; undefined where a server does. */
export const engine: string | undefined =
  import.meta.env.MODE === "report" || typeof document === "undefined"
    ? undefined
    : document.querySelector<HTMLMetaElement>("meta[name=fourfold-engine]")?.content;

/** A document of this file, read when it is asked for. */
export function embedded(name: string): unknown {
  const found = elements.find((element) => element.dataset.document === name);
  return found ? JSON.parse(found.textContent ?? "") : undefined;
}

const file: Transport = {
  ask(name) {
    const held = embedded(name);
    if (held === undefined) return Promise.reject(new Refused(`this file holds no document "${name}"`, 200));
    return Promise.resolve(held as Documents[typeof name]);
  },
  search: () => Promise.reject(new Refused("a file searches for nothing", 200)),
};

async function chosen(): Promise<Transport> {
  if (isFile) return file;
  if (import.meta.env.MODE !== "report" && engine !== undefined)
    return new (await import("../../engine/engine.ts")).Engine(engine);
  return server;
}
const transport = chosen();

/** Why something failed, as a person reads it. */
export const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

/** Asks for a document. `view`: whose older request this one replaces. Throws `Refused` with the command's message. */
export async function ask<Name extends keyof Documents>(
  name: Name,
  body: object,
  view: string = name,
  signal?: AbortSignal,
): Promise<Documents[Name]> {
  return (await transport).ask(name, body, view, signal);
}

/** Runs a search; `report` is called with its progress. Aborting the signal ends it where it runs, too. */
export async function search(
  body: object,
  report: (progress: Progress) => void,
  signal: AbortSignal,
): Promise<Documents["plan"]> {
  return (await transport).search(body, report, signal);
}

const KINDS = { uint8: Uint8Array, uint16: Uint16Array, int32: Int32Array, float64: Float64Array } as const;

/** The numbers of a column. */
export function unpacked(column: Packed): Uint8Array | Uint16Array | Int32Array | Float64Array {
  const { buffer } = bytesOf(column.base64);
  return new KINDS[column.kind](buffer);
}

/** Browsers of today decode by themselves, and sooner. */
function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  const own = Uint8Array as typeof Uint8Array & { fromBase64?: (text: string) => Uint8Array<ArrayBuffer> };
  if (own.fromBase64) return own.fromBase64(base64);
  const text = atob(base64);
  const found = new Uint8Array(text.length);
  for (let place = 0; place < text.length; place += 1) found[place] = text.charCodeAt(place);
  return found;
}
