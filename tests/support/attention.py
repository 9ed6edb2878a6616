"""Attention split over ranks beside the same attention whole, with an explicit mask: cases, workers and the comparison."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
from fourfold.model.context.cost import AttentionShape
from fourfold.model.context.memory import attention_backward, attention_forward
from fourfold.model.tape import Tape
from torch import Tensor

from fourfold.layout import Layout
from fourfold.model.context import context_attention
from fourfold.model.parallel import ContextParallel
from fourfold.runtime.collectives import AxisGroup, make_groups
from fourfold.runtime.tracker import MemoryTracker
from tests.support.ranks import run_on_ranks


@dataclass(frozen=True)
class Case:
    """One attention: `documents` are the lengths of each row's documents, None for no boundaries."""

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


def inputs(case: Case) -> tuple[Tensor, ...]:
    """q, k, v and the output's gradient over the whole sequence."""
    generator = torch.Generator().manual_seed(hash((case.batch, case.heads, case.sequence)) % 2**31)
    widths = (
        (case.heads, case.head_dim),
        (case.kv_heads, case.head_dim),
        (case.kv_heads, case.value_dim),
        (case.heads * case.value_dim,),
    )
    shapes = [(case.batch, case.sequence, *width) for width in widths]
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64).to(case.dtype) for shape in shapes)


def whole_attention(case: Case) -> tuple[Tensor, ...]:
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
    return (ids[:, :, None] == ids[:, None, :]) & (positions[:, None] >= positions[None, :])


@cache
def groups_of(case_layout: Layout, rank: int) -> dict[str, AxisGroup]:
    axes = [axis for axis in ("cp_ring", "cp_ulysses") if case_layout.degree(axis) > 1]
    return make_groups(case_layout, rank, axes, 60.0) if axes else {}


def attend_on_rank(rank: int, cases: Sequence[Case]) -> list[Result]:
    """Runs on every rank of a pool."""
    return [_attend(rank, case) for case in cases]


def _attend(rank: int, case: Case) -> Result:
    group_layout = Case(ring=case.ring, ulysses=case.ulysses).layout()
    groups = groups_of(group_layout, rank)
    context = ContextParallel(groups.get("cp_ring"), groups.get("cp_ulysses"), case.gather)
    own = torch.tensor(case.layout().positions(rank))
    q, k, v, grad = (x[:, own].requires_grad_() for x in inputs(case))
    ledgers = [_sent(groups)]
    out = context_attention(q, k, v, context, case.documents, case.scale)
    ledgers.append(_sent(groups))
    grads = torch.autograd.grad(out, (q, k, v), grad)
    ledgers.append(_sent(groups))
    forward, backward = ({a: after[a] - before[a] for a in after} for before, after in pairwise(ledgers))
    return Result((out.detach(), *grads), forward, backward)


def _sent(groups: dict[str, AxisGroup]) -> dict[str, int]:
    return {axis: group.sent_bytes for axis, group in groups.items()}


def run_cases(cases: Sequence[Case]) -> list[list[Result]]:
    """Every case's results, one a rank. The cases have the same number of ranks."""
    if cases[0].ranks == 1:
        return [[_attend(0, case)] for case in cases]
    by_rank = run_on_ranks(cases[0].ranks, attend_on_rank, cases=list(cases))
    return [list(results) for results in zip(*by_rank, strict=True)]


def check_cases(cases: Sequence[Case], tolerance: float) -> list[list[Result]]:
    """Outputs and gradients of every case are those of whole attention, relative to the largest element."""
    everything = run_cases(cases)
    for case, results in zip(cases, everything, strict=True):
        expected = whole_attention(case)
        for name, i in (("out", 0), ("d_q", 1), ("d_k", 2), ("d_v", 3)):
            for rank, result in enumerate(results):
                reference = expected[i][:, case.layout().positions(rank)]
                actual = result.tensors[i]
                assert actual.dtype == case.dtype
                error = (actual.double() - reference).abs().max().item() / max(1.0, expected[i].abs().max().item())
                assert error < tolerance, f"{name} of rank {rank} is off by {error:.1e}: {case}"
    return everything


def attention_shape(case: Case) -> AttentionShape:
    """The case as cost formulas see it."""
    return AttentionShape(
        sequences=case.batch,
        tokens=case.sequence // case.ranks,
        heads=case.heads,
        kv_heads=case.kv_heads,
        head_dim=case.head_dim,
        value_dim=case.value_dim,
        element_bytes=case.dtype.itemsize,
        ring=case.ring,
        ulysses=case.ulysses,
        gather=case.gather,
        documents=case.documents is not None,
    )


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
    groups = groups_of(Case(ring=case.ring, ulysses=case.ulysses).layout(), rank)
    ulysses = groups.get("cp_ulysses")
    context = ContextParallel(groups.get("cp_ring"), ulysses and Patient(ulysses), case.gather)
    own = torch.tensor(case.layout().positions(rank))
    q, k, v, grad = (x[:, own].requires_grad_() for x in inputs(case))
    with MemoryTracker() as tracker:
        for tensor in (q, k, v, grad):
            tracker.watch(tensor)
        before = tracker.live_bytes
        out = context_attention(q, k, v, context, case.documents)
        forward_peak, kept = tracker.peak_bytes - before, tracker.live_bytes - before
        scaled = out * 2
        del out
        before = tracker.peak_bytes = tracker.live_bytes
        grads = torch.autograd.grad(scaled, (q, k, v), grad)
        backward_peak = tracker.peak_bytes - before
        gradients = sum({x.untyped_storage()._cdata: x.untyped_storage().size() for x in grads}.values())
    return Memory(forward_peak, kept, backward_peak, gradients)


def declared_memory(case: Case) -> Memory:
    """The same by formula."""
    shape = attention_shape(case)
    tape = Tape()
    attention_forward(tape, shape)
    kept = dict(tape.live)
    output = kept["attention"]
    forward_peak = tape.peak
    tape = Tape()
    if case.ulysses > 1:
        del kept["attention"]
    tape.alloc(**kept)
    before = tape.total
    tape.alloc(grad_attention=output)
    attention_backward(tape, shape)
    total = sum(kept.values()) + (output if case.ulysses > 1 else 0)
    return Memory(forward_peak, total, tape.peak - before, tape.total)
