/** Scene: attention without its matrix. */

import { bytes, count, perCent, precise, whole } from "$lib/units.ts";
import { scene } from "../scene.ts";
import { CLUSTER, step } from "./run.ts";

const NAMES: Readonly<Record<string, string>> = { "2022": "FlashAttention", "2023": "FlashAttention-2" };

export const attention = scene({
  id: "attention",
  place: "kernel",
  title: "Attention without its matrix",
  figure: "attention",
  moves: true,
  parts: { roofline: "roofline", tiles: "attention" },
  knobs: {
    tokens: {
      label: "Tokens in a sequence",
      values: ["1024", "2048", "4096", "8192", "16384", "32768", "65536", "131072"],
      start: "8192",
      written: (value) => whole(Number(value)),
    },
    order: {
      label: "Order of the loops",
      values: ["2022", "2023"],
      start: "2023",
      written: (value) => NAMES[value] ?? value,
    },
  },
  asks: ({ tokens, order }) => ({
    roofline: step(),
    tiles: ({ roofline }) =>
      roofline?.attention
        ? {
            cluster: CLUSTER,
            sequences: roofline.attention.sequences,
            heads: roofline.attention.heads,
            head_dim: roofline.attention.head_dim,
            tokens: Number(tokens),
            causal: true,
            order,
          }
        : undefined,
  }),
  guess: {
    question:
      "{tokens} tokens: how many bytes do the scores of one rank's heads take, if they are written down?",
    scale: { from: 1e6, to: 1e13, written: (value) => bytes(value) },
  },
  truth: ({ tiles }) => tiles?.algorithms.find(({ name }) => name === "standard")?.passes[0]?.stored_bytes,
  numbers: ({ tiles }) => {
    const standard = tiles?.algorithms.find(({ name }) => name === "standard");
    const own = tiles?.algorithms.find(({ name }) => name === tiles.order);
    if (!tiles || !standard || !own) return {};
    const all = tiles.query_tiles * tiles.key_tiles;
    return {
      heads: whole(tiles.heads),
      matrix: bytes(standard.passes[0]?.stored_bytes ?? 0),
      standard: bytes(standard.bytes),
      moved: bytes(own.bytes),
      ratio: precise(own.standard_ratio),
      rows: whole(tiles.query_rows),
      columns: whole(tiles.key_rows),
      skipped: perCent(1 - tiles.computed_tiles / all, 0),
      flops: `${count(own.flops)}FLOP`,
      standardFlops: `${count(standard.flops)}FLOP`,
      least: bytes(tiles.least_bytes),
    };
  },
  sentences: [
    {
      text: "A rank has {heads} heads. Each scores every token against every other: {matrix} of scores for {tokens} tokens.",
      part: "svg[data-chart] > rect.room:nth-of-type(3)",
    },
    {
      text: "The standard algorithm writes the scores to memory, reads them, and does so again after the softmax: {standard}.",
      part: ".bars button:first-of-type",
    },
    {
      text: "{order} keeps a tile of {rows} queries by {columns} keys on the chip. It moves {moved}; the standard one {ratio} times that.",
      part: ".bars button[aria-pressed=true]",
    },
    {
      text: "Tiles whose keys all come after their queries are skipped: {skipped} of them.",
      part: "path.edge",
    },
    {
      text: "The result is exact. With the skipped tiles left out it takes {flops}, against {standardFlops}.",
    },
  ],
  changes: [
    {
      text: "Take {tokens} tokens: bytes grow with the square in both, and the floor, each operand once, only in proportion: {least}.",
      part: ".bars",
    },
    { text: "A larger tile reads keys and values less often. It must fit on the chip, beside the output." },
  ],
});
