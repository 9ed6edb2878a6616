/** A scale of equal factors, on which a guess is set. */

export interface Scale {
  from: number;
  to: number;
}

/** The place of a number on it, from 0 to 1. */
export const placeOn = ({ from, to }: Scale, value: number): number =>
  Math.min(1, Math.max(0, Math.log(value / from) / Math.log(to / from)));

/** The number at a place of it, with two significant digits. */
export const numberAt = ({ from, to }: Scale, place: number): number =>
  Number((from * (to / from) ** place).toPrecision(2));

/** The nearest of the numbers from `least` to `most`, whole. */
export const within = (value: number, least: number, most: number): number =>
  Math.round(Math.min(most, Math.max(least, value)));
