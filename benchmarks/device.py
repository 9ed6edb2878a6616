"""Parts of `device.sh` that measure one device: `python benchmarks/device.py machine | kernels | steps [SECONDS]`.

A figure that could not be taken is a line that begins with `unmeasured:` and says why.
"""

import math
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

LENGTH = 4096
SHARE_OF_MEMORY = 0.9
MICROBATCHES, TIMED_STEPS = 4, 3
NEEDED = (
    *("cyclopts", "fsspec", "numpy", "pydantic", "rich", "tomli_w", "tokenizers", "safetensors", "zstandard"),
    *("pytest", "hypothesis", "transformers"),
)
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
TINY = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "ffn_size": 128, "vocab_size": 256}


def unmeasured(what: str, why: str) -> None:
    print(f"unmeasured: {what}: {why}", flush=True)


def device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(function: Callable[[], Any], window: float = 0.5) -> float:
    """Mean seconds of a call over a window, after two to warm up."""
    function()
    function()
    synchronize()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < window:
        for _ in range(4):
            function()
        synchronize()
        count += 4
    return (time.perf_counter() - start) / count


def best_matmul(compute: str) -> float:
    """FLOP/s of the best of three square matmuls, each for long enough to be believed."""
    sizes = (4096, 8192, 12288) if torch.cuda.is_available() else (256, 512, 1024)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[compute]
    best = 0.0
    for size in sizes:
        a, b = (torch.randn(size, size, dtype=dtype, device=device()) for _ in range(2))
        best = max(best, 2 * size**3 / seconds(lambda a=a, b=b: torch.mm(a, b)))
    return best


def machine(_: float) -> None:
    """Device, versions, packages that are missing."""
    print(f"python {sys.version.split()[0]}, torch {torch.__version__}, NCCL", end=" ")
    print(".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "not built in")
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        unmeasured("whatever needs them", f"not installed: {', '.join(missing)}")
    if not torch.cuda.is_available():
        unmeasured("everything on CUDA", "torch sees no CUDA device; the parts that need none run on the CPU")
        return
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        print(f"cuda:{index} {found.name}, {found.total_memory / 1e9:.1f} GB, {found.multi_processor_count} units")
    if torch.cuda.device_count() == 1:
        unmeasured("collectives over NCCL between devices", "there is one device")


def kernels(_: float) -> None:
    """Matmuls and attention of an 8B Llama at a sequence of 4096."""
    if not torch.cuda.is_available():
        unmeasured("kernels", "no CUDA device")
        return
    on = {"dtype": torch.bfloat16, "device": device()}
    for name, (rows, columns, inner) in {
        "qkv": (LENGTH, 6144, 4096),
        "gate and up": (LENGTH, 28672, 4096),
        "down": (LENGTH, 4096, 14336),
        "head": (512, 128256, 4096),
    }.items():
        a, b = torch.randn(rows, inner, **on), torch.randn(columns, inner, **on)
        taken = seconds(lambda a=a, b=b: F.linear(a, b))
        print(
            f"matmul {name:<12} {rows} x {columns} x {inner}: {2 * rows * columns * inner / taken / 1e12:.0f} TFLOP/s"
        )
    weight_gradient(on)
    attention(on)


def weight_gradient(on: dict[str, Any]) -> None:
    from fourfold.model.torch_operations import accumulate

    grad = torch.zeros(28672, 4096, device=device())
    out, x = torch.randn(LENGTH, 28672, **on), torch.randn(LENGTH, 4096, **on)
    taken = seconds(lambda: accumulate(grad, out, x, False))
    print(f"weight gradient into fp32: {2 * LENGTH * 28672 * 4096 / taken / 1e12:.0f} TFLOP/s")


def attention(on: dict[str, Any]) -> None:
    from fourfold.model.torch_attention import attend, attend_backward

    q = torch.randn(1, LENGTH, 32, 128, **on)
    k, v = (torch.randn(1, LENGTH, 8, 128, **on) for _ in range(2))
    flops, scale = 2 * 2 * LENGTH * LENGTH * 32 * 128 / 2, 128**-0.5
    mixed, lse = attend(q, k, v, True, scale)
    print(f"attention, forward: {flops / seconds(lambda: attend(q, k, v, True, scale)) / 1e12:.0f} TFLOP/s")
    taken = seconds(lambda: attend_backward(mixed, q, k, v, mixed, lse, True, scale))
    print(f"attention, backward: {2.5 * flops / taken / 1e12:.0f} TFLOP/s")


def run_table(model: dict[str, Any], length: int, compute: str) -> dict[str, Any]:
    """A run of one rank: one sequence a microbatch."""
    return {
        "model": model,
        "batch": {"global_sequences": MICROBATCHES, "sequence_length": length, "steps": 100},
        "layout": {"microbatch_sequences": 1, "recompute": "selective"},
        "precision": {"compute": compute},
    }


def fitting(model: dict[str, Any], compute: str, limit: float) -> tuple[dict[str, Any], int, int, float]:
    """(run table with as many blocks as fit, their number, the model's own, predicted peak in bytes). Raises where none fits."""
    from fourfold.calibrate.steps import table_spec
    from fourfold.program import lower_step, memory_peak
    from fourfold.program.view import rank_view

    def peak(blocks: int | None) -> tuple[dict[str, Any], float, int]:
        table = run_table({**model, **({} if blocks is None else {"num_layers": blocks})}, LENGTH, compute)
        spec = table_spec(table, 1, "cuda")
        return table, memory_peak(lower_step(rank_view(spec))).bytes, spec.model.num_layers

    table, size, full = peak(None)
    low, high = 0, full
    if size <= limit:
        return table, full, full, size
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if peak(middle)[1] <= limit else (low, middle)
    if low == 0:
        raise MemoryError(f"not one block fits {limit / 1e9:.0f} GB")
    table, size, _ = peak(low)
    return table, low, full, size


def steps(budget: float) -> None:
    """Full training steps of three Llamas on one rank, each beside a plain torch loop."""
    begun = time.perf_counter()
    where = device()
    backend = "nccl" if where.type == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(backend, init_method=f"file://{Path(folder) / 'store'}", rank=0, world_size=1)
        try:
            if where.type == "cpu":
                unmeasured("the 1B, 3B and 8B shapes", "no CUDA device; a tiny one runs in their place")
                report_step("tiny", run_table(TINY, 64, "fp32"), 2, 2, 0.0, where)
                return
            total = torch.cuda.get_device_properties(0).total_memory
            for name, model in SHAPES.items():
                if time.perf_counter() - begun > budget * 0.75:
                    unmeasured(f"the {name} shape", f"the {budget:.0f} s of this part are used up")
                    continue
                try:
                    table, blocks, full, predicted = fitting(model, "bf16", SHARE_OF_MEMORY * total)
                    report_step(name, table, blocks, full, predicted, where)
                except (RuntimeError, MemoryError) as error:
                    unmeasured(f"the {name} shape", str(error).splitlines()[0])
                torch.cuda.empty_cache()
            unmeasured(
                "8 bytes of state a parameter", "master weights and AdamW's states take 12 bytes here, gradients 4"
            )
            plain("1B", begun, budget)
        finally:
            dist.destroy_process_group()


def report_step(
    name: str, table: dict[str, Any], blocks: int, full: int, predicted: float, where: torch.device
) -> None:
    """One line: tokens/s, MFU against the datasheet's and a measured peak, memory."""
    from fourfold.calibrate.steps import StepRunner
    from fourfold.model.counts import step_flops_per_token

    runner = StepRunner(table, 1, 0, where)
    runner.step()
    peak = runner.peak_bytes()
    taken = [runner.step() for _ in range(TIMED_STEPS)]
    batch = table["batch"]
    rate = batch["global_sequences"] * batch["sequence_length"] / min(taken)
    flops = rate * step_flops_per_token(runner.view.spec.model, batch["sequence_length"])
    measured = best_matmul(table["precision"]["compute"])
    share = f"{100 * flops / measured:.1f} %" if flops < measured else "no share"
    of = "" if blocks == full else f" with {blocks} of its {full} blocks, as many as fit"
    memory = f"peak {peak / 1e9:.2f} GB" + (f", predicted {predicted / 1e9:.2f} GB" if predicted else "")
    print(
        f"{name}{of}: {rate:,.0f} tokens/s, {flops / 1e12:.3g} TFLOP/s, {share} of the best matmul "
        f"measured here ({measured / 1e12:.3g} TFLOP/s), step {min(taken):.4g} s, {memory}; aim: {AIMS.get(name, 'none')}",
        flush=True,
    )


def plain(name: str, begun: float, budget: float) -> None:
    """The same shape in plain torch: SDPA, autocast to bf16, fused AdamW; eager, then compiled."""
    from fourfold.config import parse_run
    from fourfold.huggingface import resolve_model
    from plain_llama import PlainLlama, Shape

    model = resolve_model(parse_run(run_table(SHAPES[name], LENGTH, "bf16")).model)
    shape = Shape(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        ffn_size=model.ffn_size,
        max_position=LENGTH,
    )
    for kind in ("eager", "torch.compile"):
        if time.perf_counter() - begun > budget * 0.85:
            unmeasured(f"plain torch, {kind}", f"the {budget:.0f} s of this part are used up")
            continue
        try:
            with torch.device(device()):
                module = PlainLlama(shape)
            optimizer = torch.optim.AdamW(module.parameters(), fused=True)
            run = torch.compile(module) if kind != "eager" else module
            tokens = torch.randint(shape.vocab_size, (1, LENGTH), device=device())

            def step(run: Any = run, optimizer: Any = optimizer, tokens: torch.Tensor = tokens) -> None:
                for _ in range(MICROBATCHES):
                    with torch.autocast("cuda", torch.bfloat16):
                        loss = run(tokens, tokens, float(MICROBATCHES * LENGTH))
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()

            taken = seconds(step, 3.0)
            rate = MICROBATCHES * LENGTH / taken
            memory = torch.cuda.max_memory_allocated() / 1e9
            print(f"{name}, plain torch {kind}, untied head: {rate:,.0f} tokens/s, peak {memory:.2f} GB", flush=True)
            del module, optimizer, run, step
        except RuntimeError as error:
            unmeasured(f"plain torch, {kind}", str(error).splitlines()[0])
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


PARTS = {"machine": machine, "kernels": kernels, "steps": steps}

if __name__ == "__main__":
    PARTS[sys.argv[1]](float(sys.argv[2]) if len(sys.argv) > 2 else math.inf)
