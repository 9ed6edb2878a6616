"""Ways to break pipelines, tensor, context and expert parallelism on purpose, one collective, factor, mask or order at a time."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from fourfold.layout.flat import FlatLayout
from fourfold.layout.mesh import Layout
from fourfold.model.context import attention, ulysses
from fourfold.model.experts.shared import own_tokens
from fourfold.model.tensor_parallel import Arriving, ColumnInput
from fourfold.model.weights import Deferred
from fourfold.program import Op
from fourfold.program.buffers import deferred
from fourfold.runtime import norm
from fourfold.runtime.collectives import Group, Handle
from fourfold.runtime.compute import Compute
from fourfold.runtime.executor import Executor
from fourfold.runtime.routers import Routers
from tests.support import parity_ranks
from tests.support.parity_runs import RankData
from tests.support.runtime_mutants import everywhere, mutant, reductions_without, replaced

# Tensor parallelism


def _part(x: torch.Tensor, group: Any) -> torch.Tensor:
    """This rank's part of dim 0, of its own values."""
    return x.view(group.size, x.shape[0] // group.size, *x.shape[1:])[group.index].clone()


@mutant
def products_of_row_parts_are_not_summed() -> Iterator[None]:
    def partial(x: Any, parallel: Any) -> Arriving:
        whole = parallel.tp is None or not parallel.sequence
        return Arriving(x if whole else _part(x, parallel.tp))

    with everywhere("sum_partial", lambda original: partial):
        yield


@mutant
def products_of_row_parts_are_summed_twice() -> Iterator[None]:
    def make(original: Any) -> Any:
        def partial(x: Any, parallel: Any) -> Arriving:
            result = original(x, parallel).wait()
            return Arriving(result, parallel.tp.all_reduce(result))

        return partial

    with everywhere("sum_partial", make):
        yield


@mutant
def parts_of_the_sequence_are_gathered_in_reverse() -> Iterator[None]:
    def make(original: Any) -> Any:
        def gather(x: Any, parallel: Any) -> Arriving:
            whole = original(x, parallel).wait()
            return Arriving(whole.view(parallel.tp.size, *x.shape).flip(0).view(whole.shape))

        return gather

    with everywhere("gather_tokens", make):
        yield


@mutant
def inputs_for_weight_gradients_are_this_ranks_tokens() -> Iterator[None]:
    def gather(self: ColumnInput) -> None:
        tp = self._parallel.tp
        assert tp is not None
        self._whole = Arriving(self._local.repeat(tp.size, 1))

    with patch.object(ColumnInput, "_gather", gather):
        yield


@mutant
def gradients_of_whole_parameters_are_not_summed() -> Iterator[None]:
    with reductions_without(lambda flat, axes: axes == "tp"):
        yield


@mutant
def gradients_of_copied_heads_are_not_summed() -> Iterator[None]:
    with reductions_without(lambda flat, axes: axes == "tp_copy"):
        yield


@mutant
def tokens_of_other_vocabularies_are_embedded_too() -> Iterator[None]:
    def make(original: Any) -> Any:
        def rows(*args: Any) -> Any:
            index, elsewhere = original(*args)
            return index, torch.zeros_like(elsewhere)

        return rows

    with everywhere("_local_rows", make):
        yield


@mutant
def exponentials_of_different_maxima_are_added() -> Iterator[None]:
    def make(original: Any) -> Any:
        def combine(local: Any, tp: Any) -> Any:
            every = local.new_empty((tp.size, *local.shape))
            tp.all_gather(every, local).wait()
            maxima, sums, picked = every.unbind(1)
            return maxima.amax(0), sums.sum(0), picked.sum(0)

        return combine

    with everywhere("_combine", make):
        yield


@mutant
def targets_in_other_vocabularies_have_no_logit() -> Iterator[None]:
    def make(original: Any) -> Any:
        def combine(local: Any, tp: Any) -> Any:
            highest, total, _ = original(local, tp)
            return highest, total, local[2]

        return combine

    with everywhere("_combine", make):
        yield


@mutant
def every_rank_takes_its_last_column_for_the_target() -> Iterator[None]:
    def make(original: Any) -> Any:
        def exponentiate(*args: Any) -> Any:
            softmax = original(*args)
            return replace(softmax, here=softmax.valid)

        return exponentiate

    with everywhere("_exponentiate", make):
        yield


@mutant
def every_tensor_rank_records_the_loss() -> Iterator[None]:
    def make(original: Any) -> Any:
        def init(self: Compute, *args: Any) -> None:
            original(self, *args)
            self._records_loss = True

        return init

    with replaced(Compute, "__init__", make):
        yield


@mutant
def every_rank_has_the_first_part_of_the_weights() -> Iterator[None]:
    def make(original: Any) -> Any:
        def fill(flat: Any, index: int, seed: int, coordinates: Any, out: Any) -> None:
            original(flat, index, seed, dict.fromkeys(coordinates, 0), out)

        return fill

    with replaced(parity_ranks, "initialize_shard", make):
        yield


# Context parallelism


@mutant
def documents_leak_over_the_split() -> Iterator[None]:
    def make(original: Any) -> Any:
        return lambda batch, length, lengths: original(batch, length, None)

    with replaced(attention, "Documents", make):
        yield


@mutant
def merging_forgets_the_new_log_sum_exp() -> Iterator[None]:
    def make(original: Any) -> Any:
        return lambda out, lse, *rest: original(out, lse.clone(), *rest)

    with everywhere("merge_output", make):
        yield


@mutant
def the_ring_turns_the_other_way() -> Iterator[None]:
    def make(original: Any) -> Any:
        def shift(self: Group, received: Any, sent: Any) -> Any:
            mirrored = copy.copy(self)
            mirrored.ranks, mirrored.index = self.ranks[::-1], self.size - 1 - self.index
            yield from original(mirrored, received, sent)

        return shift

    with replaced(Group, "_shift", make):
        yield


@mutant
def half_of_a_ranks_own_keys_get_no_gradient() -> Iterator[None]:
    def make(original: Any) -> Any:
        def in_two(*args: Any) -> Any:
            first, second = original(*args)
            return first, ((), second[1])

        return in_two

    with everywhere("own_work_in_two", make):
        yield


@mutant
def gradients_of_gathered_keys_are_not_summed() -> Iterator[None]:
    def scatter(whole: Any, group: Any) -> Any:
        return lambda: _part(whole, group)

    with everywhere("_scatter", lambda original: scatter):
        yield


@mutant
def rotary_positions_are_counted_from_each_ranks_first() -> Iterator[None]:
    def make(original: Any) -> Any:
        def load(self: Any, microbatch: int) -> Any:
            batch = original(self, microbatch)
            cos, sin = (table[: batch.tokens.shape[1]].unsqueeze(-2) for table in self._tables)
            return replace(batch, cos=cos, sin=sin)

        return load

    with replaced(RankData, "load", make):
        yield


@mutant
def ranks_have_consecutive_positions() -> Iterator[None]:
    def positions(self: Layout, rank: int) -> list[int]:
        part = self.sequence_length // self.cp
        first = self.coordinates(rank)["cp"] * part
        return list(range(first, first + part))

    with patch.object(Layout, "positions", positions):
        yield


@mutant
def heads_travel_to_each_others_ranks() -> Iterator[None]:
    with everywhere("split_heads", lambda original: lambda x, ranks: original(x, ranks).flip(1)):
        yield


@mutant
def copies_of_keys_that_travelled_give_one_gradient() -> Iterator[None]:
    def backward(ctx: Any, *grads: Any) -> Any:
        ranks = ctx.group.size
        parts = ulysses._travel([ulysses.split_tokens(x, ranks) for x in grads], ctx.group)
        d_q, d_k, d_v = map(ulysses.join_heads, parts)
        d_k, d_v = (x.unflatten(2, (ctx.kv_heads, -1))[:, :, :, 0] for x in (d_k, d_v))
        return d_q, d_k, d_v, None

    with patch.object(ulysses.SequenceToHeads, "backward", staticmethod(backward)):
        yield


@mutant
def gradients_are_not_summed_over_the_sequence() -> Iterator[None]:
    with reductions_without(lambda flat, axes: axes == "cp"):
        yield


# Experts


@mutant
def routing_weights_are_left_out() -> Iterator[None]:
    def make(original: Any) -> Any:
        return lambda route, values: original(route, torch.ones_like(values))

    with everywhere("dispatch_pairs", make):
        yield


@mutant
def rows_stay_in_order_of_arrival() -> Iterator[None]:
    with everywhere("_local_order", lambda original: lambda incoming, rows: torch.arange(rows)):
        yield


@mutant
def rows_return_to_other_tokens() -> Iterator[None]:
    def make(original: Any) -> Any:
        def plan(*args: Any) -> Any:
            route = original(*args)
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
        whole = partial.wait()
        own_tokens(whole, parallel).add_(own)
        return whole

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
        return lambda choice, balancing, *rest: original(choice, replace(balancing, groups=()), *rest)

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
        return lambda x, group: original(x, group) if group is None else Arriving(_part(x, group))

    with everywhere("scatter_over", make):
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
        def reduction(self: Executor, step: Any, unit: Any, landing: Any, first: bool) -> Any:
            if unit.flat.domain == "expert":
                yield from self.groups["ep"].all_reduce_phases(unit.grad)
            yield from original(self, step, unit, landing, first)

        return reduction

    with replaced(Executor, "_reduction", make):
        yield


# Pipelines


@mutant
def tied_gradients_stay_on_their_stages() -> Iterator[None]:
    def reduce_tied(self: Executor, step: Any) -> None:
        self._start(step, Handle(iter(())))

    with patch.object(Executor, "_reduce_tied", reduce_tied):
        yield


@mutant
def weight_gradients_of_a_microbatch_are_dropped() -> Iterator[None]:
    def make(original: Any) -> Any:
        def backward_weight(self: Compute, step: Any) -> None:
            if step.microbatch == 0:
                self._live[deferred(step.segment, 0)] = Deferred()
            original(self, step)

        return backward_weight

    with replaced(Compute, "backward_weight", make):
        yield


@mutant
def weight_gradients_are_not_put_off_apart() -> Iterator[None]:
    """A microbatch's W runs what another microbatch put off, if there is one."""

    def make(original: Any) -> Any:
        def backward_input(self: Compute, step: Any) -> None:
            original(self, step)
            first = self._live.setdefault("first", {})
            name = deferred(step.segment, step.microbatch)
            self._live[name] = first.setdefault(step.segment, self._live[name])

        return backward_input

    with replaced(Compute, "backward_input", make):
        yield


@mutant
def gradients_of_the_microbatch_before_are_received() -> Iterator[None]:
    def make(original: Any) -> Any:
        def receive(self: Executor, step: Any) -> None:
            original(self, step)
            if step.op is not Op.RECV_GRADIENT:
                return
            name = step.writes[0]
            before, self.kept = getattr(self, "kept", None), self._live[name]  # type: ignore[attr-defined]
            if before is not None:
                self._live[name] = before

        return receive

    with replaced(Executor, "_receive", make):
        yield


@mutant
def tokens_are_exchanged_on_the_way_to_the_next_stage() -> Iterator[None]:
    with replaced(Group, "send", lambda original: lambda self, x, peer: original(self, x.roll(1, 0), peer)):
        yield


# The norm


@mutant
def copies_count_in_the_norm_on_every_rank() -> Iterator[None]:
    with patch.object(norm, "_counted_ranges", lambda unit, coordinates: [(0, unit.flat.shard_numel)]):
        yield


@mutant
def copied_heads_count_in_the_norm_on_every_rank() -> Iterator[None]:
    def make(original: Any) -> Any:
        return lambda self: [part for part in original(self) if part[0] != "tp_copy"]

    with replaced(FlatLayout, "copied_ranges", make):
        yield


@mutant
def a_tied_table_counts_on_both_stages() -> Iterator[None]:
    def make(original: Any) -> Any:
        return lambda facts, unit, rank: unit == facts.tied_unit or original(facts, unit, rank)

    with replaced(norm, "is_counted", make):
        yield


@mutant
def every_replica_counts_in_the_norm() -> Iterator[None]:
    with patch.object(norm, "is_counted", lambda facts, unit, rank: True):
        yield
