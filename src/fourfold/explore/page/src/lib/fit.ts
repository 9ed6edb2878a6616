/** Whether a step fits, in the words of `report/fit.py`. */
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
