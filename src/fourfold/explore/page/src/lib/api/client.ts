/** Documents of the server, typed as `src/generated/documents.ts` says. */

import type { Documents, Packed } from "$generated/documents.ts";
import { connection } from "./connection.svelte.ts";

/** Scripts of a saved page that hold its documents as text: such a page asks no server. */
const elements =
  typeof document === "undefined"
    ? []
    : [...document.querySelectorAll<HTMLScriptElement>("script[data-document]")];

/** Whether this page is a file that holds its documents. */
export const isFile = elements.length > 0;

/** A document of this file, read when it is asked for. */
export function embedded(name: string): unknown {
  const found = elements.find((element) => element.dataset.document === name);
  return found ? JSON.parse(found.textContent ?? "") : undefined;
}

export class Refused extends Error {
  readonly status: number;
  constructor(message: string, status: number) {
    super(message);
    this.status = status;
  }
}

/** Why something failed, as a person reads it. */
export const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

const WINDOW = Math.random().toString(36).slice(2);

/** Asks for a document. `view`: whose older request this one replaces on the server. Throws `Refused` with the command's message. */
export async function ask<Name extends keyof Documents>(
  name: Name,
  body: object,
  view: string = name,
  signal?: AbortSignal,
): Promise<Documents[Name]> {
  if (isFile) {
    const held = embedded(name);
    if (held === undefined) throw new Refused(`this file holds no document "${name}"`, 200);
    return held as Documents[Name];
  }
  const answer = await post(name, body, view, signal);
  const found = (await answer.json()) as Documents[Name] | { refused: string };
  if ("refused" in found) throw new Refused(String(found.refused), answer.status);
  return found;
}

export interface Progress {
  text: string;
  share: number;
}

/** Runs a search; `report` is called with its progress. Aborting the signal ends it on the server too. */
export async function search(
  body: object,
  report: (progress: Progress) => void,
  signal: AbortSignal,
): Promise<Documents["plan"]> {
  const answer = await post("plan", body, "plan", signal);
  if (answer.body === null) throw new Refused("the search gave no answer", 500);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Refused("the search ended before its time", 500);
    text += value;
    const events = text.split("\n\n");
    text = events.pop() ?? "";
    for (const event of events) {
      const [, kind, data] = /^event: (\w+)\ndata: (.*)$/s.exec(event) ?? [];
      if (data === undefined) continue;
      if (kind === "progress") report(JSON.parse(data) as Progress);
      if (kind === "document") return JSON.parse(data) as Documents["plan"];
      if (kind === "error") throw new Refused((JSON.parse(data) as { error: string }).error, 422);
    }
  }
}

async function post(name: string, body: object, view: string, signal?: AbortSignal): Promise<Response> {
  const headers = { "Content-Type": "application/json", "X-Window": WINDOW, "X-View": view };
  const request: RequestInit = { method: "POST", headers, body: JSON.stringify(body) };
  if (signal) request.signal = signal;
  const answer = await connection.fetch(`./api/${name}`, request);
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  throw new Refused(String((said as { error: unknown }).error), answer.status);
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
