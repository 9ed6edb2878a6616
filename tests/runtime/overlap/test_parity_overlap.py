"""Exchanges of experts behind another microbatch give the gradients and the parameters of one process, to the last decimals."""

import random
from typing import Any

import pytest

from tests.support.parity_check import check_split
from tests.support.parity_runs import MIXTURES

pytestmark = pytest.mark.grid(1)

sweep = pytest.mark.sweep
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "accumulation": (2, {"dp_shard": 2, "ep": 2}),
    "odd": (2, {"dp_shard": 2, "ep": 2, "microbatch_sequences": 2}),
    "zero 1": (2, {"dp_shard": 2, "ep": 2, "zero": 1}),
    "copies of experts, zero 2": (4, {"dp_shard": 4, "ep": 2, "zero": 2}),
    "copies of experts, zero 3": (4, {"dp_shard": 4, "ep": 2, "zero": 3, "prefetch": 2}),
    "over tp, sequence": (2, {"tp": 2, "ep": 2, "sequence_parallel": True, "microbatch_sequences": 3}),
    "over tp": (2, {"tp": 2, "ep": 2, "microbatch_sequences": 2}),
    "over cp and tp": (4, {"cp": 2, "tp": 2, "ep": 4, "cp_method": "ulysses", "microbatch_sequences": 3}),
    "etp": (4, {"tp": 2, "dp_shard": 2, "ep": 2, "etp": 2, "zero": 1}),
    "replicas": (4, {"dp_replicate": 2, "dp_shard": 2, "ep": 2, "zero": 3}),
    "1f1b": (4, {"pp": 2, "dp_shard": 2, "ep": 2, "zero": 1}),
    "dualpipe_v": (4, {"pp": 2, "schedule": "dualpipe_v", "dp_shard": 2, "ep": 2, "zero": 2}),
    "interleaved": (4, {"pp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2, "dp_shard": 2, "ep": 2}),
    "zb_h1": (4, {"pp": 2, "schedule": "zb_h1", "dp_shard": 2, "ep": 2}),
}
QUICK = {"odd", "copies of experts, zero 3", "over tp, sequence", "1f1b", "dualpipe_v"}


@pytest.mark.parametrize("family", MIXTURES)
@pytest.mark.parametrize("layout", [name if name in QUICK else pytest.param(name, marks=sweep) for name in LAYOUTS])
def test_layouts(family: str, layout: str) -> None:
    ranks, keys = LAYOUTS[layout]
    model = {**MIXTURES[family], **({"num_layers": 4} if keys.get("pp", 1) > 1 else {})}
    check_split(ranks, model=model, layout={**keys, "overlap_experts": True})


@pytest.mark.parametrize(
    "recompute", ["full", pytest.param("selective", marks=sweep), pytest.param("full:1", marks=sweep)]
)
def test_recompute(recompute: str) -> None:
    ranks, keys = LAYOUTS["1f1b"]
    layout = {**keys, "recompute": recompute, "overlap_experts": True}
    check_split(ranks, model={**MIXTURES["deepseek_v3"], "num_layers": 3}, data={"document_mask": True}, layout=layout)


def test_modules_that_predict_ahead() -> None:
    model = {**MIXTURES["deepseek_v3"], "mtp_layers": 1, "mtp_loss": 0.3}
    check_split(2, model=model, layout={"dp_shard": 2, "ep": 2, "overlap_experts": True})


@sweep
@pytest.mark.parametrize("seed", range(10))
def test_random_compositions(seed: int) -> None:
    chosen = random.Random(seed)
    ranks, keys = LAYOUTS[chosen.choice(sorted(LAYOUTS))]
    family = chosen.choice(sorted(MIXTURES))
    layout = {
        **keys,
        "overlap_experts": True,
        "zero": chosen.randrange(4),
        "recompute": chosen.choice(["none", "selective", "full"]),
        "prefetch": chosen.randrange(4),
        "microbatch_sequences": chosen.choice([1, 3]),
    }
    model = {**MIXTURES[family], **({"num_layers": 4} if keys.get("pp", 1) > 1 else {})}
    print(f"seed {seed}: {family} {layout}")
    check_split(ranks, model=model, data={"document_mask": chosen.random() < 0.5}, layout=layout)
