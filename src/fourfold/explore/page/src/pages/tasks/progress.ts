/** What a learner has reached, as text to keep and to carry to another browser. */

export interface Done {
  /** Won: the server judged a setup that meets every criterion. */
  won?: true;
  /** Hints that were opened. */
  hints?: number;
  /** The solution was shown. */
  shown?: true;
  /** The number that was predicted; null: the learner wanted to see it without. */
  guess?: number | null;
}
export type Progress = Readonly<Record<string, Done>>;

/** Reads what `written` wrote; nothing of what it does not know. Throws where it is no progress at all. */
export function readProgress(text: string): Progress {
  const found: unknown = JSON.parse(text);
  if (typeof found !== "object" || found === null || !("tasks" in found)) throw new Error("no progress");
  const { tasks } = found as { tasks: unknown };
  if (typeof tasks !== "object" || tasks === null) throw new Error("no progress");
  const known: Record<string, Done> = {};
  for (const [id, each] of Object.entries(tasks as Record<string, unknown>)) {
    if (typeof each !== "object" || each === null) continue;
    const { won, hints, shown, guess } = each as Record<string, unknown>;
    known[id] = {
      ...(won === true ? { won } : {}),
      ...(typeof hints === "number" && hints > 0 ? { hints: Math.floor(hints) } : {}),
      ...(shown === true ? { shown } : {}),
      ...(guess === null || (typeof guess === "number" && guess > 0) ? { guess } : {}),
    };
  }
  return known;
}

export const written = (tasks: Progress): string => JSON.stringify({ tasks }, null, 1);

/** Both, with what was reached in either. */
export function joined(one: Progress, other: Progress): Progress {
  const found: Record<string, Done> = { ...one };
  for (const [id, each] of Object.entries(other)) {
    const own = found[id] ?? {};
    const hints = Math.max(own.hints ?? 0, each.hints ?? 0);
    found[id] = { ...own, ...each, ...(hints > 0 ? { hints } : {}) };
  }
  return found;
}
