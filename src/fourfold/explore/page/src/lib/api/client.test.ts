import { expect, test } from "vitest";
import { unpacked } from "./client.ts";

const packed = (kind: "uint8" | "uint16" | "int32" | "float64", bytes: Uint8Array) =>
  unpacked({ kind, base64: btoa(String.fromCharCode(...bytes)) });

test("a column is read as it was written", () => {
  for (const [kind, numbers] of [
    ["uint8", Uint8Array.of(0, 1, 255)],
    ["uint16", Uint16Array.of(0, 256, 65535)],
    ["int32", Int32Array.of(-1, 0, 1 << 30)],
    ["float64", Float64Array.of(0.1, -2.5e300, 1 / 3)],
  ] as const)
    expect(packed(kind, new Uint8Array(numbers.buffer))).toEqual(numbers);
  expect(packed("uint8", new Uint8Array())).toEqual(new Uint8Array());
});
