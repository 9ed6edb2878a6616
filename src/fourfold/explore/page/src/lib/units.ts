/** Numbers as a person reads them, as `fourfold` prints them: 1 GB = 1e9 bytes, 1 k = 1000. */

const BYTES: [number, string][] = [
  [1e15, "PB"],
  [1e12, "TB"],
  [1e9, "GB"],
  [1e6, "MB"],
  [1e3, "kB"],
];
const COUNTS: [number, string][] = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

function digits(value: number): string {
  return value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

function scaled(value: number, units: [number, string][], rest: string): string {
  for (const [size, unit] of units) if (value >= size) return `${digits(value / size)} ${unit}`;
  return `${value.toFixed(0)}${rest}`;
}

export const bytes = (value: number): string => scaled(value, BYTES, " B");

export const count = (value: number): string => scaled(value, COUNTS, "");

/** The number of a text such as `12,345`, `70 G` or `0.5T`; NaN where it is none. */
export function numberFrom(text: string): number {
  const [, digits = "", unit = ""] = /^([\d.,e+-]*)([kMGBT]?)$/i.exec(text.replaceAll(/\s/g, "")) ?? [];
  const scale =
    COUNTS.find(([, name]) => name.toLowerCase() === unit.toLowerCase().replace("b", "g"))?.[0] ?? 1;
  return digits === "" ? Number.NaN : Number(digits.replaceAll(",", "")) * scale;
}

/** `12,345`. */
export const whole = (value: number): string => Math.round(value).toLocaleString("en-US");

/** `0.0123` -> `12.3 ms`. */
export function seconds(value: number): string {
  if (value >= 0.9995) return `${value < 999.5 ? precise(value) : value.toFixed(0)} s`;
  return value >= 0.9995e-3 ? `${precise(value * 1e3)} ms` : `${precise(value * 1e6)} us`;
}

/** `1,234,567` seconds -> `14.3 days`. */
export function duration(value: number | null | undefined): string {
  if (value === null || value === undefined) return "never ends";
  if (value < 3600) return seconds(value);
  if (value < 48 * 3600) return `${precise(value / 3600)} h`;
  const days = value / 86400;
  return days < 1000 ? `${precise(days)} days` : `${whole(days / 365.25)} years`;
}

export function dollars(value: number): string {
  return value < 1e6
    ? `$${whole(value)}`
    : `$${scaled(
        value,
        [
          [1e9, "G"],
          [1e6, "M"],
        ],
        "",
      )}`;
}

export const perCent = (share: number, places = 1): string =>
  `${(100 * share).toFixed(places).replace(/^-(0(\.0+)?)$/, "$1")} %`;

/** A share with its sign: `+12 %`. */
export const signed = (share: number, places = 0): string =>
  `${share < 0 ? "−" : "+"}${perCent(Math.abs(share), places)}`;

/** Three significant digits. */
export const precise = (value: number): string =>
  value >= 999.5 ? whole(value) : String(Number(value.toPrecision(3)));

/** `megatron` of `preset:megatron`, `llama3 8b` left as it is. */
export const plainName = (name: string): string => name.replace(/^preset:/, "");

/** A text whose numbers stay on one line with their units. */
export const unbroken = (text: string): string =>
  text.replace(/(\d) (?=(%|[kMGT]?B|m?s|days|GB\/s)\b|%)/g, "$1\u00a0");

/** Words of a key: `dp_shard` -> `dp shard`. */
export const words = (key: string): string => key.replaceAll("_", " ");

/** A moment of Unix time, where the reader is. */
export const clock = (time: number | null): string => {
  const date = new Date((time ?? Number.NaN) * 1000);
  return Number.isNaN(date.getTime()) ? "" : date.toLocaleString("sv-SE");
};
