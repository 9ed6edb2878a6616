/** The way to the documents: a server, a worker of this browser, or the file itself. */

import type { Documents } from "$generated/documents.ts";

export class Refused extends Error {
  readonly status: number;
  constructor(message: string, status: number) {
    super(message);
    this.status = status;
  }
}

export interface Progress {
  text: string;
  share: number;
}

export interface Transport {
  /** A document. `view`: whose older request this one replaces. Throws `Refused` with the command's message. */
  ask<Name extends keyof Documents>(
    name: Name,
    body: object,
    view: string,
    signal?: AbortSignal,
  ): Promise<Documents[Name]>;
  /** Runs a search; `report` is called with its progress. Aborting the signal ends it where it runs. */
  search(body: object, report: (progress: Progress) => void, signal: AbortSignal): Promise<Documents["plan"]>;
}

/** The document of an answer, which has a status of HTTP. Throws `Refused`. */
export function documentOf<Found>(status: number, answer: object): Found {
  if ("error" in answer && status >= 400) throw new Refused(String(answer.error), status);
  if ("refused" in answer) throw new Refused(String(answer.refused), status);
  return answer as Found;
}
