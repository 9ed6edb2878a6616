"""Parts of `device.sh` that measure one device: `python benchmarks/device.py machine | kernels | steps [SECONDS [DEVICE.toml]]`.

`DEVICE.toml`: what `fourfold calibrate --device` wrote, to predict the steps with. A figure that could not be taken is a line that
begins with `unmeasured:` and says why. Without a CUDA device the same code runs on tiny shapes, so that none of it is new to a GPU.
"""

import gc
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from device_record import figure, known, unmeasured
from plain_step import plain_step

if TYPE_CHECKING:
    from fourfold.simulate.step import Simulation

ON_CUDA = torch.cuda.is_available()
LENGTH = 4096 if ON_CUDA else 64
SHARE_OF_MEMORY = 0.9
MICROBATCHES, TIMED_STEPS = 4, 3
_LLAMA_3B = {
    "num_layers": 28,
    "hidden_size": 3072,
    "num_heads": 24,
    "num_kv_heads": 8,
    "ffn_size": 8192,
    "vocab_size": 128256,
    "tie_embeddings": True,
    "rope_theta": 500000.0,
}
SHAPES: dict[str, dict[str, Any]] = {"1B": {"preset": "llama3.2-1b"}, "3B": _LLAMA_3B, "8B": {"preset": "llama3-8b"}}
AIMS = {"1B": "50 % MFU", "3B": "45 % MFU", "8B": "10,500 tokens/s on an H200 with 8 bytes of state a parameter"}
LATEST = {"ours": 0.6, "plain_compiled": 0.8, "plain_eager": 0.9}
"""The share of the part's seconds after which none is begun."""
TINY = {"num_layers": 4, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 128, "vocab_size": 256}
MATMULS = {
    "qkv": (LENGTH, 6144, 4096),
    "gate and up": (LENGTH, 28672, 4096),
    "down": (LENGTH, 4096, 14336),
    "head": (512, 128256, 4096),
}
"""Rows, columns and inner size of an 8B Llama's matmuls."""


def reason(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def device() -> torch.device:
    return torch.device("cuda", 0) if ON_CUDA else torch.device("cpu")


def synchronize() -> None:
    if ON_CUDA:
        torch.cuda.synchronize()


def release() -> None:
    """Frees what an earlier shape held: an executor is a cycle of references, which only a collection ends."""
    gc.collect()
    if ON_CUDA:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def seconds(function: Callable[[], Any], window: float = 0.5) -> float:
    """Mean seconds of a call over a window, after two to warm up."""
    function()
    function()
    synchronize()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < (window if ON_CUDA else window / 10):
        for _ in range(4):
            function()
        synchronize()
        count += 4
    return (time.perf_counter() - start) / count


@cache
def best_matmul(compute: str) -> float:
    """FLOP/s of the best of three square matmuls, each for long enough to be believed."""
    sizes = (4096, 8192, 12288) if ON_CUDA else (256, 512)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[compute]
    best = 0.0
    for size in sizes:
        a, b = (torch.randn(size, size, dtype=dtype, device=device()) for _ in range(2))
        best = max(best, 2 * size**3 / seconds(lambda a=a, b=b: torch.mm(a, b)))
    return best


def machine(budget: float, file: str) -> None:
    """Device and versions."""
    print(f"python {sys.version.split()[0]}, torch {torch.__version__}, NCCL", end=" ")
    print(".".join(map(str, torch.cuda.nccl.version())) if ON_CUDA else "not built in")
    if not ON_CUDA:
        unmeasured("everything on CUDA", "torch sees no CUDA device; tiny shapes run on the CPU")
        return
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        print(f"cuda:{index} {found.name}, {found.total_memory / 1e9:.1f} GB, {found.multi_processor_count} units")
    if torch.cuda.device_count() == 1:
        unmeasured("collectives over NCCL between devices", "there is one device")


def kernels(budget: float, file: str) -> None:
    """Matmuls and attention of an 8B Llama at a sequence of 4096; on a CPU of one 64 times narrower."""
    on: dict[str, Any] = {"dtype": torch.bfloat16 if ON_CUDA else torch.float32, "device": device()}
    shrink = 1 if ON_CUDA else 64
    for name, (rows, columns, inner) in MATMULS.items():
        columns, inner = columns // shrink, inner // shrink
        a, b = torch.randn(rows, inner, **on), torch.randn(columns, inner, **on)
        taken = seconds(lambda a=a, b=b: F.linear(a, b))
        rate = 2 * rows * columns * inner / taken / 1e12
        figure(f"matmul {name}", f"matmul {name:<12} {rows} x {columns} x {inner}: {rate:.3g} TFLOP/s", tflops=rate)
    weight_gradient(on, 28672 // shrink, 4096 // shrink)
    attention(on, 32 if ON_CUDA else 4, 128 if ON_CUDA else 16)


def weight_gradient(on: dict[str, Any], columns: int, inner: int) -> None:
    from fourfold.model.torch_operations import accumulate

    grad = torch.zeros(columns, inner, device=device())
    out, x = torch.randn(LENGTH, columns, **on), torch.randn(LENGTH, inner, **on)
    taken = seconds(lambda: accumulate(grad, out, x, False))
    rate = 2 * LENGTH * columns * inner / taken / 1e12
    figure("weight gradient", f"weight gradient into fp32: {rate:.3g} TFLOP/s", tflops=rate)


def attention(on: dict[str, Any], heads: int, width: int) -> None:
    from fourfold.model.torch_attention import attend, attend_backward

    q = torch.randn(1, LENGTH, heads, width, **on)
    k, v = (torch.randn(1, LENGTH, heads // 4, width, **on) for _ in range(2))
    flops, scale = 2 * 2 * LENGTH * LENGTH * heads * width / 2, width**-0.5
    mixed, lse = attend(q, k, v, True, scale)
    taken = seconds(lambda: attend(q, k, v, True, scale))
    rate = flops / taken / 1e12
    figure("attention, forward", f"attention, forward: {rate:.3g} TFLOP/s", tflops=rate)
    taken = seconds(lambda: attend_backward(mixed, q, k, v, mixed, lse, True, scale))
    rate = 2.5 * flops / taken / 1e12
    figure("attention, backward", f"attention, backward: {rate:.3g} TFLOP/s", tflops=rate)


def run_table(model: dict[str, Any]) -> dict[str, Any]:
    """A run of one rank: one sequence a microbatch."""
    return {
        "model": model,
        "batch": {"global_sequences": MICROBATCHES, "sequence_length": LENGTH, "steps": 100},
        "layout": {"microbatch_sequences": 1, "recompute": "selective"},
        "precision": {"compute": "bf16" if ON_CUDA else "fp32"},
    }


@dataclass(frozen=True)
class Case:
    """A shape with as many of its blocks as fit: their number, the model's own, the predicted peak."""

    name: str
    table: dict[str, Any]
    blocks: int
    full: int
    peak_bytes: float

    @property
    def title(self) -> str:
        return self.name if self.blocks == self.full else f"{self.name} with {self.blocks} of {self.full} blocks"


def fitting(name: str, model: dict[str, Any], limit: float) -> Case:
    """Raises `MemoryError` where not one block fits `limit` bytes."""
    from fourfold.calibrate.steps import table_spec
    from fourfold.program import lower_step, memory_peak
    from fourfold.program.view import rank_view

    def case(blocks: int | None, full: int = 0) -> Case:
        table = run_table({**model, **({} if blocks is None else {"num_layers": blocks})})
        spec = table_spec(table, 1, device().type)
        layers = spec.model.num_layers
        return Case(name, table, layers, full or layers, memory_peak(lower_step(rank_view(spec))).bytes)

    best = case(None)
    if best.peak_bytes <= limit:
        return best
    low, high, full = 0, best.full, best.full
    while high - low > 1:
        middle = (low + high) // 2
        tried = case(middle, full)
        if tried.peak_bytes <= limit:
            low, best = middle, tried
        else:
            high = middle
    if low == 0:
        raise MemoryError(f"not one block fits {limit / 1e9:.3g} GB")
    return best


def steps(budget: float, file: str) -> None:
    """Steps of three Llamas on one rank, each beside its prediction and a plain torch loop; on a CPU of tiny ones."""
    begun = time.perf_counter()
    if ON_CUDA:
        total = torch.cuda.get_device_properties(0).total_memory
        shapes, limit = SHAPES, SHARE_OF_MEMORY * total
    else:
        unmeasured("the 1B, 3B and 8B shapes", "no CUDA device; tiny ones run in their place")
        shapes, limit = {"tiny": TINY, "tiny, cut": {**TINY, "num_layers": 64}}, 2e7
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if ON_CUDA else "gloo"
        dist.init_process_group(backend, init_method=f"file://{Path(folder) / 'store'}", rank=0, world_size=1)
        try:
            for way, (name, model) in product((ours, plain_compiled, plain_eager), shapes.items()):
                what = f"{name}, {way.__name__}"
                if what in known():
                    continue
                if time.perf_counter() - begun > budget * LATEST[way.__name__]:
                    unmeasured(what, f"the {budget:.0f} s of this part are used up")
                    continue
                release()
                try:
                    way(what, fitting(name, model, limit), file)
                except Exception as error:  # whatever a compiler or a device raises must not stop the others
                    unmeasured(what, reason(error))
            unmeasured(
                "8 bytes of state a parameter", "master weights and AdamW's states take 12 bytes here, gradients 4"
            )
        finally:
            dist.destroy_process_group()


def ours(what: str, case: Case, file: str) -> None:
    """One line: tokens/s, MFU against a measured peak, step and memory beside their predictions; then one a kind of instruction."""
    from fourfold.calibrate.steps import StepRunner
    from fourfold.model.counts import step_flops_per_token
    from fourfold.runtime.clock import StepClock

    runner = StepRunner(case.table, 1, 0, device())
    runner.step()
    peak = runner.peak_bytes()
    taken = median(runner.step() for _ in range(TIMED_STEPS))
    clock = StepClock(device())
    runner.step(clock)
    kinds = {kind: sum(each) for kind, each in runner.kind_seconds(clock).items()}
    rate = MICROBATCHES * LENGTH / taken
    flops = rate * step_flops_per_token(runner.view.spec.model, LENGTH)
    del runner
    release()
    measured = best_matmul(case.table["precision"]["compute"])
    share = f"{100 * flops / measured:.1f} %" if flops < measured else "no share"
    prediction = predicted(case, file)
    expected = "not predicted (no device file)" if prediction is None else f"predicted {prediction.seconds:.4g} s"
    figure(
        what,
        f"{case.title}: {rate:,.0f} tokens/s, {flops / 1e12:.3g} TFLOP/s, {share} of the best matmul measured here "
        f"({measured / 1e12:.3g} TFLOP/s), step {taken:.4g} s, {expected}, peak {peak / 1e9:.3g} GB, predicted "
        f"{case.peak_bytes / 1e9:.3g} GB; aim: {AIMS.get(case.name, 'none')}",
        blocks=case.blocks,
        tokens_per_second=rate,
        flops_per_second=flops,
        best_matmul_flops_per_second=measured,
        step_seconds=taken,
        predicted_step_seconds=prediction and prediction.seconds,
        peak_bytes=peak,
        predicted_peak_bytes=case.peak_bytes,
    )
    if prediction is not None:
        profile(case, kinds, kind_seconds(prediction))


def profile(case: Case, measured: dict[str, float], predicted: dict[str, float]) -> None:
    """One line of each kind of instruction that takes a hundredth of the step or more."""
    least = 0.01 * sum(measured.values())
    for kind in sorted(measured.keys() | predicted.keys(), key=lambda kind: -measured.get(kind, 0.0)):
        taken, expected = measured.get(kind, 0.0), predicted.get(kind, 0.0)
        if max(taken, expected) >= least:
            text = f"  {kind:<40} {1e3 * taken:9.2f} ms, predicted {1e3 * expected:9.2f} ms"
            figure(f"{case.name}, {kind}", text, seconds=taken, predicted_seconds=expected)


def kind_seconds(prediction: "Simulation") -> dict[str, float]:
    """Predicted seconds of the only rank's instructions, by kind."""
    from fourfold.program.kinds import instruction_kinds, seconds_by_kind

    (program,), (times,) = prediction.programs, prediction.times.ranks
    found = seconds_by_kind(instruction_kinds(program, prediction.views[0].stages.segments), times.ends)
    return {kind: sum(each) for kind, each in found.items()}


def predicted(case: Case, file: str) -> "Simulation | None":
    """The step on the device that the file describes."""
    if not Path(file).is_file():
        return None
    from fourfold.calibrate.steps import table_spec
    from fourfold.config import parse_run
    from fourfold.hardware import load_cluster
    from fourfold.simulate.run_prices import prices_for
    from fourfold.simulate.step import simulate

    spec = table_spec(case.table, 1, device().type)
    return simulate(spec, prices_for(parse_run(case.table), spec, load_cluster(file)))


def plain_eager(what: str, case: Case, file: str) -> None:
    """One line of the same shape in plain torch."""
    print_plain(what, case, "eager", plain_step(case.table, device()))


def plain_compiled(what: str, case: Case, file: str) -> None:
    """A line of plain torch with every block and the loss through torch.compile."""
    print_plain(what, case, "torch.compile", plain_step(case.table, device(), compiled=True))


def print_plain(what: str, case: Case, kind: str, step: Callable[[], None]) -> None:
    step()
    synchronize()
    taken = []
    for _ in range(TIMED_STEPS):
        start = time.perf_counter()
        step()
        synchronize()
        taken.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() if ON_CUDA else None
    memory = f", peak {peak / 1e9:.3g} GB" if peak is not None else ""
    rate = MICROBATCHES * LENGTH / median(taken)
    text = f"{case.title}, plain torch, {kind}: {rate:,.0f} tokens/s, step {median(taken):.4g} s{memory}"
    figure(what, text, blocks=case.blocks, tokens_per_second=rate, step_seconds=median(taken), peak_bytes=peak)


PARTS = {"machine": machine, "kernels": kernels, "steps": steps}

if __name__ == "__main__":
    limit = float(sys.argv[2]) if len(sys.argv) > 2 else math.inf
    PARTS[sys.argv[1]](limit, sys.argv[3] if len(sys.argv) > 3 else "")
