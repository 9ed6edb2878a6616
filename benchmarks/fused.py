"""Gains of fusing a step's memory-bound kernels: counted for a GPU, measured on this processor.

    python benchmarks/fused.py count                     # launches and bytes of each piece, and its share of a step on H100s
    python benchmarks/fused.py measure [--hidden 1024 --tokens 512 --dtype fp32 --rounds 15 --threads 1]

`measure`: each piece as the runtime computes it, beside a plain formula through torch.compile and beside PyTorch's own operator.
Results are compared first. Times are medians of alternating rounds, in seconds of the process. The step beside which they stand is
one of a model of two blocks of that size and a vocabulary of 8,192.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from fourfold.calibrate.steps import StepRunner, table_spec
from fourfold.config import ModelConfig, parse_run
from fourfold.hardware import load_cluster
from fourfold.model import torch_operations
from fourfold.model.environment import Environment
from fourfold.model.recorder.operations import RecorderOperations
from fourfold.model.recorder.recording import Recording
from fourfold.model.recorder.shape_tensor import ShapeTensor
from fourfold.model.torch_operations import torch_dtype
from fourfold.model.work import Elementwise, Work
from fourfold.program.view import rank_view
from fourfold.simulate.run_prices import prices_for
from fourfold.simulate.step import simulate
from fused_pieces import Arrays, Input, Piece, dense_pieces, expert_pieces, update_piece
from fused_ways import copies, formula, off, operator, tensors

CPU = torch.device("cpu")
COUNTED = {
    "model": {"preset": "llama3-8b"},
    "batch": {"global_sequences": 8, "sequence_length": 4096, "steps": 100},
    "layout": {"dp_shard": 8, "zero": 3, "microbatch_sequences": 1},
    "precision": {"compute": "bf16"},
}
CLUSTER = "dgx-h100:1"
UPDATED = 2**22
"""Elements of the update that is timed."""
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""How far a result may be off by its norm."""


def count() -> None:
    """A table of all pieces of an 8B Llama's step on one of eight H100s, by the recorder and the prices of `fourfold simulate`."""
    spec = table_spec(COUNTED, 8, "cuda")
    prices = prices_for(parse_run(COUNTED), spec, load_cluster(CLUSTER))
    step = simulate(spec, prices).seconds
    print(f"llama3-8b, one sequence of 4,096 tokens, bf16, ZeRO-3 on {CLUSTER}: a step of {step:.4g} s is predicted\n")
    _print_head("launches", "times a step", "bytes of one, MB", "least", "share of the step", "in one kernel")
    for piece in dense_pieces(spec.model, 4096, True):
        _count_line(piece.name, recorded(piece, spec.model), piece.times, prices.kernel, step)
    flats = rank_view(spec).flats.values()
    for_update = sum(spec.update_bytes(flat.shard_numel) for flat in flats)
    _count_line("AdamW of an eighth", [Elementwise(for_update, for_update)], 1, prices.kernel, step)


def _print_head(*columns: str) -> None:
    print("|".join(["", " ", *(f" {column} " for column in columns), ""]))
    print("|---" * (1 + len(columns)) + "|")


def _count_line(
    name: str, items: list[Elementwise], times: float, seconds: Callable[[Any], float], step: float
) -> None:
    size, least, launches = (
        sum(values) for values in zip(*((i.bytes, i.least_bytes, i.launches) for i in items), strict=True)
    )
    shares = [100 * times * sum(map(seconds, each)) / step for each in (items, [Elementwise(least, least)])]
    cells = f"{launches} | {times:g} | {size / 1e6:.1f} | {least / 1e6:.1f} | {shares[0]:.1f} % | {shares[1]:.1f} %"
    print(f"| {name} | {cells} |")


def recorded(piece: Piece, model: ModelConfig) -> list[Elementwise]:
    """A piece's memory-bound kernels on a GPU."""
    recording = Recording(staging=False)
    ops = RecorderOperations(recording, accelerator=True)
    recording.begin()
    results = piece.run(
        Environment(ops, model), {name: _shape_tensor(ops, each) for name, each in piece.inputs.items()}
    )
    work: Work = recording.recorded()
    del results
    return [item for item in work.items if isinstance(item, Elementwise)]


def _shape_tensor(ops: RecorderOperations, given: Input) -> ShapeTensor:
    formats = {"below": "int64", "count": "int64", "fp32": "fp32", "zeros": "fp32"}
    return ops.outside(given.shape, formats.get(given.kind, "bf16"))


def model_of(hidden: int) -> ModelConfig:
    """Llama's proportions."""
    return ModelConfig(2, hidden, hidden // 64, max(1, hidden // 256), 64, hidden * 11 // 4 // 64 * 64, 8192)


def measure(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    model, dtype = model_of(options.hidden), torch_dtype(options.dtype)
    env = Environment(torch_operations, model)
    step = step_seconds(model, options)
    print(
        f"hidden {options.hidden}, {options.tokens} tokens, {options.dtype}, {options.threads} threads, torch {torch.__version__}"
    )
    print(f"a step takes {step:.3f} s of the process\n")
    _print_head("ms", "share of the step", "torch.compile", "step with it", "PyTorch's operator", "step with it")
    experts = replace(model, num_experts=8, top_k=2)
    found = dense_pieces(model, options.tokens, False)
    numel = sum(flat.padded_numel for flat in rank_view(table_spec(table(model, options), 1, "cpu")).flats.values())
    found.append(update_piece(UPDATED, numel))
    for piece in found:
        _measure_line(piece, env, step, options.rounds, dtype)
    for piece in expert_pieces(experts, options.tokens):
        _measure_line(piece, replace(env, model=experts), 0.0, options.rounds, dtype)


def _measure_line(piece: Piece, env: Environment, step: float, rounds: int, dtype: torch.dtype) -> None:
    """`step`: seconds of the step that the piece is part of, 0 for one of another model."""
    given, plain, own = tensors(piece, dtype, CPU), formula(piece.name), operator(piece.name, CPU)
    ways: list[Callable[[Arrays], Any] | None] = [
        lambda a: piece.run(env, a),
        None if plain is None else torch.compile(plain, dynamic=False, fullgraph=True),
        None if own is None else own[1],
    ]
    expected = piece.run(env, copies(given))
    for way in filter(None, ways):
        worst = off(way(copies(given)), expected)
        if not worst <= BOUNDS[dtype]:
            raise SystemExit(f"{piece.name}: off by {worst:.1e}")
    seconds = alternating(list(filter(None, ways)), given, rounds)
    today, spent = seconds.pop(0), 0.0
    cells = [f"{1000 * today:.2f}"]
    if step:
        spent = today * piece.times / step
        cells.append(f"{100 * spent:.2f} %")
    else:
        cells.append("")
    for way in ways[1:]:
        ratio = seconds.pop(0) / today if way is not None else None
        cells.append("" if ratio is None else f"{ratio:.2f}")
        cells.append("" if ratio is None or not step else f"{1 + (ratio - 1) * spent:.4f}")
    print(f"| {piece.name} | {' | '.join(cells)} |", flush=True)


def alternating(ways: list[Callable[[Arrays], Any]], given: Arrays, rounds: int) -> list[float]:
    """Median seconds of the process of each."""
    seconds: list[list[float]] = [[] for _ in ways]
    for round in range(rounds):
        for index in range(len(ways)) if round % 2 else reversed(range(len(ways))):
            arrays = copies(given)
            begun = time.process_time()
            ways[index](arrays)
            seconds[index].append(time.process_time() - begun)
    return [median(each) for each in seconds]


def table(model: ModelConfig, options: argparse.Namespace) -> dict[str, Any]:
    sizes = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "vocab_size")
    return {
        "model": {name: getattr(model, name) for name in sizes},
        "batch": {"global_sequences": 1, "sequence_length": options.tokens, "steps": 100},
        "precision": {"compute": options.dtype},
    }


def step_seconds(model: ModelConfig, options: argparse.Namespace) -> float:
    """Median seconds of the process of three steps of the runtime on one rank."""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'store'}", rank=0, world_size=1)
        try:
            runner = StepRunner(table(model, options), 1, 0, CPU, time.process_time)
            runner.step()
            return median(runner.step() for _ in range(3))
        finally:
            dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("count", "measure"))
    for name, default in (("hidden", 1024), ("tokens", 512), ("rounds", 15), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    options = parser.parse_args()
    count() if options.what == "count" else measure(options)


if __name__ == "__main__":
    main()
