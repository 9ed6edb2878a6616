"""Gradients summed wrongly over ranks, or wrong before they are summed."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from fourfold.model.context.pieces import Documents
from fourfold.runtime.collectives import AxisGroup, Handle
from fourfold.runtime.compute import SegmentRunner
from tests.support.runtime_mutants.edits import everywhere, mutant, reductions_without, replaced

# Sums that are none


@mutant
def others_gradients_are_not_added() -> Iterator[None]:
    def make(original: Any) -> Any:
        def scatter(self: AxisGroup, full: Any, staging: Any, into: Any, first: bool) -> Any:
            yield from original(self, full, staging, torch.empty_like(into), first=True)
            own, _ = self._parts(full)
            into.copy_(own) if first else into.add_(0 if own.data_ptr() == into.data_ptr() else own)

        return scatter

    with replaced(AxisGroup, "reduce_scatter_phases", make):
        yield


@mutant
def gradients_are_averaged_over_ranks() -> Iterator[None]:
    def make(original: Any) -> Any:
        def scatter(self: AxisGroup, full: Any, staging: Any, into: Any, first: bool) -> Any:
            full.div_(self.size)
            yield from original(self, full, staging, into, first)

        return scatter

    with replaced(AxisGroup, "reduce_scatter_phases", make):
        yield


@mutant
def shards_go_to_the_wrong_owner() -> Iterator[None]:
    def make(original: Any) -> Any:
        def exchange(self: AxisGroup, outgoing: Any, incoming: Any) -> Any:
            return original(self, list(outgoing)[::-1], incoming)

        return exchange

    with replaced(AxisGroup, "_exchange", make):
        yield


@mutant
def only_the_first_phase_is_waited_for() -> Iterator[None]:
    def wait(self: Handle) -> None:
        for work in self._works or ():
            work.wait()
        self._works = None

    with patch.object(Handle, "wait", wait):
        yield


@mutant
def replicas_are_not_summed() -> Iterator[None]:
    with reductions_without(lambda flat, axes: axes == "dp_replicate"):
        yield


@mutant
def full_gradients_are_averaged() -> Iterator[None]:
    def make(original: Any) -> Any:
        def reduce(self: AxisGroup, full: Any, *rest: Any) -> Any:
            if full.is_floating_point() and full.dim():
                full.div_(self.size)
            yield from original(self, full, *rest)

        return reduce

    with replaced(AxisGroup, "all_reduce_phases", make):
        yield


@mutant
def each_microbatch_overwrites_the_shard() -> Iterator[None]:
    def make(original: Any) -> Any:
        def scatter(self: AxisGroup, full: Any, staging: Any, into: Any, first: bool) -> Any:
            return original(self, full, staging, into, first=True)

        return scatter

    with replaced(AxisGroup, "reduce_scatter_phases", make):
        yield


# Gradients


@mutant
def each_microbatch_starts_from_zero() -> Iterator[None]:
    def make(original: Any) -> Any:
        def allocate(self: SegmentRunner, step: Any) -> None:
            original(self, step)
            for name in step.writes:
                if name.startswith("grad/") and step.segment == name.removeprefix("grad/"):
                    self._units[name.removeprefix("grad/")].grad.zero_()

        return allocate

    with replaced(SegmentRunner, "allocate_gradients", make):
        yield


@mutant
def the_heads_share_of_a_tied_table_is_lost() -> Iterator[None]:
    def make(original: Any) -> Any:
        def backward(env: Any, x: Any, targets: Any, weights: Any, *rest: Any) -> Any:
            table = weights.unembedding
            lost = type(table)(table.data, torch.zeros_like(table.grad))
            return original(env, x, targets, replace(weights, table=lost, tied=None), *rest)

        return backward

    with everywhere("head_loss_backward", make):
        yield


@mutant
def recompute_reads_another_microbatch() -> Iterator[None]:
    def make(original: Any) -> Any:
        def recompute(self: SegmentRunner, step: Any) -> None:
            name = f"hidden/{step.segment}/m{step.microbatch}"
            kept = self._live[name]
            self._live[name] = kept.roll(1, dims=1)
            original(self, step)
            self._live[name] = kept

        return recompute

    with replaced(SegmentRunner, "recompute", make):
        yield


@mutant
def documents_attend_to_each_other() -> Iterator[None]:
    def make(original: Any) -> Any:
        def pieces(rank: int, documents: Documents, *rest: Any) -> Any:
            return original(rank, Documents(documents.batch, documents.length, None, documents.ring), *rest)

        return pieces

    with everywhere("own_pieces", make):
        yield


@mutant
def every_position_counts_as_a_target() -> Iterator[None]:
    def make(original: Any) -> Any:
        def backward(env: Any, x: Any, targets: Any, *rest: Any) -> Any:
            return original(env, x, targets.clamp(min=0), *rest)

        return backward

    with everywhere("head_loss_backward", make):
        yield
