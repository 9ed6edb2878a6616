"""Divisibility of degrees: a run file that breaks a rule is refused with a value that works, and the planner keeps the rules."""

import re
from typing import Any

import pytest

from fourfold.config import ModelConfig, ModelSection, UserError, parse_run
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.layout.divisibility import (
    gemm_fault,
    max_stages,
    sequence_multiple,
    splits_heads,
    splits_tensors,
    splits_tokens,
)
from fourfold.plan.request import Request
from fourfold.plan.space import block_shapes, pipelines

DENSE: dict[str, Any] = {
    "num_layers": 2, "hidden_size": 96, "num_heads": 12, "num_kv_heads": 4, "ffn_size": 144, "vocab_size": 120,
}  # fmt: skip
EXPERTS: dict[str, Any] = {**DENSE, "num_experts": 6, "top_k": 2, "moe_ffn_size": 20}
RECURRENT: dict[str, Any] = {
    **DENSE, "mixer": "gated_delta", "delta_key_heads": 3, "delta_value_heads": 6, "delta_key_dim": 8, "delta_value_dim": 4,
}  # fmt: skip
CHANNELS = {"mixer": "kimi_delta", "delta_key_heads": 6, "delta_key_dim": 4}
SHARED: dict[str, Any] = {**EXPERTS, "num_shared_experts": 3}


def _model(stated: dict[str, Any]) -> ModelConfig:
    return resolve_model(ModelSection(**stated))


def _resolve(model: dict[str, Any], length: int = 48, **layout: Any) -> None:
    run = parse_run({"layout": layout, "batch": {"global_sequences": 24, "sequence_length": length}})
    resolve_layout(run, _model(model))


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (DENSE, {"tp": 5}, "layout.tp = 5 does not divide model.num_heads = 12; a value that works: 4"),
    (DENSE, {"tp": 6}, "layout.tp = 6 neither divides model.num_kv_heads = 4 nor is a multiple of it; a value that works: 4"),
    ({**DENSE, "vocab_size": 5}, {"tp": 4}, "layout.tp = 4 leaves a rank without a row of model.vocab_size = 5; a value"),
    ({**DENSE, "ffn_size": 142}, {"tp": 4}, "layout.tp = 4 does not divide model.ffn_size = 142; a value that works: 2"),
    ({**SHARED, "moe_ffn_size": 7}, {"tp": 2}, "does not divide model.num_shared_experts x model.moe_ffn_size = 21"),
    (RECURRENT, {"tp": 4}, "layout.tp = 4 does not divide model.delta_key_heads = 3; a value that works: 1"),
    ({**RECURRENT, **CHANNELS}, {"tp": 4}, "layout.tp = 4 does not divide model.delta_key_heads = 6; a value that works: 2"),
    (DENSE, {"cp": 5}, "batch.sequence_length = 48 is not a multiple of 2 x layout.cp = 10"),
    (DENSE, {"cp": 3, "length": 45}, "batch.sequence_length = 45 is not a multiple of 2 x layout.cp = 6"),
    (DENSE, {"cp": 8, "cp_method": "ulysses"}, "splits 12 heads (num_heads / tp) over 8 ranks"),
    (DENSE, {"cp": 6, "cp_method": "ulysses", "tp": 4}, "splits 3 heads (num_heads / tp) over 6 ranks"),
    (DENSE, {"cp": 6, "cp_method": "ring+ulysses:4"}, "the ulysses degree 4 does not divide layout.cp = 6; a value that works"),
    (EXPERTS, {"ep": 4, "dp_shard": 4}, "layout.ep = 4 does not divide model.num_experts = 6; a value that works: 3"),
    (EXPERTS, {"etp": 3, "dp_shard": 3}, "layout.etp = 3 does not divide model.moe_ffn_size = 20; a value that works: 2"),
    (EXPERTS, {"ep": 3, "etp": 2, "dp_shard": 3}, "layout.ep x layout.etp = 3 x 2 does not divide dp_shard x cp x tp"),
    (DENSE, {"pp": 5, "virtual_stages": 1}, "= 5 x 1 = 5 stages, but the model has only 4 segments"),
    (DENSE, {"tp": 4, "sequence_parallel": True, "length": 42}, "splits a microbatch of 42 tokens"),
    (EXPERTS, {"tp": 4, "length": 42}, "a mixture of experts splits a microbatch of 42 tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "layout", "words"), REFUSED, ids=[words for *_, words in REFUSED])
def test_a_degree_that_does_not_divide_is_refused(model: dict[str, Any], layout: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        _resolve(model, **layout)


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        (DENSE, {"tp": 12}),  # a multiple of the key and value heads: copies
        ({**DENSE, "vocab_size": 125}, {"tp": 12}),  # padded to 132
        (DENSE, {"tp": 4, "length": 42}),
        (DENSE, {"length": 45}),
        (DENSE, {"cp": 12, "cp_method": "ulysses", "length": 24}),
        (DENSE, {"cp": 6, "cp_method": "ring+ulysses:3", "tp": 4}),
        (EXPERTS, {"ep": 3, "etp": 2, "dp_shard": 6}),
        (EXPERTS, {"ep": 6, "tp": 2, "dp_shard": 3}),
        (DENSE, {"pp": 4}),
    ],
    ids=str,
)
def test_a_degree_that_divides_is_taken(model: dict[str, Any], layout: dict[str, Any]) -> None:
    _resolve(model, **layout)


def test_ulysses_splits_the_heads_of_a_rank_of_tensor_parallelism() -> None:
    model = _model(DENSE)
    assert [splits_heads(model, tp, 12, 4) for tp in (1, 2, 3, 4)] == [True, False, True, False]
    assert not splits_heads(model, 1, 4, 3)


MLA: dict[str, Any] = {
    **{key: value for key, value in DENSE.items() if key != "num_kv_heads"},
    "key_value_rank": 64, "nope_head_dim": 32, "rope_head_dim": 32, "value_head_dim": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "tokens", "parallel", "size"),
    [
        ({}, 128, True, None),
        ({"query_rank": 96}, 128, True, None),
        ({"query_rank": 48}, 128, True, ("model.query_rank", 48)),
        ({"key_value_rank": 72}, 128, True, ("model.key_value_rank", 72)),
        ({"nope_head_dim": 4, "rope_head_dim": 60}, 128, True, ("num_heads / tp x nope_head_dim", 24)),
        ({"value_head_dim": 4}, 128, True, ("num_heads / tp x value_head_dim", 24)),
        ({}, 32, True, ("tokens that a rank of tp holds", 16)),
        ({}, 32, False, None),
    ],
)
def test_mla_leaves_numbers_that_share_a_scale_together(
    more: dict[str, Any], tokens: int, parallel: bool, size: tuple[str, int] | None
) -> None:
    model = _model({**MLA, "ffn_size": 192, **more})
    assert gemm_fault(model, 32, 2, 1, 64, tokens, parallel) == size


@pytest.mark.parametrize("stated", [DENSE, EXPERTS, SHARED, {**DENSE, "num_kv_heads": 12, "vocab_size": 122}])
def test_the_planner_keeps_to_the_same_rules(stated: dict[str, Any]) -> None:
    """Every shape that it looks at is legal, and every number of tensor-parallel ranks that is legal is looked at."""
    model = _model(stated)
    request = Request.of(model, load_cluster("dgx-h100:24"), 48, 24)
    shapes = list(block_shapes(request))
    assert {shape.tp for shape in shapes} == {tp for tp in (1, 2, 3, 4, 6, 8, 12, 24) if splits_tensors(model, tp)}
    for shape in shapes:
        ulysses = shape.cp if shape.cp_method == "ulysses" else int(shape.cp_method.partition(":")[2] or 1)
        tokens = shape.microbatch_sequences * 48 // shape.cp
        assert splits_heads(model, shape.tp, shape.cp, ulysses)
        assert 48 % sequence_multiple(shape.cp) == 0
        assert splits_tokens(model, tokens, shape.tp, sequence_parallel=True)
        dp = 24 // shape.tp // shape.cp
        shared = shape.tp > 1
        _resolve(
            stated, tp=shape.tp, cp=shape.cp, cp_method=shape.cp_method, dp_shard=dp, ep=shape.ep, etp=shape.etp,
            sequence_parallel=shared,
        )  # fmt: skip
    assert max(p.pp * p.virtual_stages for p in pipelines(request, 24)) == max_stages(model)
