/** Claims of lectures and blogs, each checked by the program. What is quoted has its numbers; what answers has the engine's. */

import type { BlockDocument, PipelineDocument, SimulationDocument } from "$generated/documents.ts";
import { bytes, count, duration, perCent, precise, seconds, whole } from "$lib/units.ts";
import { barsOf, type Claim, claim, type Verdict } from "./claim.ts";
import { CLUSTER, step, UNITS } from "./scenes/run.ts";
import { statesOf } from "./states.ts";

const DAY = 86_400;
const NEAR = 0.02;
const [PLAIN_DP, PLAIN_TP] = [2048, 8];

const over = (one: number | undefined, other: number | undefined): number | undefined =>
  one === undefined || other === undefined ? undefined : one / other;
const times = (value: number | undefined): string | undefined =>
  value === undefined ? undefined : precise(value);
const dataParallel = (found: SimulationDocument | undefined): number | undefined =>
  found?.communication
    .filter(({ axes }) => axes.startsWith("dp"))
    .reduce((sum, each) => sum + each.sent_bytes, 0);
const axisBytes = (found: SimulationDocument | undefined, axis: string): number | undefined =>
  found?.communication.find(({ axes }) => axes === axis)?.sent_bytes;
const heldBy = (found: PipelineDocument | undefined): number | undefined =>
  found && Math.max(...found.activations.peak_bytes);
const stateOf = (found: SimulationDocument | undefined): number | undefined =>
  found && statesOf(found).reduce((sum, each) => sum + each.bytes, 0) / found.model_parameters;
const sentOf = (found: BlockDocument | undefined): number | undefined =>
  found?.steps.reduce((sum, each) => sum + each.sent_bytes, 0);
/** Whether a ratio is nearer to what is said than to 1. */
const judge = (
  value: number | undefined,
  right: (value: number) => boolean,
  part?: (value: number) => boolean,
): Verdict | undefined =>
  value === undefined ? undefined : right(value) ? "right" : part?.(value) ? "part" : "wrong";

/** Llama 3 405B without a pipeline, so that a step has one microbatch. */
const plain = (zero: number, gradients = "fp32"): object => ({
  cluster: `${CLUSTER}:${PLAIN_TP * PLAIN_DP}`,
  overrides: {
    "model.preset": "llama3-405b",
    "batch.global_sequences": PLAIN_DP,
    "batch.sequence_length": 8192,
    "precision.compute": "bf16",
    "precision.gradients": gradients,
    "layout.tp": PLAIN_TP,
    "layout.dp_shard": PLAIN_DP,
    "layout.zero": zero,
    "layout.recompute": "full",
  },
});
/** So few tokens that the step peaks with all of the state there. */
const SHORT = { "batch.sequence_length": 1024 };
/** A model on one device. */
const alone = (overrides: Record<string, unknown>): object => ({
  cluster: "dgx-h100:1",
  overrides: {
    "model.preset": "llama3.1-8b",
    "batch.global_sequences": 1,
    "batch.sequence_length": 8192,
    "precision.compute": "bf16",
    "layout.recompute": "full",
    ...overrides,
  },
});
const drawn = (schedule: string, ranks: number, microbatches: number, virtual_stages = 1): object => ({
  ...step(),
  schedule,
  ranks,
  microbatches,
  virtual_stages,
  times: UNITS,
});
const exchange = (kind: string, ranks: number, per_node: number, buffer_bytes: number): object => ({
  cluster: CLUSTER,
  algorithm: "ring",
  kind,
  ranks,
  per_node,
  buffer_bytes,
});

export const claims: readonly Claim[] = [
  claim({
    id: "days",
    says: "Llama 3 405B takes 17 days on 24,576 H100 at 40 % of their peak.",
    parts: { run: "simulate" },
    asks: () => ({
      run: {
        ...step({ "layout.dp_shard": 192, "batch.global_sequences": 3072 }),
        cluster: `${CLUSTER}:24576`,
        tokens: "15T",
      },
    }),
    bars: ({ run }) => {
      const training = run?.run?.training_seconds;
      return barsOf({
        "at the whole peak": training && (training * run.mfu) / DAY,
        "at the simulated MFU": training && training / DAY,
      });
    },
    written: (value) => `${precise(value)} days`,
    verdict: ({ run }) => judge(run?.run && run.run.training_seconds / DAY, (days) => days < 20),
    numbers: ({ run }) => ({
      devices: run && whole(run.devices),
      tokens: run?.run && count(run.run.tokens),
      mfu: run && perCent(run.mfu),
      days: run?.run ? duration(run.run.training_seconds) : undefined,
      ideal: run?.run ? duration(run.run.training_seconds * run.mfu) : undefined,
    }),
    sentences: [
      { text: "{tokens} tokens on {devices} devices take {days} at an MFU of {mfu}." },
      { text: "Right where every device runs at its peak from the first second to the last: {ideal}." },
    ],
  }),
  claim({
    id: "zero3",
    says: "ZeRO-3 sends three times what plain data parallelism does.",
    parts: { plain: "simulate", full: "simulate", narrow: "simulate", narrowFull: "simulate" },
    asks: () => ({ plain: plain(0), full: plain(3), narrow: plain(0, "bf16"), narrowFull: plain(3, "bf16") }),
    bars: ({ plain: one, full, narrow, narrowFull }) =>
      barsOf({
        "plain, bf16 gradients": dataParallel(narrow),
        "ZeRO-3, bf16 gradients": dataParallel(narrowFull),
        "plain, fp32 gradients": dataParallel(one),
        "ZeRO-3, fp32 gradients": dataParallel(full),
      }),
    written: bytes,
    verdict: ({ narrow, narrowFull }) =>
      judge(over(dataParallel(narrowFull), dataParallel(narrow)), (ratio) => ratio > 2.5),
    numbers: ({ plain: one, full, narrow, narrowFull }) => ({
      narrow: times(over(dataParallel(narrowFull), dataParallel(narrow))),
      wide: times(over(dataParallel(full), dataParallel(one))),
    }),
    sentences: [
      {
        text: "{narrow} times where gradients are as narrow as weights, {wide} times where they are summed in fp32: an all-reduce is two passes already.",
      },
      {
        text: "Right, and more than right, under gradient accumulation: weights are gathered for each microbatch.",
      },
    ],
  }),
  claim({
    id: "1f1b",
    says: "1F1B has a smaller bubble than GPipe.",
    parts: { one: "pipeline", gpipe: "pipeline" },
    asks: () => ({ one: drawn("1f1b", 8, 32), gpipe: drawn("gpipe", 8, 32) }),
    bars: ({ one, gpipe }) =>
      barsOf({ "1F1B, bubble": one?.bubble_fraction, "GPipe, bubble": gpipe?.bubble_fraction }),
    written: perCent,
    verdict: ({ one, gpipe }) =>
      judge(over(one?.bubble_fraction, gpipe?.bubble_fraction), (ratio) => ratio < 1 - NEAR),
    numbers: ({ one, gpipe }) => ({
      bubble: one && perCent(one.bubble_fraction),
      other: gpipe && perCent(gpipe.bubble_fraction),
      held: one && bytes(heldBy(one) ?? 0),
      otherHeld: gpipe && bytes(heldBy(gpipe) ?? 0),
    }),
    sentences: [
      {
        text: "{bubble} and {other}: the same. What is smaller is the memory, {held} in place of {otherHeld}.",
      },
      {
        text: "Right at one remove: the memory that is saved may be spent on microbatches, and those shrink the bubble.",
      },
    ],
  }),
  claim({
    id: "ring",
    says: "A ring all-reduce takes the same time on any number of ranks.",
    parts: { few: "collective", many: "collective", fewLarge: "collective", manyLarge: "collective" },
    asks: () => ({
      few: exchange("all_reduce", 2, 1, 1e5),
      many: exchange("all_reduce", 16, 1, 1e5),
      fewLarge: exchange("all_reduce", 2, 1, 4e9),
      manyLarge: exchange("all_reduce", 16, 1, 4e9),
    }),
    bars: ({ few, many, fewLarge, manyLarge }) =>
      barsOf({
        "large buffer, as many times as long on the many ranks": over(manyLarge?.seconds, fewLarge?.seconds),
        "small buffer": over(many?.seconds, few?.seconds),
      }),
    written: (value) => `${precise(value)} ×`,
    verdict: ({ few, many }) =>
      judge(
        over(many?.seconds, few?.seconds),
        (ratio) => ratio < 1.1,
        (ratio) => ratio < 2,
      ),
    numbers: ({ few, many, fewLarge, manyLarge }) => ({
      few: few && whole(few.ranks),
      many: many && whole(many.ranks),
      small: few && bytes(few.buffer_bytes),
      large: fewLarge && bytes(fewLarge.buffer_bytes),
      smallTimes: times(over(many?.seconds, few?.seconds)),
      largeTimes: times(over(manyLarge?.seconds, fewLarge?.seconds)),
    }),
    sentences: [
      {
        text: "From {few} ranks to {many}, {small} take {smallTimes} times as long: every hop has its latency. Even {large} take {largeTimes} times.",
      },
      {
        text: "Right in the limit: bytes a rank sends approach twice the buffer, however many ranks there are.",
      },
    ],
  }),
  claim({
    id: "nvlink",
    says: "NVLink is 18 times as fast as the network: 900 against 50 GB/s.",
    parts: { machine: "cluster" },
    asks: () => ({ machine: { cluster: `${CLUSTER}:16384` } }),
    bars: ({ machine }) =>
      barsOf({
        "NVLink, a device, one direction": machine?.levels[0]?.device_bytes_per_second,
        "network, a device, one direction": machine?.levels[1]?.device_bytes_per_second,
      }),
    written: (value) => `${bytes(value)}/s`,
    verdict: ({ machine }) =>
      judge(
        machine?.levels[1]?.ratio,
        (ratio) => ratio > 15,
        (ratio) => ratio > 5,
      ),
    numbers: ({ machine }) => ({
      fast: machine && `${bytes(machine.levels[0]?.device_bytes_per_second ?? 0)}/s`,
      slow: machine && `${bytes(machine.levels[1]?.device_bytes_per_second ?? 0)}/s`,
      ratio: times(machine?.levels[1]?.ratio),
    }),
    sentences: [
      {
        text: "A device sends {fast} over NVLink and {slow} over its card: {ratio} times. The data sheet adds up both directions for the one, and not for the other.",
      },
      {
        text: "Right is that the step is large. Count one direction on both sides, or both on both: it is {ratio} either way.",
      },
    ],
  }),
  claim({
    id: "recompute",
    says: "Recomputing activations costs a third.",
    parts: { none: "simulate", selective: "simulate", full: "simulate" },
    asks: () => ({
      none: step(),
      selective: step({ "layout.recompute": "selective" }),
      full: step({ "layout.recompute": "full" }),
    }),
    bars: ({ none, selective, full }) =>
      barsOf({
        "none, a step": none?.step_seconds,
        selective: selective?.step_seconds,
        "full, whole blocks": full?.step_seconds,
      }),
    written: seconds,
    verdict: ({ none, full }) =>
      judge(
        over(full?.step_seconds, none?.step_seconds),
        (ratio) => Math.abs(ratio - 4 / 3) < NEAR,
        (ratio) => ratio > 1.1,
      ),
    numbers: ({ none, selective, full }) => ({
      flops: none && full && perCent(full.executed_flops / none.executed_flops - 1),
      time: none && full && perCent(full.step_seconds / none.step_seconds - 1),
      selective: none && selective && perCent(selective.step_seconds / none.step_seconds - 1),
    }),
    sentences: [
      {
        text: "Whole blocks cost {flops} more arithmetic and make this step {time} longer. Selective recomputation makes it {selective} longer.",
      },
      { text: "Right of the arithmetic: one more forward, where a step had three of its size." },
    ],
  }),
  claim({
    id: "sqrt",
    says: "With recomputation, activations grow with the square root of the depth.",
    parts: { shallow: "simulate", deep: "simulate" },
    asks: () => ({ shallow: alone({ "model.num_layers": 16 }), deep: alone({ "model.num_layers": 64 }) }),
    bars: ({ shallow, deep }) => {
      const held = (found: SimulationDocument | undefined): number | undefined =>
        found && checkpointed(found);
      return barsOf({ "a quarter of the layers": held(shallow), "all layers": held(deep) });
    },
    written: bytes,
    verdict: ({ shallow, deep }) =>
      shallow && deep
        ? judge(
            over(checkpointed(deep), checkpointed(shallow)),
            (ratio) => ratio < 2.2,
            (ratio) => ratio < 3,
          )
        : undefined,
    numbers: ({ shallow, deep }) => ({
      ratio: shallow && deep && times(over(checkpointed(deep), checkpointed(shallow))),
      layers: shallow && deep && times(over(layersOf(deep), layersOf(shallow))),
    }),
    sentences: [
      {
        text: "With {layers} times the layers, the inputs that are kept take {ratio} times the bytes: trainers keep every block's input.",
      },
      {
        text: "Right of the algorithm that keeps only one input in every square root of the layers. Few use it: recomputing goes twice over.",
      },
    ],
  }),
  claim({
    id: "tp",
    says: "Tensor parallelism must never leave the node.",
    parts: { near: "simulate", far: "simulate" },
    asks: () => ({ near: step(), far: step({ "layout.tp": 16, "layout.dp_shard": 64 }) }),
    bars: ({ near, far }) =>
      barsOf({ "in the node, a step": near?.step_seconds, "over two nodes": far?.step_seconds }),
    written: seconds,
    verdict: ({ near, far }) =>
      judge(
        over(far?.step_seconds, near?.step_seconds),
        (ratio) => ratio > 1.5,
        (ratio) => ratio > 1.02,
      ),
    numbers: ({ near, far }) => ({
      slower: near && far && perCent(far.step_seconds / near.step_seconds - 1),
      waits: far && perCent(far.time_shares.exposed.tp ?? 0),
      less: near && far && bytes(near.memory_bytes - far.memory_bytes),
    }),
    sentences: [
      {
        text: "Over two nodes the step is {slower} longer, and devices wait {waits} of it for the exchange. A device holds {less} less.",
      },
      { text: "Right as a rule. It is a price, which may be worth its memory." },
    ],
  }),
  claim({
    id: "microbatches",
    says: "More microbatches always help.",
    parts: { few: "simulate", many: "simulate" },
    asks: () => ({ few: step(), many: step({ "batch.global_sequences": 8192 }) }),
    bars: ({ few, many }) =>
      barsOf({ "as in the run, bubble": few?.bubble_fraction, "four times as many": many?.bubble_fraction }),
    written: perCent,
    verdict: ({ few, many }) =>
      judge(
        over(many?.tokens_per_second, few?.tokens_per_second),
        () => false,
        (ratio) => ratio > 1,
      ),
    numbers: ({ few, many }) => ({
      few: few && perCent(few.bubble_fraction),
      many: many && perCent(many.bubble_fraction),
      gain: few && many && perCent(many.tokens_per_second / few.tokens_per_second - 1),
      batch: few && count(few.tokens),
      larger: many && count(many.tokens),
    }),
    sentences: [
      {
        text: "The bubble falls from {few} to {many}, and tokens a second rise by {gain}. The batch grows from {batch} to {larger} tokens.",
      },
      {
        text: "Right of the step's speed. Whether a batch so large still teaches as much a token, no simulator knows.",
      },
    ],
  }),
  claim({
    id: "accumulation",
    says: "Gradient accumulation costs no communication.",
    parts: { once: "simulate", each: "simulate" },
    asks: () => ({ once: step({ "layout.zero": 1 }), each: step({ "layout.zero": 2 }) }),
    bars: ({ once, each }) =>
      barsOf({ "ZeRO-1, a device and step": dataParallel(once), "ZeRO-2": dataParallel(each) }),
    written: bytes,
    verdict: ({ once, each }) =>
      judge(
        over(dataParallel(each), dataParallel(once)),
        (ratio) => ratio < 1.1,
        () => true,
      ),
    numbers: ({ once, each }) => ({
      batches: once && whole(once.num_microbatches),
      once: once && bytes(dataParallel(once) ?? 0),
      each: each && bytes(dataParallel(each) ?? 0),
      step: each && seconds(each.step_seconds),
      other: once && seconds(once.step_seconds),
    }),
    sentences: [
      {
        text: "ZeRO-2 holds no whole gradients, so it reduces after each of {batches} microbatches: {each} in place of {once}, and a step of {step}, not {other}.",
      },
      { text: "Right of plain data parallelism and of ZeRO-1." },
    ],
  }),
  claim({
    id: "bf16",
    says: "Training in bf16 halves the memory.",
    parts: { wide: "simulate", narrow: "simulate" },
    asks: () => ({ wide: alone({ ...SHORT, "precision.compute": "fp32" }), narrow: alone(SHORT) }),
    bars: ({ wide, narrow }) =>
      barsOf({ "fp32, state of a parameter": stateOf(wide), "bf16 with a master copy": stateOf(narrow) }),
    written: (value) => `${precise(value)} bytes`,
    verdict: ({ wide, narrow }) =>
      judge(
        over(stateOf(narrow), stateOf(wide)),
        (ratio) => ratio < 0.6,
        (ratio) => ratio < 0.9,
      ),
    numbers: ({ wide, narrow }) => ({
      wide: times(stateOf(wide)),
      narrow: times(stateOf(narrow)),
      kept: wide && narrow && perCent(checkpointed(narrow) / checkpointed(wide), 0),
    }),
    sentences: [
      {
        text: "State takes {narrow} bytes a parameter, in fp32 {wide}: a master copy comes on top of the narrow weights.",
      },
      {
        text: "Right of activations, which are most of the memory where sequences are long: what a block keeps is {kept} of fp32's.",
      },
    ],
  }),
  claim({
    id: "flash",
    says: "Flash attention computes less.",
    parts: { tiles: "attention" },
    asks: () => ({
      tiles: {
        cluster: CLUSTER,
        sequences: 1,
        tokens: 8192,
        heads: 16,
        head_dim: 128,
        causal: false,
        order: "2023",
      },
    }),
    bars: ({ tiles }) => {
      const [standard, , flash] = tiles?.algorithms ?? [];
      return barsOf({ "standard, bytes": standard?.bytes, "in tiles, bytes": flash?.bytes });
    },
    written: bytes,
    verdict: ({ tiles }) =>
      judge(over(tiles?.algorithms.at(-1)?.flops, tiles?.algorithms[0]?.flops), (ratio) => ratio < 0.9),
    numbers: ({ tiles }) => ({
      flops: tiles && `${count(tiles.algorithms.at(-1)?.flops ?? 0)}FLOP`,
      other: tiles && `${count(tiles.algorithms[0]?.flops ?? 0)}FLOP`,
      ratio: times(tiles?.algorithms.at(-1)?.standard_ratio),
    }),
    sentences: [
      {
        text: "It does {flops}, the standard algorithm {other}. What is less are bytes: the standard one moves {ratio} times as many.",
      },
      { text: "Right under a causal mask, whose empty tiles it leaves out." },
    ],
  }),
  claim({
    id: "adam",
    says: "Adam doubles the memory of a model.",
    parts: { step: "simulate" },
    asks: () => ({ step: alone({}) }),
    bars: ({ step: found }) =>
      barsOf(Object.fromEntries((found ? statesOf(found) : []).map((each) => [each.name, each.bytes]))),
    written: bytes,
    verdict: ({ step: found }) =>
      judge(found && over(statesOf(found)[2]?.bytes, statesOf(found)[0]?.bytes), (ratio) => ratio < 2.2),
    numbers: ({ step: found }) => ({
      ratio: found && times(over(statesOf(found)[2]?.bytes, statesOf(found)[0]?.bytes)),
    }),
    sentences: [
      {
        text: "In mixed precision its states take {ratio} times the bytes of the weights: two moments and a master copy, all in fp32.",
      },
      { text: "Right of training in fp32 alone, if one counts the moments beside weights and gradients." },
    ],
  }),
  claim({
    id: "interleaved",
    says: "Interleaving shrinks the bubble for nothing.",
    parts: { one: "simulate", many: "simulate" },
    asks: () => ({
      one: step({
        "layout.schedule": "1f1b",
        "layout.virtual_stages": 1,
        "layout.segments_per_stage": Array(16).fill(8),
      }),
      many: step(),
    }),
    bars: ({ one, many }) =>
      barsOf({
        "one stage a rank, bytes between ranks": axisBytes(one, "pp"),
        "as in the run": axisBytes(many, "pp"),
      }),
    written: bytes,
    verdict: ({ one, many }) =>
      judge(
        over(axisBytes(many, "pp"), axisBytes(one, "pp")),
        (ratio) => ratio < 1.1,
        () => true,
      ),
    numbers: ({ one, many }) => ({
      from: one && perCent(one.bubble_fraction),
      to: many && perCent(many.bubble_fraction),
      stages: many && whole(many.layout.virtual_stages),
      ratio: times(over(axisBytes(many, "pp"), axisBytes(one, "pp"))),
    }),
    sentences: [
      {
        text: "With {stages} stages on each rank the bubble falls from {from} to {to}, and a device sends {ratio} times as much between ranks.",
      },
      { text: "Right where those transfers hide behind computation." },
    ],
  }),
  claim({
    id: "sequence",
    says: "Sequence parallelism adds communication.",
    parts: { off: "block", on: "block" },
    asks: () => ({
      off: { ...step(), tp: 8, sequence_parallel: false },
      on: { ...step(), tp: 8, sequence_parallel: true },
    }),
    bars: ({ off, on }) => barsOf({ "without, a block's forward": sentOf(off), with: sentOf(on) }),
    written: bytes,
    verdict: ({ off, on }) => judge(over(sentOf(on), sentOf(off)), (ratio) => ratio > 1 + NEAR),
    numbers: ({ off, on }) => ({ off: off && bytes(sentOf(off) ?? 0), on: on && bytes(sentOf(on) ?? 0) }),
    sentences: [
      {
        text: "A rank sends {on} with it and {off} without: a reduce-scatter and an all-gather are the two passes of an all-reduce.",
      },
      { text: "Right of the number of calls, and so of latency." },
    ],
  }),
  claim({
    id: "bubble",
    says: "A zero-bubble schedule has no bubble.",
    parts: { zero: "pipeline", plain: "pipeline" },
    asks: () => ({ zero: drawn("zb_h1", 8, 16), plain: drawn("1f1b", 8, 16) }),
    bars: ({ zero, plain: one }) => barsOf({ "1F1B": one?.bubble_fraction, "ZB-H1": zero?.bubble_fraction }),
    written: perCent,
    verdict: ({ zero }) => judge(zero?.bubble_fraction, (share) => share < NEAR),
    numbers: ({ zero, plain: one }) => ({
      zero: zero && perCent(zero.bubble_fraction),
      plain: one && perCent(one.bubble_fraction),
    }),
    sentences: [
      {
        text: "The schedule with the mildest needs leaves {zero}, where 1F1B leaves {plain}: forwards must still reach the last rank.",
      },
      { text: "Right of schedules that hold more in flight and let steps overlap." },
    ],
  }),
  claim({
    id: "peak",
    says: "A large matmul runs at the peak of the data sheet.",
    parts: { roofline: "roofline" },
    asks: () => ({ roofline: step() }),
    bars: ({ roofline }) => {
      const kernel = roofline?.kernels.find(({ kind }) => kind === "matmul");
      return barsOf({
        "peak, FLOP/s": roofline?.roofs[0]?.flops_per_second,
        "longest matmul of a block": kernel?.flops_per_second,
      });
    },
    written: (value) => `${count(value)}FLOP/s`,
    verdict: ({ roofline }) =>
      judge(
        roofline?.kernels.find(({ kind }) => kind === "matmul")?.roof_share,
        (share) => share > 0.9,
        (share) => share > 0.8,
      ),
    numbers: ({ roofline }) => {
      const kernel = roofline?.kernels.find(({ kind }) => kind === "matmul");
      return {
        shape: kernel?.shape,
        share: kernel && perCent(kernel.roof_share, 0),
        software: roofline?.software,
      };
    },
    sentences: [
      {
        text: "{shape} runs at {share} of it. The rate is that of the software profile {software}, which measured runs gave.",
      },
      { text: "Right of the clock that the data sheet assumes. Power holds a busy device below it." },
    ],
  }),
  claim({
    id: "six",
    says: "Training takes 6 FLOP for each parameter and token.",
    parts: { short: "simulate", long: "simulate" },
    asks: () => ({ short: step(), long: { run: "preset:llama3-405b-128k", overrides: {} } }),
    bars: ({ short, long }) =>
      barsOf({
        "short sequences, FLOP": over(short?.flops_per_token, short?.model_parameters),
        "long sequences": over(long?.flops_per_token, long?.model_parameters),
      }),
    written: precise,
    verdict: ({ short, long }) =>
      judge(
        over(long?.flops_per_token, long?.model_parameters),
        (ratio) => ratio < 6.5,
        () => over(short?.flops_per_token, short?.model_parameters) !== undefined,
      ),
    numbers: ({ short, long }) => ({
      short: times(over(short?.flops_per_token, short?.model_parameters)),
      long: times(over(long?.flops_per_token, long?.model_parameters)),
      tokens: long && whole(long.tokens),
    }),
    sentences: [
      {
        text: "{short} in the run of this tour, with attention. In its later run on long sequences {long}: attention grows with the length.",
      },
      { text: "Right while a sequence is short beside the width of the model." },
    ],
  }),
  claim({
    id: "experts",
    says: "A mixture of experts costs what its parameters say.",
    parts: { mixture: "simulate", dense: "simulate" },
    asks: () => ({ mixture: { run: "preset:deepseek-v3-2k", overrides: {} }, dense: step() }),
    bars: ({ mixture, dense }) =>
      barsOf({
        "Llama 3 405B, FLOP a token": dense?.flops_per_token,
        "DeepSeek-V3": mixture?.flops_per_token,
      }),
    written: (value) => `${count(value)}FLOP`,
    verdict: ({ mixture, dense }) =>
      judge(over(mixture?.flops_per_token, dense?.flops_per_token), (ratio) => ratio > 1.2),
    numbers: ({ mixture, dense }) => ({
      more: times(over(mixture?.model_parameters, dense?.model_parameters)),
      less: times(over(dense?.flops_per_token, mixture?.flops_per_token)),
    }),
    sentences: [
      {
        text: "DeepSeek-V3 has {more} times the parameters of Llama 3 405B. Llama computes {less} times as much for a token.",
      },
      { text: "Right of memory: every expert has its weights and its optimizer states somewhere." },
    ],
  }),
  claim({
    id: "backward",
    says: "A backward takes twice as long as a forward.",
    parts: { run: "simulate" },
    asks: () => ({ run: step() }),
    bars: ({ run }) =>
      barsOf({
        "forward of a block": run?.layers[0]?.forward_seconds,
        backward: run?.layers[0]?.backward_seconds,
      }),
    written: seconds,
    verdict: ({ run }) =>
      judge(
        over(run?.layers[0]?.backward_seconds, run?.layers[0]?.forward_seconds),
        (ratio) => Math.abs(ratio - 2) < 0.15,
        (ratio) => ratio > 1.5,
      ),
    numbers: ({ run }) => ({
      ratio: times(over(run?.layers[0]?.backward_seconds, run?.layers[0]?.forward_seconds)),
    }),
    sentences: [
      {
        text: "A block's takes {ratio} times as long here: it has two matmuls for each one of the forward, but not twice of what stands between them.",
      },
      { text: "Wrong at once with full recomputation, which puts a forward into every backward." },
    ],
  }),
  claim({
    id: "failures",
    says: "A device that fails once in six years can be left out of account.",
    parts: { run: "simulate" },
    asks: () => ({ run: { ...step(), checkpoint_seconds: "60", restart_seconds: "600" } }),
    bars: ({ run }) =>
      barsOf({
        "training, days": run?.run && run.run.training_seconds / DAY,
        "with failures and spares": run?.run?.seconds != null ? run.run.seconds / DAY : undefined,
      }),
    written: (value) => `${precise(value)} days`,
    verdict: ({ run }) => judge(run?.run?.goodput, (share) => share > 0.98),
    numbers: ({ run }) => ({
      devices: run && whole(run.devices),
      between: run?.run?.failures ? duration(run.run.failures.mean_seconds_between) : undefined,
      goodput: run?.run && perCent(run.run.goodput),
    }),
    sentences: [
      {
        text: "{devices} of them fail every {between}. With a checkpoint of a minute and spares, {goodput} of the time is kept.",
      },
      { text: "Right of a node alone: it will most likely outlive the run." },
    ],
  }),
];

/** Inputs that are kept for recomputation. */
function checkpointed(found: SimulationDocument): number {
  return found.layers.reduce((sum, each) => sum + each.numbers.length * each.kept_bytes, 0);
}
function layersOf(found: SimulationDocument): number {
  return found.layers.reduce((sum, each) => sum + each.numbers.length, 0);
}
