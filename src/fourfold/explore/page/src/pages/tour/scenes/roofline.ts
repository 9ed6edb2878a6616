/** Scene: kernels that wait for arithmetic, and kernels that wait for memory. */

import { bytes, count, perCent, precise, whole } from "$lib/units.ts";
import { scene } from "../scene.ts";
import { CLUSTER, step } from "./run.ts";

/** Devices for each rank of tensor parallelism, so that the rest of the layout stays. */
const OTHERS = 2048;

export const roofline = scene({
  id: "roofline",
  place: "kernel",
  title: "A matmul is fed, or it starves",
  figure: "roofline",
  parts: { roofline: "roofline" },
  knobs: {
    tp: { label: "Tensor-parallel ranks", values: ["2", "4", "8"], start: "8" },
    length: {
      label: "Tokens in a sequence",
      values: ["128", "512", "2048", "8192"],
      start: "8192",
      written: (value) => whole(Number(value)),
    },
  },
  asks: ({ tp, length }) => ({
    roofline: {
      ...step({ "layout.tp": Number(tp), "batch.sequence_length": Number(length) }),
      cluster: `${CLUSTER}:${OTHERS * Number(tp)}`,
    },
  }),
  guess: {
    question: "How many FLOP must a kernel do for each byte, so that an H100 does not wait for its memory?",
    scale: { from: 1, to: 10_000, written: (value) => `${whole(value)} FLOP` },
  },
  truth: ({ roofline: found }) => found?.roofs[0]?.ridge,
  numbers: ({ roofline: found }) => {
    const roof = found?.roofs[0];
    const matmul = found?.kernels.find(({ kind, phase }) => kind === "matmul" && phase === "forward");
    if (!found || !roof || !matmul) return {};
    const plain = found.kernels.filter(({ kind }) => kind === "elementwise");
    const norm = plain.find(({ segment }) => segment === "block");
    return {
      peak: `${count(roof.flops_per_second)}FLOP/s`,
      rate: `${bytes(found.memory_bytes_per_second)}/s`,
      ridge: precise(roof.ridge),
      shape: matmul.shape,
      intensity: precise(matmul.intensity ?? 0),
      share: perCent(matmul.roof_share, 0),
      bound: matmul.bound === "memory" ? "memory" : "arithmetic",
      reached: norm && `${bytes(norm.bytes_per_second)}/s`,
      plain: perCent(plain.reduce((sum, each) => sum + each.step_share, 0)),
      starved: perCent(found.memory_bound_share),
    };
  },
  sentences: [
    { text: "An H100 multiplies at {peak} and reads its memory at {rate}.", part: ".told" },
    {
      text: "Where the two lines meet, a kernel does {ridge} FLOP a byte. To the left it waits for bytes.",
      part: "polyline.mark",
    },
    {
      text: "The block's largest [matmul](matmul), {shape} on one of {tp} ranks, does {intensity}: {bound} bounds it, at {share} of the roof.",
      part: "path.matmul",
    },
    {
      text: "Norms and activation functions do no matmul. They run at {reached}, and take {plain} of all kernels' time.",
      part: "path.elementwise",
    },
  ],
  changes: [
    {
      text: "Cut the sequence to {length} tokens and matmuls slide down the slope: {starved} of the kernels' seconds now wait for memory.",
      part: "path.matmul",
    },
    {
      text: "Cutting weights over {tp} ranks makes matmuls thinner, and moves them little: both sides are still thousands wide.",
      part: "path.matmul",
    },
  ],
});
