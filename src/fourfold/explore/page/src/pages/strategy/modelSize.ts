/** The dimensions of a dense model of about so many parameters, by the usual proportions. The engine counts what they give. */

export interface Dimensions {
  num_layers: number;
  hidden_size: number;
  num_heads: number;
  num_kv_heads: number;
  ffn_size: number;
}
/** As in Llama 3: heads of 128, eight of keys and values, a feed-forward 3.5 times as wide, 128 columns of the hidden size a layer. */
const HEAD = 128;
const KV_HEADS = 8;
const WIDER = 3.5;
const ASPECT = 128;
/** Numbers that degrees of parallelism divide: stages divide layers, tensor parallelism the heads and the feed-forward. */
const LAYERS = 4;
const [FINE, COARSE, WIDE] = [256, 1024, 2048];

/** From 0.1 to 1,000 billion parameters, twelve sizes to a factor of ten. */
const DECADES = 4;
const PER_DECADE = 12;
export const SIZES: readonly number[] = Array.from({ length: DECADES * PER_DECADE + 1 }, (_, index) =>
  Number((1e8 * 10 ** (index / PER_DECADE)).toPrecision(2)),
);

const WIDTHS: readonly number[] = [
  ...Array.from({ length: WIDE / FINE - 1 }, (_, index) => (index + 2) * FINE),
  ...Array.from({ length: 30 }, (_, index) => WIDE + (index + 1) * COARSE),
];

function dimensionsOf(hidden_size: number, num_layers: number): Dimensions {
  const num_heads = hidden_size / HEAD;
  const num_kv_heads = num_heads % KV_HEADS === 0 ? KV_HEADS : num_heads % 2 === 0 ? 2 : 1;
  return {
    num_layers,
    hidden_size,
    num_heads,
    num_kv_heads,
    ffn_size: Math.round((WIDER * hidden_size) / FINE) * FINE,
  };
}

/** Parameters of its matrices, which choose the dimensions: norms and biases aside. */
function matrices(
  { num_layers, hidden_size, num_kv_heads, ffn_size }: Dimensions,
  vocabulary: number,
): number {
  const attention = 2 * hidden_size + 2 * num_kv_heads * HEAD;
  return num_layers * hidden_size * (attention + 3 * ffn_size) + 2 * vocabulary * hidden_size;
}

/** The dimensions whose parameters are nearest, of those whose proportions are the usual ones. */
export function dimensionsFor(parameters: number, vocabulary: number): Dimensions {
  const found = WIDTHS.map((hidden) => {
    const one = matrices(dimensionsOf(hidden, 1), 0);
    const layers = Math.max(1, Math.round((parameters - 2 * vocabulary * hidden) / one / LAYERS)) * LAYERS;
    const own = dimensionsOf(hidden, layers);
    const off = Math.abs(Math.log(matrices(own, vocabulary) / parameters));
    return { own, cost: off + 0.15 * Math.abs(Math.log(hidden / layers / ASPECT)) };
  });
  return found.reduce((best, each) => (each.cost < best.cost ? each : best)).own;
}
