"""Mixtures of experts with one weight, order, collective or loss wrong."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from fourfold.model.experts.shared import own_tokens
from fourfold.model.kinds import routed
from fourfold.model.tensor_parallel import Arriving
from fourfold.runtime.executor import Executor
from fourfold.runtime.routers import Routers
from tests.support.runtime_mutants.edits import everywhere, mutant, part_of, reductions_without, replaced


@mutant
def routing_weights_are_left_out() -> Iterator[None]:
    def make(original: Any) -> Any:
        return lambda route, values: original(route, torch.ones_like(values))

    with everywhere("dispatch_pairs", make):
        yield


@mutant
def rows_stay_in_order_of_arrival() -> Iterator[None]:
    with everywhere("_local_order", lambda original: lambda ops, incoming, rows: torch.arange(rows)):
        yield


@mutant
def rows_return_to_other_tokens() -> Iterator[None]:
    def make(original: Any) -> Any:
        def plan(*args: Any, **options: Any) -> Any:
            route = original(*args, **options)
            return replace(route, places=route.places.flip(0))

        return plan

    with everywhere("plan_route", make):
        yield


@mutant
def tokens_routed_elsewhere_are_not_gathered() -> Iterator[None]:
    def make(original: Any) -> Any:
        def join(own: Any, partial: Any, parallel: Any) -> Any:
            return own.repeat(parallel.tp.size, 1) if partial is None else original(own, partial, parallel)

        return join

    with everywhere("join", make):
        yield


@mutant
def shared_and_routed_parts_are_not_summed() -> Iterator[None]:
    def join(own: Any, partial: Any, parallel: Any) -> Any:
        full = partial.wait()
        own_tokens(full, parallel).add_(own)
        return full

    with everywhere("join", lambda original: join):
        yield


@mutant
def every_rank_routes_the_first_tokens() -> Iterator[None]:
    def make(original: Any) -> Any:
        def own(x: Any, parallel: Any) -> Any:
            return x.view(parallel.tp.size, -1, x.shape[1])[0]

        return own

    with everywhere("own_tokens", make):
        yield


@mutant
def the_balance_loss_counts_a_ranks_own_tokens() -> Iterator[None]:
    def make(original: Any) -> Any:
        return lambda env, choice, balancing, *rest: original(env, choice, replace(balancing, groups=()), *rest)

    with everywhere("count_choices", make):
        yield


@mutant
def auxiliary_losses_are_divided_by_the_microbatch() -> Iterator[None]:
    def make(original: Any) -> Any:
        def balancing(self: Routers, *args: Any) -> Any:
            result = original(self, *args)
            return result and replace(result, global_sequences=result.sequences)

        return balancing

    with replaced(Routers, "balancing", make):
        yield


@mutant
def the_z_loss_has_no_gradient() -> Iterator[None]:
    with everywhere("z_gradient", lambda original: lambda choice, *rest: torch.zeros_like(choice.logits)):
        yield


@mutant
def parts_of_an_expert_are_not_summed() -> Iterator[None]:
    def make(original: Any) -> Any:
        return lambda x, group: original(x, group) if group is None else Arriving(part_of(x, group))

    with replaced(routed, "scatter_over", make):
        yield


@mutant
def loads_are_each_ranks_own() -> Iterator[None]:
    with replaced(Routers, "balance", lambda original: lambda self, groups: original(self, ())):
        yield


@mutant
def biases_favour_the_busy() -> Iterator[None]:
    def make(original: Any) -> Any:
        return lambda bias, counts, speed: original(bias, counts, -speed)

    with everywhere("update_bias", make):
        yield


@mutant
def copies_of_experts_are_not_summed() -> Iterator[None]:
    with reductions_without(lambda flat, axes: flat.domain == "expert" and axes == "edp"):
        yield


@mutant
def different_experts_are_summed() -> Iterator[None]:
    def make(original: Any) -> Any:
        def reduction(self: Executor, step: Any, unit: Any, staging: Any, first: bool) -> Any:
            if unit.flat.domain == "expert":
                yield from self.groups["ep"].all_reduce_phases(unit.grad)
            yield from original(self, step, unit, staging, first)

        return reduction

    with replaced(Executor, "_reduction", make):
        yield
