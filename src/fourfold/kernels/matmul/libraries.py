"""Which library multiplies fp32 matrices on a processor: by kind of matmul, oneDNN where it is right and faster than MKL."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from operator import mul
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fourfold.config.errors import error_text
from fourfold.kernels.check import BOUNDS, row_faults
from fourfold.model import torch_onednn, torch_operations
from fourfold.model.operations import Operations, with_operations
from fourfold.model.torch_onednn import FORWARD, INPUT_GRADIENT, MATMULS, WEIGHT_GRADIENT
from fourfold.model.work import Gemm
from fourfold.program import Program

KINDS = tuple(MATMULS)
MARGIN = 0.02
"""The share of the time that oneDNN must save: between close ones the noise of a measurement would choose."""
REPEATS = 4
"""The first of them also warms up."""
TOKENS = (512, 256, 128, 64)
"""Numbers of tokens that are timed. A library's last block of rows is a full one, as in most batches."""
MEASURED_FLOPS = 4e9
"""FLOPs of one kind's matmuls, timed once; of fewer tokens than a step has."""
CHECKED = ((1, 1, 1), (7, 33, 5), (64, 48, 130))
"""Tokens, inputs and outputs of matmuls that are checked in every run."""
CHECKED_TOKENS = 48
"""Tokens of a run's own matmuls that are checked: three full blocks of a library's rows."""

MatmulCounts = Mapping[str, Counter[Gemm]]
"""By kind, the matmuls of a step and how often it has each."""
Clock = Callable[[Callable[[], object]], float]


class Library(Protocol):
    """The operations of a library that are timed."""

    def linear(self, x: Tensor, weight: Tensor, /) -> Tensor: ...

    def matmul(self, a: Tensor, b: Tensor, /) -> Tensor: ...

    def accumulate(self, grad: Tensor, grad_output: Tensor, inputs: Tensor, fresh: bool, /) -> None: ...


Call = Callable[[Library], object]
LIBRARIES: tuple[Library, ...] = (torch_operations, torch_onednn)


class LibrarySeconds(NamedTuple):
    """Seconds of a kind's matmuls by MKL and by oneDNN."""

    torch: float
    onednn: float


def step_matmuls(program: Program) -> MatmulCounts:
    """The matmuls of a program, but for experts' and those in 8 bits. The head's forward, a part of its backward, counts there."""
    found: dict[str, Counter[Gemm]] = {kind: Counter() for kind in KINDS}
    for step in program.instructions:
        forward = step.op.info.computes in ("forward", "recomputation")
        for item in step.work.items:
            if isinstance(item, Gemm) and item.groups == 1 and not item.dtype:
                kind = WEIGHT_GRADIENT if item.accumulates else FORWARD if forward else INPUT_GRADIENT
                found[kind][item] += 1
    return found


def total_flops(matmuls: MatmulCounts) -> int:
    return sum(gemm.flops * times for kind in matmuls.values() for gemm, times in kind.items())


def problem_of_onednn() -> str | None:
    """Why oneDNN may not multiply for this process; None: it may. Its matmuls are compared with fp64, row by row."""
    return _first_fault(CHECKED)


def problem_of_shapes(matmuls: MatmulCounts) -> str | None:
    """Why oneDNN may not do a run's own matmuls; None: it may. They are compared with fp64 in their widths, on a block of
    their tokens, whose rows do not depend on each other."""
    return _first_fault(dict.fromkeys(_sizes(kind, gemm) for kind, gemms in matmuls.items() for gemm in gemms))


def _first_fault(every: Iterable[tuple[int, int, int]]) -> str | None:
    if not torch_onednn.is_available():
        return "this build of PyTorch has no oneDNN"
    try:
        return next((fault for sizes in every if (fault := _fault(*sizes)) is not None), None)
    except RuntimeError as error:
        return error_text(error)


def _sizes(kind: str, gemm: Gemm) -> tuple[int, int, int]:
    """Tokens, at most `CHECKED_TOKENS`, inputs and outputs of the layer that a matmul belongs to."""
    tokens = min(_tokens(gemm), CHECKED_TOKENS)
    if kind == WEIGHT_GRADIENT:
        return tokens, gemm.columns, gemm.rows
    return (tokens, gemm.inner, gemm.columns) if kind == FORWARD else (tokens, gemm.columns, gemm.inner)


def measure(matmuls: MatmulCounts, clock: Clock) -> dict[str, LibrarySeconds]:
    """Seconds of each kind, both libraries taking turns, the shortest of a few; 0 for a kind that has no matmuls.

    A library computes every matmul of the kind in its turn. So their weights come from memory, as in a step.
    """
    found = {}
    for kind in KINDS:
        gemms = _cut(matmuls[kind])
        calls = [_call(kind, gemm) for gemm in gemms]
        rounds = [[_seconds(calls, library, clock) for library in LIBRARIES] for _ in range(REPEATS)]
        shortest = [[min(each) for each in zip(*turns, strict=True)] for turns in zip(*rounds, strict=True)]
        found[kind] = LibrarySeconds(*(sum(map(mul, gemms.values(), seconds), 0.0) for seconds in shortest))
    return found


def of_slowest(
    seconds: Mapping[str, LibrarySeconds], most: Callable[[list[float]], list[float]]
) -> dict[str, LibrarySeconds]:
    """Each library's time on its slowest rank, so that all ranks take the same. `most`: over all ranks, number by number."""
    slowest = most([each for pair in seconds.values() for each in pair])
    return {kind: LibrarySeconds(*slowest[2 * i : 2 * i + 2]) for i, kind in enumerate(seconds)}


def faster_by_onednn(seconds: Mapping[str, LibrarySeconds]) -> tuple[str, ...]:
    """The kinds that oneDNN computes in clearly less time."""
    return tuple(kind for kind in KINDS if seconds[kind].onednn < (1 - MARGIN) * seconds[kind].torch)


def by_onednn(operations: Operations, kinds: tuple[str, ...]) -> Operations:
    """The operations, with matmuls of these kinds by oneDNN."""
    return with_operations(operations, {name: function for kind in kinds for name, function in MATMULS[kind].items()})


def processor_clock(call: Callable[[], object]) -> float:
    """Seconds of all of this process's threads: other work on the machine does not count."""
    return _elapsed(time.process_time, call)


def wall_clock(call: Callable[[], object]) -> float:
    """Seconds until the call returns, whatever else runs on the machine."""
    return _elapsed(time.perf_counter, call)


def _elapsed(now: Callable[[], float], call: Callable[[], object]) -> float:
    begun = now()
    call()
    return now() - begun


def _cut(gemms: Counter[Gemm]) -> Counter[Gemm]:
    """The matmuls with fewer tokens."""
    a_token = sum(gemm.flops / _tokens(gemm) for gemm in gemms)
    affordable = int(MEASURED_FLOPS / a_token) if a_token else 0
    most = next((tokens for tokens in TOKENS if tokens <= affordable), TOKENS[-1])
    cut: Counter[Gemm] = Counter()
    for gemm, times in gemms.items():
        tokens = min(_tokens(gemm), most)
        cut[replace(gemm, inner=tokens) if gemm.accumulates else replace(gemm, rows=tokens)] += times
    return cut


def _tokens(gemm: Gemm) -> int:
    return gemm.inner if gemm.accumulates else gemm.rows


def _seconds(calls: list[Call], library: Library, clock: Clock) -> list[float]:
    return [clock(partial(call, library)) for call in calls]


def _call(kind: str, gemm: Gemm) -> Call:
    """The matmul as a segment calls it."""
    if kind == WEIGHT_GRADIENT:
        grad = torch.zeros(gemm.rows, gemm.columns)
        output, inputs = torch.full((gemm.inner, gemm.rows), 1e-6), torch.full((gemm.inner, gemm.columns), 1e-6)
        return lambda library: library.accumulate(grad, output, inputs, False)
    x = torch.full((gemm.rows, gemm.inner), 0.5)
    if kind == FORWARD:
        weight = torch.full((gemm.columns, gemm.inner), 0.01)
        return lambda library: library.linear(x, weight)
    weight = torch.full((gemm.inner, gemm.columns), 0.01)
    return lambda library: library.matmul(x, weight)


def _fault(tokens: int, inputs: int, outputs: int) -> str | None:
    """The first result that is off by more than fp32 may be."""
    generator = torch.Generator().manual_seed(tokens)

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator)

    x, weight, grad = random(tokens, inputs), random(outputs, inputs), random(tokens, outputs)
    residual, sums, into = random(tokens, outputs), random(outputs, inputs), torch.empty(tokens, inputs)
    expected = [(f"{kind} matmul", result) for kind, result in _exact(x, weight, grad, residual, sums)]
    torch_onednn.matmul_into(grad, weight, into)
    found = [
        torch_onednn.linear(x, weight, residual[0]),
        torch_onednn.linear_add(residual, x, weight),
        torch_onednn.matmul(grad, weight),
        into,
    ]
    torch_onednn.accumulate(sums, grad, x, False)
    pairs = zip([*found, sums], expected, strict=True)
    return next(
        (x for ours, (name, right) in pairs for x in row_faults(name, ours, right, BOUNDS[torch.float32])), None
    )


def _exact(x: Tensor, weight: Tensor, grad: Tensor, residual: Tensor, sums: Tensor) -> list[tuple[str, Tensor]]:
    x, weight, grad, residual, sums = (each.double() for each in (x, weight, grad, residual, sums))
    forward, backward = x @ weight.t(), grad @ weight
    return [
        (FORWARD, forward + residual[0]),
        (FORWARD, forward + residual),
        (INPUT_GRADIENT, backward),
        (INPUT_GRADIENT, backward),
        (WEIGHT_GRADIENT, sums + grad.t() @ x),
    ]
