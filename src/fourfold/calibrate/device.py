"""Measurements that a rank makes of its device: kernels by shape, memory-bound operators of the runtime, peaks, memory, launches,
copies from the host.

Shapes are large, skinny and small ones, of a size that suits a GPU or a processor. Operators run on tensors and are recorded: their
time, and what they read and write."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, product, takewhile
from typing import Any, TypeVar, cast

import torch

from fourfold.calibrate.clock import Meter, numbers, own_time, synchronize
from fourfold.calibrate.findings import LOW_MATMULS, MATMULS, DeviceMemory, Sample
from fourfold.calibrate.kernels import accumulated_rate, attention_rates, plain_rate, weight_pool
from fourfold.config.errors import RunFailure
from fourfold.kernels import norm, pointwise
from fourfold.kernels.backend import triton_refuses
from fourfold.kernels.matmul.libraries import by_onednn
from fourfold.model import torch_operations
from fourfold.model.norm import rms_norm, rms_norm_backward
from fourfold.model.operations import Array, Operations, with_operations
from fourfold.model.recorder.operations import RecorderOperations
from fourfold.model.recorder.recording import Recording
from fourfold.model.rope import rotate_
from fourfold.model.swiglu import swiglu
from fourfold.model.torch_operations import torch_dtype
from fourfold.model.weights import Weight
from fourfold.model.work import Attention, Elementwise, Gemm, Work

Make = Callable[..., Array]
"""Makes an input of a shape."""
Operator = Callable[[Operations, Make, int, int], Callable[[], object]]
"""Operator on [tokens, hidden]: makes its inputs, and gives the function to call."""
FORMATS = {"cuda": ("fp32", "tf32", "bf16", "fp16", "fp8"), "cpu": ("fp32", "fp64", "bf16")}
"""Formats whose peak is looked for."""
TINY, QUEUED = 64, 256
"""Elements of a kernel that is nothing but its launch; how many of them the host starts in one go."""
PINNED_BYTES = 2**28
SMALLEST = 128
"""Size of the first square matmul, from which each is twice as large as the one before."""
WRITTEN_QUERIES = 1024
"""Longest sequence whose scores are written."""
UNSUPPORTED = (RuntimeError, TypeError, AttributeError, NotImplementedError)
"""Raised where torch or the device has no kernel for a format."""
Shape = TypeVar("Shape")


@dataclass(frozen=True)
class Shapes:
    """`rows`: tokens of matmuls, `widths`: their columns and inner sizes. `tokens`: of attention and of `operators`, [tokens,
    hidden]. `copied_bytes`: of the copies that show the memory's speed. `models`: hidden size, feed-forward size, vocabulary of the
    steps that constants are fitted to; `checked`: of those that they are checked with, with layers. `batch`: sequences of a
    microbatch, tokens of a sequence."""

    rows: tuple[int, ...]
    widths: tuple[int, ...]
    largest: tuple[int, ...]
    queries: tuple[int, ...]
    head_sizes: tuple[int, ...]
    heads: int
    tokens: int
    operators: tuple[tuple[int, int], ...]
    copied_bytes: int
    pool_bytes: int
    models: tuple[tuple[int, int, int], ...]
    checked: tuple[tuple[int, int, int, int], ...]
    batches: tuple[tuple[int, int], ...]

    def gemms(self) -> list[Gemm]:
        """Products of tokens; each stands for its weight gradient too."""
        return [Gemm(*each) for each in product(self.rows, self.widths, self.widths)]

    def attentions(self) -> list[Attention]:
        """Causal attention of as many keys as queries, forward."""
        return [
            Attention(max(1, self.tokens // queries), queries, queries, self.heads, self.heads, width, width)
            for queries, width in product(self.queries, self.head_sizes)
        ]

    def fitted_tables(self, dtype: str) -> list[dict[str, Any]]:
        """Run tables of the steps that constants are fitted to."""
        return list(self._tables([(2, *each) for each in self.models], dtype))

    def checked_tables(self, dtype: str) -> list[dict[str, Any]]:
        """Run tables of other steps."""
        return list(self._tables(self.checked, dtype))

    def _tables(self, models: Sequence[tuple[int, int, int, int]], dtype: str) -> Iterator[dict[str, Any]]:
        """Every model with the first batch before any with the next: the time may end before all are measured."""
        for sequences, length in self.batches:
            for layers, hidden, ffn, vocabulary in models:
                width = max(self.head_sizes[0], min(128, hidden // 8))
                model = {"num_layers": layers, "hidden_size": hidden, "ffn_size": ffn, "vocab_size": vocabulary}
                yield {
                    "model": {**model, "num_heads": hidden // width},
                    "batch": {"global_sequences": 2 * sequences, "sequence_length": length, "steps": 1},
                    "layout": {"microbatch_sequences": sequences},
                    "precision": {"compute": dtype},
                }


PROCESSOR = Shapes(
    rows=(32, 128, 512, 2048),
    widths=(128, 384, 1024, 2816),
    largest=(512, 1024, 1536),
    queries=(64, 128, 256, 512, 1024, 2048),
    head_sizes=(32, 64, 128),
    heads=4,
    tokens=512,
    operators=((128, 256), (256, 512), (512, 1024)),
    copied_bytes=2**27,
    pool_bytes=96 * 2**20,
    models=((192, 512, 2048), (512, 1408, 4096)),
    checked=((4, 256, 768, 4096), (3, 384, 1024, 4096), (2, 640, 1728, 8192)),
    batches=((1, 128), (2, 256)),
)
GPU = Shapes(
    rows=(64, 512, 2048, 8192),
    widths=(512, 2048, 5120, 14336),
    largest=(4096, 8192, 12288),
    queries=(512, 1024, 2048, 4096, 8192, 16384),
    head_sizes=(64, 128),
    heads=16,
    tokens=16384,
    operators=((2048, 1024), (4096, 4096), (16384, 8192)),
    copied_bytes=2**31,
    pool_bytes=2**31,
    models=((2048, 5632, 32768), (4096, 14336, 32768)),  # smaller ones wait for the host
    checked=((4, 2560, 6912, 32768), (2, 3072, 8192, 32768)),
    batches=((1, 4096), (2, 4096)),
)


def shapes_of(device: str) -> Shapes:
    """`device`: cuda or cpu."""
    return GPU if device == "cuda" else PROCESSOR


def _norm(ops: Operations, make: Make, tokens: int, hidden: int) -> Callable[[], object]:
    x, weight = make(tokens, hidden), make(hidden)
    return lambda: rms_norm(ops, x, weight, 1e-5)


def _norm_backward(ops: Operations, make: Make, tokens: int, hidden: int) -> Callable[[], object]:
    x, grad, scale, weight = (
        make(tokens, hidden),
        make(tokens, hidden),
        make(tokens, 1),
        Weight(make(hidden), make(hidden)),
    )
    return lambda: rms_norm_backward(ops, ops.copy(grad), x, scale, weight)


def _swiglu(ops: Operations, make: Make, tokens: int, hidden: int) -> Callable[[], object]:
    gate_up = make(tokens, 4 * hidden)
    return lambda: swiglu(ops, gate_up)


def _rope(ops: Operations, make: Make, tokens: int, hidden: int) -> Callable[[], object]:
    x, cos, sin = make(1, tokens, hidden // 64, 64), make(tokens, 1, 32), make(tokens, 1, 32)
    return lambda: rotate_(ops, x, cos, sin)


def _residual(ops: Operations, make: Make, tokens: int, hidden: int) -> Callable[[], object]:
    x, y = make(tokens, hidden), make(tokens, hidden)
    return lambda: x + y


OPERATORS: dict[str, Operator] = {
    "norm": _norm,
    "norm backward": _norm_backward,
    "SwiGLU": _swiglu,
    "RoPE": _rope,
    "residual": _residual,
}


def back_ends(device: torch.device) -> tuple[Operations, ...]:
    """Back ends that a run on the device chooses among: the formulas, and on CUDA the Triton kernels where they can run."""
    formulas = cast(Operations, torch_operations)
    if triton_refuses(device) is not None:
        return (formulas,)
    members = {**norm.TRITON.members, **pointwise.TRITON.members}
    return (formulas, with_operations(formulas, members))


def on_device(
    name: str, tokens: int, hidden: int, device: torch.device, dtype: str, ops: Operations | None = None
) -> Callable[[], object]:
    """The operator on tensors. `ops`: by which; None: by the formulas."""

    def make(*shape: int) -> torch.Tensor:
        return torch.full(
            shape, 0.5**0.5, dtype=torch_dtype(dtype), device=device
        )  # cos and sin of one angle: nothing grows

    return OPERATORS[name](ops or cast(Operations, torch_operations), make, tokens, hidden)


def recorded(name: str, tokens: int, hidden: int, is_cuda: bool, dtype: str) -> Work:
    """The operator's kernels."""
    recording = Recording(staging=False)
    ops = RecorderOperations(recording, accelerator=is_cuda)
    run = OPERATORS[name](ops, lambda *shape: ops.outside(shape, dtype), tokens, hidden)
    recording.begin()
    with ops.fused():
        run()
    return recording.recorded()


def in_time(seconds: float, shapes: Sequence[Shape], calls: Callable[[Shape], float]) -> Iterator[tuple[Shape, float]]:
    """Shapes and the seconds to measure each of them, spread over all sizes until the time is over. `calls(shape)`: seconds that a
    shape takes at least; what would take most of the time is left out. The shortest is always among them: it loads libraries, for
    however long, before the time begins."""
    order = sorted(shapes, key=calls)
    rest = [shape for shape in order[1:] if calls(shape) < seconds / 8]
    random.Random(0).shuffle(rest)
    window = 0.8 * seconds / (len(rest) + 1)
    yield order[0], window
    end = time.monotonic() + seconds - window
    for index, shape in enumerate(rest):
        left = end - time.monotonic()
        if left >= calls(shape):
            yield shape, max(0.0, 0.8 * left / (len(rest) - index))


def measure_peaks(rank: int, device: torch.device, dtype: str, seconds: float) -> dict[str, float]:
    """FLOP/s of the best square matmul in each format that the device has; `dtype` has most of the time."""
    meter, found = Meter(device, own_time(device)), dict[str, float]()
    others = [each for each in FORMATS[device.type] if each != dtype]
    for name in (dtype, *others):
        rate = _peak(name, meter, seconds / 2 if name == dtype else seconds / 2 / len(others))
        if rate is not None:
            found[name] = rate
    if dtype not in found:
        raise RunFailure(
            f"--dtype {dtype}: torch has no matmul in it on {device.type}; a value that works: --dtype fp32"
        )
    return found


def _peak(dtype: str, meter: Meter, seconds: float) -> float | None:
    """From small to large: none begins that would not end in time, by the rate of the one before, of half of its size. A processor
    without instructions of a format takes seconds for a matmul that others make in a thousandth; a device's small ones are slow."""
    largest = shapes_of(meter.device.type).largest
    ramp = takewhile(lambda size: size < largest[0], (SMALLEST * 2**n for n in count()))
    best, rate, end = 0.0, 0.0, 0.0
    try:
        for size in (*ramp, *largest):
            flops = 2.0 * size**3
            if rate and 4 * flops / rate > end - time.monotonic():
                break
            window = max(0.0, end - time.monotonic()) / 4 if size in largest else 0.0
            rate = flops / meter.seconds_each(square_matmul(dtype, size, meter.device), window)
            best, end = max(best, rate), end or time.monotonic() + seconds  # the first loads the library
    except UNSUPPORTED:
        return best or None
    finally:
        torch.set_float32_matmul_precision("highest")
    return best


def square_matmul(dtype: str, size: int, device: torch.device) -> Callable[[], torch.Tensor]:
    """A matmul in a format, with its result in 16 bits where that is fp8."""
    if dtype == "fp8":
        return fp8_matmul(Gemm(size, size, size), device)
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    names = {"tf32": torch.float32, "fp16": torch.float16}
    left, right = (numbers((size, size), 0.5, names.get(dtype) or torch_dtype(dtype), device) for _ in range(2))
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right.t(), out=out)


def fp8_matmul(gemm: Gemm, device: torch.device) -> Callable[[], torch.Tensor]:
    """Operands in fp8 already, with one scale each, and a result in 16 bits."""
    a, b = (
        numbers((size, gemm.inner), 0.5, torch.float32, device).to(torch.float8_e4m3fn)
        for size in (gemm.rows, gemm.columns)
    )
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


def measure_load(rank: int, device: torch.device, dtype: str, peak: float, seconds: float) -> list[float]:
    """FLOP/s of a large matmul over and over, window after window: a hot device may run at a lower clock than a cool one."""
    sizes, end, found = shapes_of(device.type).largest, time.monotonic() + seconds, list[float]()
    size = max((each for each in sizes if 24 * 2.0 * each**3 / peak < seconds), default=sizes[0])
    function, meter = square_matmul(dtype, size, device), Meter(device, own_time(device))
    while not found or time.monotonic() < end:
        found.append(2.0 * size**3 / meter.seconds_each(function, seconds / 12))
    return found


def measure_matmuls(
    rank: int, device: torch.device, dtype: str, peak: float, seconds: float, by_library: tuple[str, ...]
) -> list[Sample]:
    """Products of tokens and weight gradients. `peak`: FLOP/s, to tell how long a shape takes. `by_library`: the kinds that oneDNN
    computes."""
    shapes = shapes_of(device.type)
    meter, pool = Meter(device, own_time(device)), weight_pool(device, dtype, shapes.pool_bytes)
    found, ops = [], by_onednn(torch_operations, by_library)
    for gemm, window in in_time(seconds, shapes.gemms(), lambda gemm: 8 * gemm.flops / peak):
        added = Gemm(gemm.columns, gemm.inner, gemm.rows, accumulates=True)
        found.append(Sample(MATMULS, Work((gemm,)), gemm.flops / plain_rate(gemm, pool, meter, window / 2, ops)))
        found.append(
            Sample(MATMULS, Work((added,)), gemm.flops / accumulated_rate(added, pool, meter, window / 2, ops))
        )
    return found


def measure_attentions(rank: int, device: torch.device, dtype: str, peak: float, seconds: float) -> list[Sample]:
    """Causal attention forward and backward, as the runtime calls it."""
    meter, found = Meter(device, own_time(device)), list[Sample]()
    shapes = shapes_of(device.type).attentions()
    if device.type == "cuda" and torch_dtype(dtype).itemsize > 2:  # no flash kernel: the scores are written
        shapes = [shape for shape in shapes if shape.queries <= WRITTEN_QUERIES]
    for shape, window in in_time(seconds, shapes, lambda each: 20 * each.flops / peak):
        backward = replace(shape, backward=True)
        forward_rate, backward_rate = attention_rates(shape, dtype, meter, window / 2)
        found.append(Sample("attention", Work((shape,)), shape.flops / forward_rate))
        found.append(Sample("attention", Work((backward,)), backward.flops / backward_rate))
    return found


def measure_operators(rank: int, device: torch.device, dtype: str, seconds: float) -> list[Sample]:
    """Norms, SwiGLU, RoPE, residuals, by the back end that a run would choose; and kernels that are nothing but a launch."""
    meter, is_cuda, found = Meter(device, own_time(device)), device.type == "cuda", list[Sample]()
    cases = list(product(OPERATORS, shapes_of(device.type).operators))
    backends = back_ends(device)
    window = seconds / (len(cases) + 1)
    with torch.no_grad():
        for name, size in cases:
            ways = [on_device(name, *size, device, dtype, ops) for ops in backends]
            each = min(meter.seconds_each(way, window / len(ways)) for way in ways)
            found.append(Sample("operators", recorded(name, *size, is_cuda, dtype), each))
        launch = meter.seconds_each(_tiny(device), window)
    return [*found, Sample("launches", Work((Elementwise(8 * TINY, 8 * TINY),)), launch)]


def _tiny(device: torch.device) -> Callable[[], object]:
    x = torch.zeros(TINY, device=device)
    return lambda: x.add_(1.0)


def measure_memory(rank: int, device: torch.device, seconds: float) -> DeviceMemory:
    """The device's memory: its size, what the process holds there, its speed; how long the host takes to start a kernel."""
    meter, size = Meter(device, own_time(device)), shapes_of(device.type).copied_bytes
    source = torch.zeros(size // 4, device=device)
    target = torch.empty_like(source)
    rates = [2 * size / meter.seconds_each(lambda: target.copy_(source), seconds / 4)]
    rates.append(3 * size / meter.seconds_each(lambda: target.add_(source), seconds / 4))
    if device.type != "cuda":
        return DeviceMemory(None, max(rates), None, 0.0, None)
    pinned = torch.zeros(PINNED_BYTES // 4, pin_memory=True)
    part = target[: pinned.numel()]
    from_host = PINNED_BYTES / meter.seconds_each(lambda: part.copy_(pinned, non_blocking=True), seconds / 4)
    tiny = _tiny(device)
    synchronize(device)
    begun = time.perf_counter()
    for _ in range(QUEUED):  # fewer than the queue of launches holds, so that the host waits for none
        tiny()
    host = (time.perf_counter() - begun) / QUEUED
    properties = torch.cuda.get_device_properties(device)
    return DeviceMemory(properties.total_memory, max(rates), from_host, host, properties.multi_processor_count)


def measure_context(rank: int, device: torch.device) -> int:
    """Bytes that the process takes beside its tensors: on a GPU that nothing else uses, the driver's context and loaded kernels; on
    a processor, before it has made any, the interpreter and its libraries. 0 where the system does not say."""
    if device.type == "cuda":
        synchronize(device)
        free, total = torch.cuda.mem_get_info(device)
        return max(0, total - free - torch.cuda.memory_reserved(device))
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096
    except (OSError, ValueError, IndexError):
        return 0


def measure_low_matmuls(rank: int, device: torch.device, peak: float, seconds: float) -> list[Sample]:
    """fp8 matmuls whose operands are in fp8 already."""
    meter, shapes, found = Meter(device, own_time(device)), shapes_of(device.type), list[Sample]()
    large = [gemm for gemm in shapes.gemms() if gemm.rows >= shapes.rows[1] and gemm.inner >= shapes.widths[1]]
    for gemm, window in in_time(seconds, large, lambda gemm: 8 * gemm.flops / peak):
        each = meter.seconds_each(fp8_matmul(gemm, device), window)
        found.append(Sample(LOW_MATMULS, Work((gemm,)), each))
    return found
