"""Attention split over ranks beside the same attention whole, with an explicit mask: cases, workers and the comparison."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.layout import Layout
from fourfold.model import torch_operations
from fourfold.model.context.attention import attend_backward, attend_forward
from fourfold.model.context.placement import Placement, dealt, zigzag
from fourfold.model.environment import Environment, Saved
from fourfold.model.operations import Array
from fourfold.model.parallel import ContextParallel, Parallel
from fourfold.model.recorder.operations import RecorderOperations
from fourfold.model.recorder.recording import RecordedGroup, Recording
from fourfold.model.work import Work
from fourfold.runtime.collectives import AxisGroup, make_groups
from fourfold.runtime.tracker import MemoryTracker
from tests.support.differentiable import Backward, differentiable
from tests.support.ranks import run_on_ranks

UNREAD = ModelConfig(1, 24, 4, 4, 6, 40, 64)
"""Attention reads nothing of the model."""


@dataclass(frozen=True)
class Case:
    """One attention: `documents` are the lengths of each row's documents, None for no boundaries. `fineness`: tokens are placed by
    the documents' work, so many times two chunks a rank; 0: in zig-zag."""

    ring: int = 1
    ulysses: int = 1
    gather: bool = False
    batch: int = 1
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 8
    value_dim: int = 8
    sequence: int = 24
    documents: tuple[tuple[int, ...], ...] | None = None
    dtype: torch.dtype = torch.float64
    scale: float | None = None
    fineness: int = 0
    window: int | None = None
    chunk: int | None = None

    @property
    def placement(self) -> Placement | None:
        return dealt(self.documents, self.ring, 2 * self.ring * self.fineness) if self.fineness else None

    def positions(self, rank: int) -> Tensor:
        """[batch, own positions]."""
        share, placement = self.layout().context_share(rank), self.placement or zigzag(self.ring)
        return torch.tensor([share.positions(placement, row, self.sequence) for row in range(self.batch)])

    @property
    def ranks(self) -> int:
        return self.ring * self.ulysses

    def layout(self) -> Layout:
        return Layout(
            pp=1,
            dp_replicate=1,
            dp_shard=1,
            cp=self.ranks,
            tp=1,
            zero=0,
            schedule="1f1b",
            microbatch_sequences=self.batch,
            num_microbatches=1,
            sequence_length=self.sequence,
            recompute=(),
            prefetch=0,
            cp_ulysses=self.ulysses,
        )


@dataclass(frozen=True)
class Result:
    """out, d_q, d_k, d_v of some tokens, and the bytes that a rank sent on each axis in forward and in backward."""

    tensors: tuple[Tensor, ...]
    forward_bytes: dict[str, int]
    backward_bytes: dict[str, int]


def own_tokens(x: Tensor, positions: Tensor) -> Tensor:
    """x [batch, seq, ...] at positions [batch, own] -> [batch, own, ...]."""
    return x[torch.arange(len(x)).unsqueeze(1), positions]


def inputs(case: Case) -> tuple[Tensor, ...]:
    """q, k, v and the output's gradient over the full sequence."""
    generator = torch.Generator().manual_seed(hash((case.batch, case.heads, case.sequence)) % 2**31)
    widths = (
        (case.heads, case.head_dim),
        (case.kv_heads, case.head_dim),
        (case.kv_heads, case.value_dim),
        (case.heads * case.value_dim,),
    )
    shapes = [(case.batch, case.sequence, *width) for width in widths]
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64).to(case.dtype) for shape in shapes)


def full_attention(case: Case) -> tuple[Tensor, ...]:
    """out, d_q, d_k, d_v in fp64, with every score computed and a mask over all of them."""
    q, k, v, grad = (x.double().requires_grad_() for x in inputs(case))
    groups = case.heads // case.kv_heads
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(groups, 2))
    scores = scores * (case.head_dim**-0.5 if case.scale is None else case.scale)
    weights = scores.masked_fill(~allowed(case).unsqueeze(1), float("-inf")).softmax(-1)
    out = torch.einsum("bhqk,bkhd->bqhd", weights, v.repeat_interleave(groups, 2)).flatten(2)
    return (out.detach(), *torch.autograd.grad(out, (q, k, v), grad))


def allowed(case: Case) -> Tensor:
    """[batch, queries, keys]: whether a query sees a key."""
    rows: Sequence[Sequence[int]] = case.documents or [(case.sequence,)] * case.batch
    ids = torch.stack([torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in rows])
    positions = torch.arange(case.sequence)
    before = positions[:, None] - positions[None, :]
    seen = (ids[:, :, None] == ids[:, None, :]) & (before >= 0)
    if case.window is not None:
        seen &= before < case.window
    if case.chunk is not None:
        part = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in rows]) // case.chunk
        seen &= part[:, :, None] == part[:, None, :]
    return seen


@cache
def groups_of(case_layout: Layout, rank: int) -> dict[str, AxisGroup]:
    axes = [axis for axis in ("cp_ring", "cp_ulysses") if case_layout.degree(axis) > 1]
    return make_groups(case_layout, rank, axes, 60.0) if axes else {}


def attend_on_rank(rank: int, cases: Sequence[Case]) -> list[Result]:
    """Runs on every rank of a pool."""
    return [_attend(rank, case) for case in cases]


def _attend(rank: int, case: Case) -> Result:
    groups = _groups(rank, case)
    own = case.positions(rank)
    q, k, v, grad = (own_tokens(x, own).requires_grad_() for x in inputs(case))
    ledgers = [_sent(groups)]
    out = _differentiable_attention(case, groups, q, k, v)
    ledgers.append(_sent(groups))
    grads = torch.autograd.grad(out, (q, k, v), grad)
    ledgers.append(_sent(groups))
    forward, backward = ({a: after[a] - before[a] for a in after} for before, after in pairwise(ledgers))
    return Result((out.detach(), *grads), forward, backward)


def _groups(rank: int, case: Case) -> dict[str, AxisGroup]:
    return groups_of(Case(ring=case.ring, ulysses=case.ulysses).layout(), rank)


def _environment(case: Case, groups: dict[str, Any], ops: Any = torch_operations) -> Environment:
    context = ContextParallel(groups.get("cp_ring"), groups.get("cp_ulysses"), case.gather)
    return Environment(ops, UNREAD, Parallel(context=context))


def _differentiable_attention(case: Case, groups: dict[str, AxisGroup], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A scale of one's own is in q, as YaRN's factor of MLA's scores is."""
    env = _environment(case, groups)

    def run(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Backward]:
        saved = Saved()
        out = attend_forward(env, [q, k, v], case.documents, saved, None, case.placement, case.window, case.chunk)
        saved.keep(attention=out.view(-1, out.shape[-1]))
        return out, lambda grad: attend_backward(env, [grad.reshape(-1, grad.shape[-1])], saved)

    return differentiable(run, q if case.scale is None else q * (case.scale * case.head_dim**0.5), k, v)


def _sent(groups: dict[str, AxisGroup]) -> dict[str, int]:
    return {axis: group.sent_bytes for axis, group in groups.items()}


def run_cases(cases: Sequence[Case]) -> list[list[Result]]:
    """Every case's results, one a rank. The cases have the same number of ranks."""
    if cases[0].ranks == 1:
        return [[_attend(0, case)] for case in cases]
    by_rank = run_on_ranks(cases[0].ranks, attend_on_rank, cases=list(cases))
    return [list(results) for results in zip(*by_rank, strict=True)]


def check_cases(cases: Sequence[Case], tolerance: float) -> list[list[Result]]:
    """Outputs and gradients of every case are those of full attention, relative to the largest element."""
    everything = run_cases(cases)
    for case, results in zip(cases, everything, strict=True):
        expected = full_attention(case)
        for name, i in (("out", 0), ("d_q", 1), ("d_k", 2), ("d_v", 3)):
            for rank, result in enumerate(results):
                reference = own_tokens(expected[i], case.positions(rank))
                actual = result.tensors[i]
                assert actual.dtype == case.dtype
                error = (actual.double() - reference).abs().max().item() / max(1.0, expected[i].abs().max().item())
                assert error < tolerance, f"{name} of rank {rank} is off by {error:.1e}: {case}"
    return everything


@dataclass(frozen=True)
class Memory:
    """Bytes above what was live before: the peak of forward, what it leaves (output included), the peak of backward (the output's
    gradient included), and the gradients."""

    forward_peak: int
    kept: int
    backward_peak: int
    gradients: int


class Patient:
    """A group whose finished exchange is followed by a rest, in which gloo's thread lets go of the tensors."""

    def __init__(self, group: AxisGroup) -> None:
        self._group, self.size, self.index = group, group.size, group.index

    def all_to_all(self, *tensors: Tensor) -> "Patient":
        self._work = self._group.all_to_all(*tensors)
        return self

    def wait(self) -> None:
        self._work.wait()
        time.sleep(0.02)


def memory_on_rank(rank: int, case: Case) -> Memory:
    """Measured by following every storage. Runs on every rank of a pool."""
    groups: dict[str, Any] = dict(_groups(rank, case))
    if "cp_ulysses" in groups:
        groups["cp_ulysses"] = Patient(groups["cp_ulysses"])
    own = torch.tensor(case.layout().positions(rank))
    q, k, v, grad = (x[:, own] for x in inputs(case))
    with MemoryTracker() as tracker:
        for tensor in (q, k, v, grad):
            tracker.watch(tensor)

        def restart() -> None:
            tracker.peak_bytes = tracker.live_bytes

        meter = Meter(lambda: tracker.live_bytes, lambda: tracker.peak_bytes, restart)
        return attention_memory(_environment(case, groups), case, [q, k, v], grad, meter)


@dataclass(frozen=True)
class Meter:
    """Live bytes, and the most there were since `restart`."""

    live: Callable[[], int]
    peak: Callable[[], int]
    restart: Callable[[], None]


def attention_memory(env: Environment, case: Case, parts: list[Array], grad: Array, meter: Meter) -> Memory:
    """Runs forward and backward, on tensors or on shape-only tensors. `parts`: q, k and v, which live outside, as does `grad`."""
    saved, before = Saved(), meter.live()
    meter.restart()
    out = attend_forward(env, parts, case.documents, saved, window=case.window, chunk=case.chunk)
    saved.keep(attention=out.view(-1, out.shape[-1]))
    del out
    forward_peak, kept = meter.peak() - before, meter.live() - before
    meter.restart()
    given = [env.ops.copy(grad.view(-1, grad.shape[-1]))]
    gradients = attend_backward(env, given, saved)
    memory = Memory(forward_peak, kept, meter.peak() - before - kept, meter.live() - before)
    del gradients
    return memory


@dataclass(frozen=True)
class Recorded:
    """Memory and work of a case on one rank, as recorded on shape-only tensors."""

    memory: Memory
    forward: Work
    backward: Work


def record(case: Case, ring_rank: int = 0) -> Recorded:
    """Records the forward and backward of a case on shape-only tensors."""
    recording, phases = Recording(staging=True), []
    degrees = {"cp_ring": case.ring, "cp_ulysses": case.ulysses}
    groups = {
        axis: RecordedGroup(recording, axis, size, ring_rank if axis == "cp_ring" else 0)
        for axis, size in degrees.items()
        if size > 1
    }
    ops = RecorderOperations(recording)
    dtype = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16"}[case.dtype]
    tokens = case.batch, case.sequence // case.ranks
    widths = (case.heads, case.head_dim), (case.kv_heads, case.head_dim), (case.kv_heads, case.value_dim)
    parts = [ops.outside((*tokens, *width), dtype) for width in widths]
    held, grad = list(parts), ops.outside((*tokens, case.heads * case.value_dim), dtype)

    def restart() -> None:
        phases.append(recording.recorded())
        recording.begin()

    meter = Meter(lambda: recording.live, lambda: recording.peak, restart)
    memory = attention_memory(_environment(case, groups, ops), case, parts, grad, meter)
    assert len(held) == 3
    return Recorded(memory, phases[1], recording.recorded())
