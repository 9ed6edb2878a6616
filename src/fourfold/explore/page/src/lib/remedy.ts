/** The value that a refusal names as one that works, as the change of a parameter. */

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
