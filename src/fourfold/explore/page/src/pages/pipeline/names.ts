/** Schedules as a person writes them. */

/** `zb_h1` -> `ZB-H1`. */
export const scheduleName = (name: string): string =>
  ({ "1f1b": "1F1B", gpipe: "GPipe", dualpipe_v: "DualPipeV", interleaved_1f1b: "interleaved" })[name] ??
  name
    .replaceAll("_", "-")
    .replace(/^zb/, "ZB")
    .replace(/-([hv])/, (_, letter: string) => `-${letter.toUpperCase()}`);
