/** What the page and the worker that computes say to each other. */

/** The first message: where the engine's files lie. */
export interface Start {
  folder: string;
}
export interface Request {
  id: number;
  name: string;
  /** The body, as JSON. */
  body: string;
}
export type Reply =
  | { kind: "ready" }
  | { kind: "failed"; message: string }
  | { kind: "progress"; id: number; text: string; share: number }
  | { kind: "answer"; id: number; status: number; text: string };

/** The files of the engine beside Pyodide's own: the package with what it imports, and documents that were computed before. */
export const ARCHIVE = "packages.zip";
export const ANSWERS = "answers.json";

/** A request as text: one text for one request, whatever the order of its keys. */
export const requestText = (name: string, body: object): string => JSON.stringify([name, sorted(body)]);

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (value === null || typeof value !== "object") return value;
  const entries = Object.entries(value).filter(([, each]) => each !== undefined);
  entries.sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([key, each]) => [key, sorted(each)]));
}
