/** Which of two set-ups a chart shows, in words that its title ends with. */

import { getContext } from "svelte";

export const MARK = "fourfold-mark";
export type MarkOf = () => string;

/** What ends the name of something that stands here, where there are two of it: `, A`. Call it where a component begins. */
export function markHere(): () => string {
  const mark = getContext<MarkOf | undefined>(MARK);
  return () => (mark?.() ? `, ${mark()}` : "");
}
