/** The tasks, asked for once, and the learner's progress, which the browser keeps. */

import type { TaskDocument, TasksDocument } from "$generated/documents.ts";
import { ask, messageOf } from "$lib/api/client.ts";
import { session } from "$lib/state/session.svelte.ts";
import { type Params, writeHash } from "$lib/state/url.ts";
import { type Done, joined, type Progress, readProgress, written } from "./progress.ts";

const KEY = "fourfold-tasks";
export const LEVELS = ["", "easy", "medium", "hard"] as const;

class Tasks {
  document = $state.raw<TasksDocument | undefined>();
  error = $state("");
  progress = $state.raw<Progress>(stored());
  #asked = false;

  constructor() {
    addEventListener("storage", ({ key }) => {
      if (key === KEY) this.progress = stored();
    });
  }

  async load(): Promise<void> {
    if (this.#asked) return;
    this.#asked = true;
    try {
      this.document = await ask("tasks", {});
    } catch (error) {
      this.#asked = false;
      this.error = messageOf(error);
    }
  }

  get all(): readonly TaskDocument[] {
    return this.document?.tracks.flatMap(({ tasks }) => tasks) ?? [];
  }

  /** The task that the address names. */
  get current(): TaskDocument | undefined {
    const id = session.get("tasks.id");
    return id === undefined ? undefined : this.all.find((each) => each.id === id);
  }

  done(id: string): Done {
    return this.progress[id] ?? {};
  }

  /** Notes what was reached, beside what another tab has noted meanwhile. */
  note(id: string, done: Done): void {
    this.#put(joined(joined(stored(), this.progress), { [id]: done }));
  }

  /** Takes over progress from a file. Throws where it is none. */
  take(text: string): void {
    this.#put(joined(joined(stored(), this.progress), readProgress(text)));
  }

  forget(): void {
    this.#put({});
  }

  /** The progress as a file. */
  get file(): string {
    return written(this.progress);
  }

  /** The first task that is not won, after one of them or of all. */
  next(after?: TaskDocument): TaskDocument | undefined {
    const all = this.all;
    const from = after ? all.indexOf(after) + 1 : 0;
    return [...all.slice(from), ...all.slice(0, from)].find(
      (each) => each !== after && !this.done(each.id).won,
    );
  }

  #put(progress: Progress): void {
    this.progress = progress;
    try {
      localStorage.setItem(KEY, written(progress));
    } catch {
      // a private window keeps nothing; the page works without
    }
  }
}

function stored(): Progress {
  try {
    return readProgress(localStorage.getItem(KEY) ?? "");
  } catch {
    return {};
  }
}

/** The address of a task's start. */
export const addressOf = (task: TaskDocument): string => writeHash({ page: "tasks", params: startOf(task) });
/** The state in which a task begins. `text`: of a task of one's own. */
export const startOf = (task: TaskDocument, text?: string): Params => ({
  ...task.start,
  ...(text === undefined ? { "tasks.id": task.id } : { "tasks.own": text, "tasks.begun": "1" }),
});

export const tasks = new Tasks();
