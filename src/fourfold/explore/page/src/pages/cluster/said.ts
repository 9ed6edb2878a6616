/** What a student asks of a cluster, answered in sentences with its numbers. Pure, so that it is tested alone. */

import type { AxesGroups, ClusterDocument, SimulationDocument } from "$generated/documents.ts";
import { bytes, perCent, precise, whole } from "$lib/units.ts";

/** From this ratio on one rate is faster than another. */
const FASTER = 1.005;
const rateOf = (rate: number): string => `${bytes(rate)}/s`;
const times = (ratio: number): string => `${precise(ratio)} times`;

/** How fast a device sends inside of each level's blocks, and how many times faster than between them. */
export function ratioSentences({ levels, device }: ClusterDocument): string[] {
  return levels.map((level, index) => {
    const inside = levels[index - 1];
    const own = rateOf(level.device_bytes_per_second);
    if (!inside)
      return `Inside ${level.name}, ${whole(level.devices)} devices, a device sends ${own}: its memory is ${times(level.memory_ratio)} as fast (${rateOf(device.memory_bytes_per_second)}).`;
    const compared =
      level.ratio > FASTER
        ? `${times(level.ratio)} slower than inside ${inside.name}`
        : level.ratio < 1 / FASTER
          ? `${times(1 / level.ratio)} faster than inside ${inside.name}`
          : `as fast as through ${inside.name}`;
    const far =
      index > 1 && levels[0]
        ? `, 1/${precise(levels[0].device_bytes_per_second / level.device_bytes_per_second)} of ${levels[0].name}`
        : "";
    return `Between one ${inside.name} and the next, through ${level.name} of ${whole(level.devices)}, ${own}: ${compared}${level.ratio > FASTER ? "" : far}.`;
  });
}

/** What the innermost level carries in a step, and what the network beyond it. */
export function carriedSentence({ links }: SimulationDocument): string {
  const all = links.reduce((sum, link) => sum + link.total_bytes, 0);
  const [inner, ...outer] = links;
  if (!inner || all <= 0) return "In a step nothing is sent.";
  const told = (sent: Record<string, number>): string =>
    Object.entries(sent)
      .filter(([, size]) => size >= 1e-4 * all)
      .sort(([, a], [, b]) => b - a)
      .map(([axes, size]) => `${axes} ${bytes(size)}`)
      .join(", ") || "next to nothing";
  const beyond = new Map<string, number>();
  for (const link of outer)
    for (const [axes, size] of Object.entries(link.sent_bytes))
      beyond.set(axes, (beyond.get(axes) ?? 0) + size);
  const rest = outer.length
    ? ` The network beyond it carries ${perCent(1 - inner.total_bytes / all)}: ${told(Object.fromEntries(beyond))}.`
    : "";
  return `Of the bytes that a device sends in a step ${inner.name} carries ${perCent(inner.total_bytes / all)}: ${told(inner.sent_bytes)}.${rest}`;
}

/** Where the groups along some axes lie. */
export function placeWords({ size, members, levels }: AxesGroups, cluster: ClusterDocument): string {
  const innermost = members.findIndex((count) => count >= size);
  const within = cluster.levels[innermost]?.name;
  if (innermost === 0) return `all ${whole(size)} ranks inside one ${within}`;
  const inside = cluster.levels[0]?.name ?? "block";
  const together = members[0] ?? 1;
  const apart =
    together > 1
      ? `${whole(together)} of ${whole(size)} ranks in one ${inside}`
      : `each of ${whole(size)} ranks in another ${inside}`;
  return `${apart}${within ? `, all in one ${within}` : ""}; its hops cross ${levels.join(" and ")}`;
}
