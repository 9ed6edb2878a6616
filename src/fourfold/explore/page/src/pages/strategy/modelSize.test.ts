import { expect, test } from "vitest";
import { dimensionsFor, SIZES } from "./modelSize.ts";

const VOCABULARY = 128_256;
/** Parameters with untied embeddings, counted anew. */
const counted = (d: ReturnType<typeof dimensionsFor>, vocabulary = VOCABULARY): number => {
  const head = d.hidden_size / d.num_heads;
  const block =
    d.hidden_size * (d.num_heads + 2 * d.num_kv_heads) * head +
    d.hidden_size ** 2 +
    3 * d.hidden_size * d.ffn_size;
  return d.num_layers * block + 2 * vocabulary * d.hidden_size;
};

test("the scale goes from 0.1 to 1,000 billion, in steps of about a fifth", () => {
  expect([SIZES[0], SIZES.at(-1)]).toEqual([1e8, 1e12]);
  for (const [index, size] of SIZES.entries())
    if (index > 0) expect(size / (SIZES[index - 1] ?? 1)).toBeCloseTo(1.21, 1);
});

test("the dimensions give about the parameters that are asked for", () => {
  for (const size of SIZES.filter((each) => each >= 5e8))
    expect(Math.abs(counted(dimensionsFor(size, VOCABULARY)) / size - 1)).toBeLessThan(0.16);
  for (const size of SIZES)
    expect(Math.abs(counted(dimensionsFor(size, 8192), 8192) / size - 1)).toBeLessThan(0.2);
});

test("what is larger is never a smaller model", () => {
  const all = SIZES.map((size) => counted(dimensionsFor(size, VOCABULARY)));
  expect(all).toEqual([...all].sort((a, b) => a - b));
});

test("every number divides as degrees of parallelism want it", () => {
  for (const size of SIZES) {
    const { num_layers, hidden_size, num_heads, num_kv_heads, ffn_size } = dimensionsFor(size, VOCABULARY);
    expect([num_layers % 4, hidden_size % 256, num_heads % num_kv_heads, ffn_size % 256]).toEqual([
      0, 0, 0, 0,
    ]);
    expect(hidden_size / num_heads).toBe(128);
  }
});

test("models of the literature come out near their own dimensions", () => {
  expect(dimensionsFor(8e9, VOCABULARY)).toMatchObject({
    hidden_size: 4096,
    num_layers: 32,
    num_heads: 32,
    num_kv_heads: 8,
    ffn_size: 14336,
  });
  const large = dimensionsFor(405e9, VOCABULARY);
  expect([Math.abs(large.hidden_size - 16384) <= 1024, Math.abs(large.num_layers - 126) <= 14]).toEqual([
    true,
    true,
  ]);
});
