/** The steps that the curves show, as the address holds them: `1000-2000`. */

export type Range = readonly [number, number];

export function rangeFrom(text: string): Range | undefined {
  const found = /^(\d{1,15})-(\d{1,15})$/.exec(text);
  const [first, last] = [Number(found?.[1]), Number(found?.[2])];
  return found && first < last ? [first, last] : undefined;
}

export const rangeText = ([first, last]: Range): string => `${first}-${last}`;
