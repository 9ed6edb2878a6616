"""Expert parallelism gives the gradients and the parameters of one process: Mixtral, Qwen3-MoE, DeepSeek-V3, balanced or not."""

from typing import Any

import pytest

from tests.support.grid import others_are_rest
from tests.support.parity_check import check_single, check_split
from tests.support.parity_runs import MIXTURES

pytestmark = pytest.mark.grid(1)

sweep = pytest.mark.sweep
families = pytest.mark.parametrize("family", MIXTURES)
SPLITS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "ep": (2, {"dp_shard": 2, "ep": 2}),
    "ep sharded": (2, {"dp_shard": 2, "ep": 2, "zero": 3}),
    "etp over tp": (2, {"tp": 2, "etp": 2}),
    "etp over data": (2, {"dp_shard": 2, "etp": 2}),
    "tp alone": (2, {"tp": 2}),
    "ep over tp": (2, {"tp": 2, "ep": 2}),
    "ep over tp, sequence": (2, {"tp": 2, "ep": 2, "sequence_parallel": True}),
    "ep over cp": (2, {"cp": 2, "ep": 2}),
    "replicas": (2, {"dp_replicate": 2}),
    "copies of experts": (4, {"dp_shard": 4, "ep": 2, "zero": 2}),
    "ep 4": (4, {"dp_shard": 4, "ep": 4}),
    "ep and etp": (4, {"tp": 2, "dp_shard": 2, "ep": 2, "etp": 2, "zero": 1}),
    "ep over both": (4, {"tp": 2, "dp_shard": 2, "ep": 4, "sequence_parallel": True, "zero": 3}),
    "etp 4": (4, {"tp": 2, "dp_shard": 2, "etp": 4}),
    "ep over cp and tp": (4, {"cp": 2, "tp": 2, "ep": 4, "cp_method": "ulysses"}),
    "ep of replicas": (4, {"dp_replicate": 2, "dp_shard": 2, "ep": 2, "zero": 1}),
    "pipeline": (2, {"pp": 2, "schedule": "zb_h1"}),
    "pipeline of ep": (4, {"pp": 2, "dp_shard": 2, "ep": 2, "zero": 2, "schedule": "1f1b"}),
    "ep across pipelines": (4, {"pp": 2, "dp_shard": 2, "ep": 2, "zero": 1, "outermost": "dp"}),
}
QUICK = {
    "ep",
    "tp alone",
    "ep over tp, sequence",
    "etp over tp",
    "copies of experts",
    "pipeline of ep",
    "ep across pipelines",
}


@families
@pytest.mark.parametrize("split", [name if name in QUICK else pytest.param(name, marks=sweep) for name in SPLITS])
def test_splits(family: str, split: str) -> None:
    ranks, layout = SPLITS[split]
    check_split(ranks, model=MIXTURES[family], layout={"microbatch_sequences": 3, **layout})


@pytest.mark.parametrize("split", ["one rank", "ep over tp, sequence", "pipeline of ep"])
def test_experts_in_every_other_block(split: str) -> None:
    ranks, layout = SPLITS[split]
    model = {**MIXTURES["qwen3_moe"], "num_layers": 4, "ffn_size": 48, "moe_period": 2}
    check_split(ranks, model=model, layout={"microbatch_sequences": 3, **layout})


@pytest.mark.parametrize("family", others_are_rest(MIXTURES, ("deepseek_v3",)))
@pytest.mark.parametrize(
    ("split", "recompute"),
    [
        ("ep over tp, sequence", "full"),
        pytest.param("ep over tp, sequence", "selective", marks=sweep),
        pytest.param("ep and etp", "selective", marks=sweep),
        pytest.param("pipeline", "full", marks=sweep),
        pytest.param("ep over cp", "full", marks=sweep),
    ],
)
def test_recompute(family: str, split: str, recompute: str) -> None:
    ranks, layout = SPLITS[split]
    layout = {"microbatch_sequences": 2, "recompute": recompute, **layout}
    check_split(ranks, model=MIXTURES[family], data={"document_mask": True}, layout=layout)


BALANCE = {
    "no losses": {"balance_loss": 0.0, "z_loss": 0.0},
    "balance loss": {"balance_loss": 0.5, "z_loss": 0.0},
    "z loss": {"balance_loss": 0.0, "z_loss": 0.5},
    "both": {"balance_loss": 0.5, "z_loss": 0.5},
}


@sweep
@families
@pytest.mark.parametrize("losses", BALANCE)
@pytest.mark.parametrize("split", ["ep over tp", "ep over cp", "pipeline of ep"])
def test_auxiliary_losses(family: str, split: str, losses: str) -> None:
    """The losses are those of a sequence, however its tokens are split over ranks and its row over microbatches."""
    ranks, layout = SPLITS[split]
    model = {**MIXTURES[family], **BALANCE[losses]}
    check_split(ranks, model=model, layout={"microbatch_sequences": 2, **layout})


@pytest.mark.parametrize("split", ["ep over tp", *(pytest.param(s, marks=sweep) for s in ("ep", "pipeline of ep"))])
def test_the_balancing_bias(split: str) -> None:
    """Steps large enough to change what is chosen."""
    ranks, layout = SPLITS[split]
    model = {**MIXTURES["deepseek_v3"], "balance_bias_speed": 0.5}
    check_split(ranks, model=model, batch={"steps": 3}, layout={"microbatch_sequences": 3, **layout})


@pytest.mark.parametrize("split", ["ep", pytest.param("ep over tp", marks=sweep), pytest.param("ep 4", marks=sweep)])
def test_experts_that_nobody_chooses(split: str) -> None:
    """One expert a token of many: some experts, and some ranks, get no token of a microbatch."""
    ranks, layout = SPLITS[split]
    model = {**MIXTURES["qwen3_moe"], "top_k": 1, "num_experts": 32}
    batch = {"sequence_length": 4}
    check_split(ranks, model=model, batch=batch, layout={"microbatch_sequences": 1, **layout})


@pytest.mark.parametrize("split", ["ep over tp", pytest.param("ep and etp", marks=sweep)])
def test_a_capacity_that_drops_nothing_changes_nothing(split: str) -> None:
    """A rank's capacity is counted among its own tokens, so what is dropped depends on the layout; as many as there are is all."""
    ranks, layout = SPLITS[split]
    model = {**MIXTURES["mixtral"], "capacity_factor": 2.0}
    check_split(ranks, model=model, layout={"microbatch_sequences": 3, **layout})


@families
@pytest.mark.parametrize("split", ["ep over tp, sequence", pytest.param("ep and etp", marks=sweep)])
def test_in_fp32(family: str, split: str) -> None:
    ranks, layout = SPLITS[split]
    layout = {"microbatch_sequences": 3, **layout}
    check_single(ranks, model=MIXTURES[family], layout=layout)
