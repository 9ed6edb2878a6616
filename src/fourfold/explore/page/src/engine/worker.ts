/** A worker with Python in it: requests in, the package's own documents out. */

import { ARCHIVE, type Reply, type Request, type Start } from "./protocol.ts";

type Answer = (name: string, body: string, report: (text: string, share: number) => void) => Result;
interface Result {
  toJs: () => [number, string];
  destroy: () => void;
}
/** The part of Pyodide that is used. */
interface Pyodide {
  FS: { mkdirTree: (path: string) => void };
  unpackArchive: (archive: ArrayBuffer, format: string, options: { extractDir: string }) => void;
  runPython: (code: string) => unknown;
}
interface Module {
  loadPyodide: (options: object) => Promise<Pyodide>;
}

const PLACE = "/fourfold";
const BEGIN = `
import sys
sys.path.insert(0, "${PLACE}")
from fourfold.explore.browser.stand_ins import stand_in
stand_in()
from fourfold.explore.browser.engine import answer
answer
`;
/** The page's side of a worker has these two as well. */
const page = globalThis as unknown as Pick<Worker, "postMessage" | "addEventListener">;
const say = (reply: Reply): void => page.postMessage(reply);
let answer: Promise<Answer> | undefined;

async function begin(folder: string): Promise<Answer> {
  const archive = fetched(folder + ARCHIVE);
  const { loadPyodide } = (await import(/* @vite-ignore */ `${folder}pyodide.mjs`)) as Module;
  const python = await loadPyodide({ indexURL: folder });
  python.FS.mkdirTree(PLACE);
  python.unpackArchive(await archive, "zip", { extractDir: PLACE });
  return python.runPython(BEGIN) as Answer;
}

async function fetched(address: string): Promise<ArrayBuffer> {
  const found = await fetch(address);
  if (!found.ok) throw new Error(`${address}: ${found.status} ${found.statusText}`);
  return found.arrayBuffer();
}

page.addEventListener("message", ({ data }: MessageEvent<Start | Request>) => {
  if ("folder" in data) {
    answer = begin(data.folder);
    answer.then(
      () => say({ kind: "ready" }),
      (error: unknown) => say({ kind: "failed", message: String(error) }),
    );
  } else void answer?.then((found) => compute(found, data));
});

function compute(found: Answer, { id, name, body }: Request): void {
  try {
    const result = found(name, body, (text, share) => say({ kind: "progress", id, text, share }));
    const [status, text] = result.toJs();
    result.destroy();
    say({ kind: "answer", id, status, text });
  } catch (error) {
    say({ kind: "failed", message: String(error) });
  }
}
