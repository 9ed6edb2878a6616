"""Activations and optimizer states in the host's memory give the gradients and the parameters of one process."""

import random
from typing import Any

import pytest

from tests.support.grid import others_are_rest
from tests.support.parity_check import check_split
from tests.support.parity_runs import DEEPSEEK_V3, MIXTURES, QWEN3_MOE

pytestmark = pytest.mark.grid(1)

sweep = pytest.mark.sweep
BOTH: dict[str, Any] = {"offload": "activations", "offload_optimizer": True}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "zero 0": (2, {"dp_shard": 2}),
    "zero 1": (2, {"dp_shard": 2, "zero": 1}),
    "zero 2": (2, {"dp_shard": 2, "zero": 2}),
    "zero 3": (2, {"dp_shard": 2, "zero": 3, "prefetch": 0}),
    "1f1b": (2, {"pp": 2}),
    "interleaved": (2, {"pp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2}),
    "zero bubble": (2, {"pp": 2, "schedule": "zb_h1"}),
    "zero bubble V": (4, {"pp": 2, "schedule": "zb_v", "virtual_stages": 2, "dp_shard": 2, "zero": 2}),
    "tensor": (2, {"tp": 2, "sequence_parallel": True}),
    "ring": (2, {"cp": 2}),
    "ulysses": (2, {"cp": 2, "cp_method": "ulysses"}),
    "gathered": (2, {"cp": 2, "cp_method": "all_gather"}),
}
DENSE = {"num_layers": 6, "tie_embeddings": True, "qk_norm": True}


QUICK = ("zero 2", "zero bubble V", "tensor", "ulysses")


@pytest.mark.parametrize("layout", others_are_rest(LAYOUTS, QUICK))
def test_layouts(layout: str) -> None:
    ranks, keys = LAYOUTS[layout]
    rows = {"microbatch_sequences": 3}
    check_split(ranks, model=DENSE, data={"document_mask": True}, layout={**rows, **keys, **BOTH})


@pytest.mark.parametrize("recompute", ["selective", "full:2", ["none", "full", "none", "selective", "none", "full"]])
def test_beside_recomputation(recompute: Any) -> None:
    layout = {"dp_shard": 2, "zero": 3, "recompute": recompute, "offload": "activations:3"}
    check_split(2, model=DENSE, layout=layout)


@pytest.mark.parametrize("family", others_are_rest(MIXTURES, ("qwen3_moe",)))
@pytest.mark.parametrize("overlap", [False, True])
def test_experts(family: str, overlap: bool) -> None:
    layout = {"dp_shard": 2, "ep": 2, "zero": 1, "overlap_experts": overlap, **BOTH}
    check_split(2, model={**MIXTURES[family], "num_layers": 4}, layout=layout)


def test_mla_and_modules_that_predict_ahead() -> None:
    check_split(2, model={**DEEPSEEK_V3, "mtp_layers": 1, "mtp_loss": 0.3}, layout={"pp": 2, **BOTH})


def test_a_master_copy_in_another_format() -> None:
    """bf16 has no reference to the last decimals: the same step on the device has the same bits."""
    from tests.support.parity_ranks import run_rank
    from tests.support.parity_runs import run_table
    from tests.support.ranks import run_on_ranks

    found = []
    for layout in ({}, BOTH):
        table = run_table(layout={"dp_shard": 2, "zero": 2, **layout}, precision={"compute": "bf16"}, model=QWEN3_MOE)
        found.append(run_on_ranks(2, run_rank, table=table, ranks=2))
    for plain, away in zip(*found, strict=True):
        assert plain["losses"] == away["losses"]
        for unit, parameters in plain["parameters"].items():
            assert (parameters == away["parameters"][unit]).all()


@sweep
@pytest.mark.parametrize("seed", range(12))
def test_random_compositions(seed: int) -> None:
    chosen = random.Random(seed)
    ranks, keys = LAYOUTS[chosen.choice(sorted(LAYOUTS))]
    layout = {
        "microbatch_sequences": chosen.choice([1, 3]),
        "recompute": chosen.choice(["none", "selective", "full:1"]),
        "prefetch": chosen.randrange(4),
        **keys,
        "offload": chosen.choice(["activations", "activations:2"]),
        "offload_optimizer": chosen.random() < 0.7,
    }
    model = {**MIXTURES[chosen.choice(sorted(MIXTURES))], "num_layers": 6} if chosen.random() < 0.5 else DENSE
    print(f"seed {seed}: {layout}")
    check_split(ranks, model=model, data={"document_mask": chosen.random() < 0.5}, layout=layout)
