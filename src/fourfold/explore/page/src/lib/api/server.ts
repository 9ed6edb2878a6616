/** Documents of the server of `fourfold explore`. */

import type { Documents } from "$generated/documents.ts";
import { connection } from "./connection.svelte.ts";
import { documentOf, type Progress, Refused, type Transport } from "./transport.ts";

const WINDOW = Math.random().toString(36).slice(2);

export const server: Transport = {
  async ask(name, body, view, signal) {
    const answer = await post(name, body, view, signal);
    return documentOf(answer.status, (await answer.json()) as object);
  },

  async search(body, report, signal) {
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
  },
};

async function post(name: string, body: object, view: string, signal?: AbortSignal): Promise<Response> {
  const headers = { "Content-Type": "application/json", "X-Window": WINDOW, "X-View": view };
  const request: RequestInit = { method: "POST", headers, body: JSON.stringify(body) };
  if (signal) request.signal = signal;
  const answer = await connection.fetch(`./api/${name}`, request);
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  throw new Refused(String((said as { error: unknown }).error), answer.status);
}
