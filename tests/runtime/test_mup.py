"""muP: activations keep their scale over widths (the coordinate check), and every layout is one process of AdamW with groups."""

from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch

from fourfold.config import UserError
from fourfold.layout import flat_layouts
from fourfold.model.spec import build_segments
from tests.support.parity_check import check_split
from tests.support.parity_ranks import assemble, prepare_rank, run_rank
from tests.support.parity_reference import reference_model
from tests.support.parity_runs import MIXTRAL, run_table
from tests.support.programs import make_spec
from tests.support.ranks import run_on_ranks
from tests.support.reference_names import view_of

MUP = {"mup_base_hidden_size": 8, "init_std": 0.1}
ADAMW = {"lr": 0.02, "betas": [0.5, 0.8], "eps": 1e-3, "weight_decay": 0.1}
LAYOUTS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "one-rank": (1, {"microbatch_sequences": 6}, {"mup_base_head_dim": 2, "qkv_bias": True}),
    "zero-1": (2, {"dp_shard": 2, "zero": 1, "microbatch_sequences": 3}, {}),
    "zero-3-tp": (
        4,
        {"dp_shard": 2, "tp": 2, "sequence_parallel": True, "zero": 3, "microbatch_sequences": 3},
        {"mup_base_head_dim": 2},
    ),
    "pp-hsdp": (8, {"pp": 2, "dp_replicate": 2, "dp_shard": 2, "zero": 2, "microbatch_sequences": 3}, {}),
    "cp": (2, {"cp": 2, "microbatch_sequences": 6}, {}),
    "experts": (4, {"dp_shard": 2, "tp": 2, "ep": 2, "zero": 1, "microbatch_sequences": 3}, MIXTRAL),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_adamw_with_groups(layout: str) -> None:
    ranks, degrees, model = LAYOUTS[layout]
    check_split(ranks, layout=degrees, model={**MUP, **model}, optimizer=ADAMW, batch={"steps": 3})


WIDTHS = (64, 128, 256)


@cache
def _changes(width: int, mup: bool, head_dim: int | None = 16) -> dict[str, float]:
    """Mean size of what five steps change in a coordinate of every block's output and of the logits."""
    heads = {"num_heads": width // 16, "num_kv_heads": width // 16, "head_dim": 16}
    if head_dim is None:  # as many heads, which widen
        heads = {"num_heads": 4, "num_kv_heads": 4, "head_dim": width // 4}
    base = {"mup_base_hidden_size": 64, **({"mup_base_head_dim": 16} if head_dim is None else {})}
    table = run_table(
        model={
            **heads,
            "hidden_size": width,
            "ffn_size": 2 * width,
            "vocab_size": 64,
            "init_std": 0.1,
            **(base if mup else {}),
        },
        batch={"global_sequences": 8, "sequence_length": 16, "steps": 5},
        layout={"microbatch_sequences": 8},
        precision={"compute": "fp32"},
        optimizer={"lr": 0.01, "weight_decay": 0.0, "clip_norm": 0.0},
    )
    before, after = (_outputs(table, steps) for steps in (0, 5))
    return {name: (after[name] - before[name]).abs().mean().item() for name in before}


def _outputs(table: dict[str, Any], steps: int) -> dict[str, torch.Tensor]:
    """Outputs of transformers' model with the weights after so many steps here."""
    frozen = (
        {} if steps else {"batch": {**table["batch"], "steps": 1}, "optimizer": {**table["optimizer"], "lr": 1e-30}}
    )
    (result,) = run_on_ranks(1, run_rank, table={**table, **frozen}, ranks=1)
    view = prepare_rank(0, table, 1)[1]
    model = reference_model(view.spec.model, torch.float32)
    parameters = dict(model.named_parameters())
    for name, tensor in assemble(table, [result], "parameters", 1).items():
        place = view_of(name, parameters).data
        place.copy_(tensor.view(place.shape))
    tokens = torch.arange(64).view(4, 16)
    with torch.no_grad():
        found = model(tokens, output_hidden_states=True)
    return {**{f"b{i}": each for i, each in enumerate(found.hidden_states[1:-1])}, "logits": found.logits}


@pytest.mark.parametrize("head_dim", [16, None], ids=["more heads", "wider heads"])
def test_coordinate_check(head_dim: int | None) -> None:
    """Yang et al. 2022, appendix D.1: what a few steps at one learning rate change neither grows with the width under muP nor
    vanishes, and grows without. (The part of the logits that goes through the initial unembedding falls.)"""
    mup = [_changes(width, True, head_dim) for width in WIDTHS]
    plain = [_changes(width, False, head_dim) for width in WIDTHS]
    for name in mup[0]:
        sizes = [each[name] for each in mup]
        assert min(sizes) > 0.45 * max(sizes), f"{name} under muP: {sizes}"
        assert all(wider < 1.1 * narrow for narrow, wider in pairwise(sizes)), f"{name} under muP: {sizes}"
        sizes, growth = [each[name] for each in plain], 1.4 if name == "logits" else 2.0
        assert all(wider > growth * narrow for narrow, wider in pairwise(sizes)), f"{name} without: {sizes}"


def test_the_base_width_is_the_standard_parametrization() -> None:
    table = {"hidden_size": 32, "num_experts": 4, "top_k": 2, "moe_ffn_size": 24}
    plain, mup = make_spec(table), make_spec({**table, "mup_base_hidden_size": 32})
    assert [s.parameters for s in plain.segments] == [s.parameters for s in mup.segments]


def test_scales_are_those_of_table_3() -> None:
    """At four times the width, with heads four times as wide."""
    model = {"hidden_size": 32, "num_heads": 2, "head_dim": 16, "num_experts": 4, "top_k": 2, "moe_ffn_size": 24}
    spec = make_spec({**model, "init_std": 0.5, "mup_base_hidden_size": 8, "mup_base_head_dim": 4})
    found = {p.name: (p.init_std, p.lr_scale) for s in build_segments(spec.model) for p in s.parameters}
    residual = 0.5 / (2 * spec.model.num_layers) ** 0.5
    assert found["model.embed_tokens.weight"] == (0.5, 1.0)
    assert found["lm_head.weight"] == found["model.layers.0.mlp.gate.weight"] == (0.125, 0.25)
    assert found["model.layers.0.self_attn.k_proj.weight"] == (0.25, 0.25)
    assert found["model.layers.0.self_attn.q_proj.weight"] == (0.125, 0.125)
    assert found["model.layers.0.mlp.experts.down_proj"] == (pytest.approx(residual / 2), 0.25)
    assert found["model.norm.weight"] == (None, 1.0)
    runs = flat_layouts(spec.segments, spec.layout)["b0"].rate_runs()
    assert {scale for _, _, decayed, scale in runs if decayed} == {0.25, 0.125}


@pytest.mark.parametrize(
    ("model", "optimizer", "message"),
    [
        ({"tie_embeddings": True}, {}, "a value that works: tie_embeddings = false"),
        ({"mup_base_head_dim": 4, "qk_norm": True}, {}, "a value that works: mup_base_head_dim = 8"),
        ({"mtp_layers": 1}, {}, "mup_base_hidden_size = 8 is not known for model.mtp_layers = 1"),
        ({}, {"name": "muon"}, "what works: optimizer.name=adamw"),
        ({"mup_base_hidden_size": None, "mup_base_head_dim": 4}, {}, "needs model.mup_base_hidden_size > 0"),
    ],
)
def test_what_mup_does_not_cover_is_refused(model: dict[str, Any], optimizer: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare_rank(0, run_table(model={**MUP, **model}, optimizer=optimizer), 1)
