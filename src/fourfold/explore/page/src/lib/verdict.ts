/** Whether a step fits, in the words of `report/fit.py`; and of one that is refused, the value that its message says works. */

import type { FitDocument, StepDocument } from "$generated/documents.ts";

/** As a headline says it: "likely fits (79 %)". */
export const fitPhrase = ({ phrase }: FitDocument): string => phrase.toLowerCase();

/** The sentence of the verdict's first line, without the interval, which stands below it. */
export function fitHeadline({ fit, verdict }: Pick<StepDocument, "fit" | "verdict">): string {
  const phrase = fitPhrase(fit);
  const [sentence = ""] = (verdict[0] ?? "").split(", 80 % of runs");
  return `${phrase.charAt(0).toUpperCase()}${phrase.slice(1)}${sentence.slice(sentence.indexOf(": "))}`;
}

/** Whether it is green, amber or red. */
export function fitTone({ word }: FitDocument): "good" | "doubt" | "no" {
  if (word === "no") return "no";
  return word === "sure" || word === "likely" ? "good" : "doubt";
}

/** Sections of the run file, whose keys are parameters. */
const KEY = "(?:model|batch|layout|precision|optimizer|data)\\.[a-z_]+";
const VALUE = "(\"[^\"]*\"|'[^']*'|[\\w.+:-]+)";
const STATED = new RegExp(`what works: .*?(${KEY}) ?= ?${VALUE}`);
const OF_FIRST = new RegExp(`(${KEY}) = .*?a value that works: (?:[a-z_]+ = )?${VALUE}`, "s");
const ALLOWED = new RegExp(`(${KEY}) = .*?allowed: (?:at most |at least |up to )?${VALUE}(?:$|[;,\\n])`, "s");

export interface Remedy {
  key: string;
  value: string;
}

/** `layout.tp = 3 ...; a value that works: 4` gives layout.tp 4; undefined where a message names no key and value. */
export function remedyOf(message: string): Remedy | undefined {
  for (const pattern of [STATED, OF_FIRST, ALLOWED]) {
    const [, key, value] = pattern.exec(message) ?? [];
    if (key !== undefined && value !== undefined) return { key, value: value.replace(/^["']|["'.]$/g, "") };
  }
  return undefined;
}
