"""A broken runtime does not pass the comparison with one process, and the same layout passes when it is whole."""

from typing import Any

import pytest

from tests.support.mutant_check import MUTANTS, check_mutant
from tests.support.parity_check import divisible
from tests.support.parity_runs import DEEPSEEK_V3, MIXTRAL, MIXTURES, QWEN3_MOE

pytestmark = pytest.mark.grid(1)

TIED = {"tie_embeddings": True}
Case = tuple[str, int, dict[str, Any]]


def _layout(ranks: tuple[int, int], zero: int, accumulation: int = 1, **more: Any) -> dict[str, Any]:
    rows = 12 // (ranks[0] * ranks[1]) // accumulation
    return {"dp_replicate": ranks[0], "dp_shard": ranks[1], "zero": zero, "microbatch_sequences": rows, **more}


DATA_PARALLEL: list[Case] = [
    ("others_gradients_are_not_added", 2, {"layout": _layout((1, 2), 1)}),
    ("others_gradients_are_not_added", 2, {"layout": _layout((1, 2), 2)}),
    ("gradients_are_averaged_over_ranks", 2, {"layout": _layout((1, 2), 1)}),
    ("gradients_are_averaged_over_ranks", 4, {"layout": _layout((2, 2), 3)}),
    ("shards_go_to_the_wrong_owner", 4, {"layout": _layout((1, 4), 1)}),
    ("only_the_first_phase_is_waited_for", 4, {"layout": _layout((2, 2), 2)}),
    ("only_the_first_phase_is_waited_for", 2, {"layout": _layout((1, 2), 3)}),
    ("replicas_are_not_summed", 4, {"layout": _layout((2, 2), 1)}),
    ("full_gradients_are_averaged", 2, {"layout": _layout((1, 2), 0)}),
    ("full_gradients_are_averaged", 4, {"layout": _layout((2, 2), 0, 3)}),
    ("replicas_are_not_summed", 4, {"layout": _layout((2, 2), 3, 3)}),
    ("each_microbatch_overwrites_the_shard", 2, {"layout": _layout((1, 2), 2, 3)}),
    ("each_microbatch_starts_from_zero", 1, {"layout": _layout((1, 1), 0, 3)}),
    ("each_microbatch_starts_from_zero", 2, {"layout": _layout((1, 2), 1, 3)}),
    ("the_heads_share_of_a_tied_table_is_lost", 2, {"model": TIED, "layout": _layout((1, 2), 3)}),
    ("recompute_reads_another_microbatch", 2, {"layout": _layout((1, 2), 3, recompute="full")}),
    ("documents_attend_to_each_other", 2, {"data": {"document_mask": True}, "layout": _layout((1, 2), 0)}),
    ("every_position_counts_as_a_target", 1, {"layout": _layout((1, 1), 0)}),
    ("the_divisor_is_each_ranks_own", 2, {"layout": _layout((1, 2), 0)}),
    ("the_divisor_is_each_microbatchs_own", 1, {"layout": _layout((1, 1), 0, 3)}),
    ("the_divisor_is_each_microbatchs_own", 2, {"layout": _layout((1, 2), 2)}),
    ("the_loss_is_each_ranks_own", 2, {"layout": _layout((1, 2), 3)}),
    ("all_ranks_read_the_same_rows", 2, {"layout": _layout((1, 2), 0)}),
    ("the_norm_is_each_ranks_own", 2, {"layout": _layout((1, 2), 1)}),
    ("the_norm_is_each_ranks_own", 4, {"layout": _layout((2, 2), 3)}),
    ("nothing_is_clipped", 1, {"layout": _layout((1, 1), 0)}),
    ("each_unit_is_clipped_by_itself", 2, {"layout": _layout((1, 2), 0)}),
    ("updates_are_not_counted", 1, {"layout": _layout((1, 1), 0)}),
    ("norms_are_decayed_too", 2, {"layout": _layout((1, 2), 3)}),
    ("nothing_is_decayed", 2, {"layout": _layout((1, 2), 2)}),
    ("updated_parameters_are_not_gathered", 2, {"layout": _layout((1, 2), 1)}),
    ("updated_parameters_are_not_gathered", 4, {"layout": _layout((2, 2), 2)}),
    ("gathers_return_the_first_steps_parameters", 2, {"layout": _layout((1, 2), 3)}),
    ("bytes_are_counted_twice", 2, {"layout": _layout((1, 2), 0)}),
]


def _split(name: str, ranks: int, model: dict[str, Any] | None = None, masked: bool = False, **layout: Any) -> Case:
    data = {"document_mask": masked}
    return name, ranks, divisible(model=model or {}, data=data, layout={"microbatch_sequences": 2, **layout})


SEQUENCE = {"tp": 2, "sequence_parallel": True}
SMALL_BIASES = {**DEEPSEEK_V3, "balance_bias_speed": 0.5}
TENSOR = [
    _split("row_parallel_outputs_are_not_summed", 2, tp=2),
    _split("row_parallel_outputs_are_not_summed", 2, **SEQUENCE),
    _split("row_parallel_outputs_are_summed_twice", 2, tp=2),
    _split("parts_of_the_sequence_are_gathered_in_reverse", 2, **SEQUENCE),
    _split("inputs_for_weight_gradients_are_this_ranks_tokens", 2, **SEQUENCE),
    _split("inputs_for_weight_gradients_are_this_ranks_tokens", 4, pp=2, schedule="zb_h1", **SEQUENCE),
    _split("gradients_of_full_parameters_are_not_summed", 2, **SEQUENCE),
    _split("gradients_of_full_parameters_are_not_summed", 2, {"qk_norm": True}, tp=2),
    _split("gradients_of_full_parameters_are_not_summed", 2, MIXTRAL, tp=2),
    _split("gradients_of_full_parameters_are_not_summed", 2, DEEPSEEK_V3, **SEQUENCE),
    _split("gradients_of_copied_heads_are_not_summed", 2, {"num_kv_heads": 1}, tp=2),
    _split("gradients_of_copied_heads_are_not_summed", 4, {"qkv_bias": True}, tp=4, zero=1),
    _split("tokens_of_other_vocabularies_are_embedded_too", 2, tp=2),
    _split("exponentials_of_different_maxima_are_added", 2, tp=2),
    _split("targets_in_other_vocabularies_have_no_logit", 2, tp=2),
    _split("every_rank_takes_its_last_column_for_the_target", 2, tp=2),
    _split("every_tensor_rank_records_the_loss", 2, MIXTRAL, tp=2),
    _split("every_rank_has_the_first_part_of_the_weights", 2, tp=2),
    _split("every_rank_has_the_first_part_of_the_weights", 2, QWEN3_MOE, dp_shard=2, ep=2),
]
CONTEXT = [
    _split("documents_leak_over_the_split", 2, masked=True, cp=2),
    _split("documents_leak_over_the_split", 2, masked=True, cp=2, cp_method="all_gather"),
    _split("documents_leak_over_the_split", 2, masked=True, cp=2, cp_method="ulysses"),
    _split("merging_forgets_the_new_log_sum_exp", 2, cp=2),
    _split("merging_forgets_the_new_log_sum_exp", 2, cp=2, cp_method="all_gather"),
    _split("the_ring_turns_the_other_way", 4, cp=4),
    _split("half_of_a_ranks_own_keys_get_no_gradient", 2, cp=2),
    _split("half_of_a_ranks_own_keys_get_no_gradient", 2, masked=True, cp=2, cp_method="all_gather"),
    _split("gradients_of_gathered_keys_are_not_summed", 2, cp=2, cp_method="all_gather"),
    _split("rotary_positions_are_counted_from_each_ranks_last", 2, cp=2),
    _split("ranks_have_consecutive_positions", 2, cp=2, cp_method="ulysses"),
    _split("ranks_have_consecutive_positions", 2, cp=2),
    _split("heads_travel_to_each_others_ranks", 2, cp=2, cp_method="ulysses"),
    _split("copies_of_keys_that_travelled_give_one_gradient", 2, {"num_kv_heads": 1}, cp=2, cp_method="ulysses"),
    _split("gradients_are_not_summed_over_the_sequence", 2, cp=2),
    _split("the_divisor_is_each_ranks_own", 2, cp=2),
]
EXPERTS = [
    *(_split("routing_weights_are_left_out", 2, MIXTURES[family], dp_shard=2, ep=2) for family in MIXTURES),
    _split("rows_stay_in_order_of_arrival", 2, QWEN3_MOE, dp_shard=2, ep=2),
    _split("rows_return_to_other_tokens", 2, MIXTRAL, tp=2, ep=2),
    _split("tokens_routed_elsewhere_are_not_gathered", 2, MIXTRAL, tp=2),
    _split("shared_and_routed_parts_are_not_summed", 2, DEEPSEEK_V3, tp=2),
    _split("every_rank_routes_the_first_tokens", 2, QWEN3_MOE, tp=2, ep=2),
    _split("the_balance_loss_counts_a_ranks_own_tokens", 2, MIXTRAL, tp=2, microbatch_sequences=1),
    _split("the_balance_loss_counts_a_ranks_own_tokens", 2, DEEPSEEK_V3, cp=2),
    _split("auxiliary_losses_are_divided_by_the_microbatch", 2, MIXTRAL, dp_shard=2, ep=2),
    _split("the_z_loss_has_no_gradient", 2, MIXTRAL, dp_shard=2, ep=2),
    _split("parts_of_an_expert_are_not_summed", 2, MIXTRAL, tp=2, etp=2),
    _split("parts_of_an_expert_are_not_summed", 2, DEEPSEEK_V3, dp_shard=2, etp=2),
    _split("loads_are_each_ranks_own", 2, SMALL_BIASES, dp_shard=2, ep=2),
    _split("biases_favour_the_busy", 2, SMALL_BIASES, pp=2),
    _split("copies_of_experts_are_not_summed", 2, MIXTRAL, dp_shard=2),
    _split("copies_of_experts_are_not_summed", 4, MIXTRAL, dp_shard=2, tp=2, ep=2),
    _split("different_experts_are_summed", 4, MIXTRAL, dp_shard=4, ep=2, microbatch_sequences=1),
]
PIPELINE = [
    _split("tied_gradients_stay_on_their_stages", 2, TIED, pp=2),
    _split("tied_gradients_stay_on_their_stages", 4, TIED, pp=2, schedule="zb_h1", dp_shard=2, zero=2),
    _split("weight_gradients_of_a_microbatch_are_dropped", 2, pp=2, schedule="zb_h1"),
    _split("weight_gradients_of_a_microbatch_are_dropped", 2, pp=2, schedule="zb_v", virtual_stages=2),
    _split("weight_gradients_share_one_deferral", 2, pp=2, schedule="zb_h2"),
    _split("gradients_of_the_microbatch_before_are_received", 2, pp=2),
    _split("tokens_are_exchanged_on_the_way_to_the_next_stage", 2, pp=2),
    _split("the_loss_is_each_ranks_own", 2, pp=2),
]
NORM = [
    _split("the_norm_is_each_ranks_own", 2, pp=2),
    _split("the_norm_is_each_ranks_own", 2, tp=2),
    _split("the_norm_is_each_ranks_own", 2, MIXTRAL, dp_shard=2, ep=2),
    _split("copies_count_in_the_norm_on_every_rank", 2, tp=2),
    _split("copied_heads_count_in_the_norm_on_every_rank", 2, {"num_kv_heads": 1}, tp=2),
    _split("a_tied_table_counts_on_both_stages", 2, TIED, pp=2),
    _split("every_replica_counts_in_the_norm", 2, MIXTRAL, dp_shard=2, ep=2),
]
BROKEN = [*DATA_PARALLEL, *TENSOR, *CONTEXT, *EXPERTS, *PIPELINE, *NORM]
QUICK = {name: number for number, (name, ranks, _) in reversed(list(enumerate(BROKEN))) if ranks <= 2}
"""The first case of two ranks at most for a mutant."""


def test_every_way_to_break_the_runtime_is_tried() -> None:
    assert {name for name, _, _ in BROKEN} == set(MUTANTS)
    assert len(MUTANTS) >= 60


def _marks(name: str, number: int) -> Any:
    """`make test` tries every fourth way, `make test-rest` each in one layout: they test the comparison."""
    if QUICK.get(name) != number:
        return pytest.mark.sweep
    return [] if list(QUICK).index(name) % 4 == 0 else pytest.mark.rest


@pytest.mark.parametrize(
    ("name", "ranks", "sections"),
    [pytest.param(*case, id=case[0], marks=_marks(case[0], number)) for number, case in enumerate(BROKEN)],
)
def test_a_broken_runtime_fails_the_comparison(name: str, ranks: int, sections: dict[str, Any]) -> None:
    check_mutant(name, ranks, **sections)
