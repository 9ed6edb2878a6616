/** Documents that are computed in this browser: by workers, or before, when the site was built. */

import type { Documents } from "$generated/documents.ts";
import { documentOf, type Progress, Refused, type Transport } from "../lib/api/transport.ts";
import { ANSWERS, type Reply, requestText } from "./protocol.ts";
import { status } from "./status.svelte.ts";

/** A computation that nobody waits for any more is ended where it has run so long: a new worker takes about as long to load. */
const LONG_MS = 5000;
/** Answers that are kept, since a person goes back and forth. */
const KEPT = 400;

interface Answer {
  status: number;
  text: string;
}
interface Job {
  id: number;
  name: string;
  body: string;
  report: (progress: Progress) => void;
  resolve: (answer: Answer) => void;
  reject: (error: unknown) => void;
  since: number;
  abandoned: boolean;
}

/** A worker and the line before it. Without shared memory, which takes headers that a plain server does not send, what it computes
 * is ended with it. */
class Line {
  #folder: string;
  #worker: Worker | undefined;
  #waiting: Job[] = [];
  #running: Job | undefined;
  #count = 0;

  constructor(folder: string) {
    this.#folder = folder;
  }

  /** Loads the engine, unless it is there. */
  start(): void {
    if (this.#worker) return;
    const since = performance.now();
    this.#worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
    this.#worker.addEventListener("message", ({ data }: MessageEvent<Reply>) => {
      if (data.kind === "ready") status.seconds ??= (performance.now() - since) / 1000;
      else if (data.kind === "failed") this.#fail(data.message);
      else this.#hear(data);
    });
    this.#worker.addEventListener("error", (event) =>
      this.#fail(event.message || "a file could not be loaded"),
    );
    this.#worker.postMessage({ folder: this.#folder });
  }

  ask(
    name: string,
    body: string,
    report: (progress: Progress) => void,
    signal: AbortSignal | undefined,
    atOnce: boolean,
  ): Promise<Answer> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) {
        reject(signal.reason);
        return;
      }
      this.#count += 1;
      const job: Job = { id: this.#count, name, body, report, resolve, reject, since: 0, abandoned: false };
      this.#waiting.push(job);
      signal?.addEventListener("abort", () => {
        reject(signal.reason);
        this.#abandon(job, atOnce);
      });
      this.start();
      this.#next();
    });
  }

  #abandon(job: Job, atOnce: boolean): void {
    job.abandoned = true;
    this.#waiting = this.#waiting.filter((each) => each !== job);
    if (this.#running !== job) return;
    if (atOnce) this.#end();
    else
      setTimeout(
        () => this.#running === job && this.#end(),
        Math.max(0, job.since + LONG_MS - performance.now()),
      );
  }

  /** Ends the worker with what it computes; the next one loads meanwhile. */
  #end(): void {
    this.#worker?.terminate();
    this.#worker = undefined;
    this.#running = undefined;
    this.start();
    this.#next();
  }

  #next(): void {
    if (this.#running) return;
    this.#running = this.#waiting.shift();
    if (!this.#running) return;
    const { id, name, body } = this.#running;
    this.#running.since = performance.now();
    this.#worker?.postMessage({ id, name, body });
  }

  #hear(reply: Extract<Reply, { id: number }>): void {
    const job = this.#running;
    if (job?.id !== reply.id) return;
    if (reply.kind === "progress") {
      if (!job.abandoned) job.report({ text: reply.text, share: reply.share });
      return;
    }
    this.#running = undefined;
    job.resolve({ status: reply.status, text: reply.text });
    this.#next();
  }

  #fail(message: string): void {
    status.failure = `The engine that computes in this browser failed: ${message}. What works: load the page again, or fourfold explore in a terminal.`;
    for (const job of [this.#running, ...this.#waiting]) job?.reject(new Refused(status.failure, 500));
    this.#worker?.terminate();
    this.#worker = this.#running = undefined;
    this.#waiting = [];
  }
}

export class Engine implements Transport {
  #folder: string;
  #documents: Line;
  /** A search runs beside the page's other documents. */
  #searches: Line;
  /** Files of answers that were computed when the site was built, by request. */
  #before: Promise<Readonly<Record<string, string>>>;
  #kept = new Map<string, Answer>();

  constructor(folder: string) {
    this.#folder = new URL(folder, document.baseURI).href;
    this.#documents = new Line(this.#folder);
    this.#searches = new Line(this.#folder);
    this.#before = this.#file<Readonly<Record<string, string>>>(ANSWERS).catch(() => ({}));
    // what a person sees first comes first
    void this.#before.then(() => setTimeout(() => this.#documents.start(), 500));
  }

  async #file<Found>(name: string): Promise<Found> {
    const found = await fetch(this.#folder + name);
    if (!found.ok) throw new Error(`${name}: ${found.status}`);
    return (await found.json()) as Found;
  }

  async ask<Name extends keyof Documents>(
    name: Name,
    body: object,
    _view: string,
    signal?: AbortSignal,
  ): Promise<Documents[Name]> {
    const key = requestText(name, body);
    let answer = this.#kept.get(key);
    if (answer === undefined) {
      const before = (await this.#before)[key];
      if (before !== undefined) {
        const found = await this.#file<object>(before).catch(() => undefined);
        if (found) return documentOf(200, found);
      }
      answer = await this.#documents.ask(name, JSON.stringify(body), () => {}, signal, false);
    }
    this.#kept.delete(key);
    this.#kept.set(key, answer);
    for (const oldest of this.#kept.keys()) {
      if (this.#kept.size <= KEPT) break;
      this.#kept.delete(oldest);
    }
    return documentOf(answer.status, JSON.parse(answer.text) as object);
  }

  async search(
    body: object,
    report: (progress: Progress) => void,
    signal: AbortSignal,
  ): Promise<Documents["plan"]> {
    if (status.seconds === undefined) report({ text: "loading the engine", share: 0 });
    const answer = await this.#searches.ask("plan", JSON.stringify(body), report, signal, true);
    return documentOf(answer.status, JSON.parse(answer.text) as object);
  }
}
