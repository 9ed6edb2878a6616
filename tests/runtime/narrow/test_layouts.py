"""Narrow states under every layout: one rank's values, the declared bytes, and the same rounding on all replicas."""

from typing import Any

import pytest
import torch

from fourfold.config import UserError
from fourfold.program import lower_step
from fourfold.program.capabilities import buffer_bytes
from tests.support.combinations import faults_of
from tests.support.parity_ranks import assemble, prepare_rank, run_rank, worst
from tests.support.parity_runs import DEEPSEEK_V3, MIXTRAL, run_table
from tests.support.ranks import run_on_ranks

LAYOUTS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "zero-1": (2, {"dp_shard": 2, "zero": 1, "microbatch_sequences": 2}, {}),
    "zero-2-tied": (2, {"dp_shard": 2, "zero": 2, "microbatch_sequences": 2}, {"tie_embeddings": True}),
    "zero-3": (2, {"dp_shard": 2, "zero": 3, "microbatch_sequences": 2}, {}),
    "hsdp-3": (4, {"dp_replicate": 2, "dp_shard": 2, "zero": 3, "microbatch_sequences": 3}, {}),
    "tp": (2, {"tp": 2, "sequence_parallel": True, "microbatch_sequences": 6}, {}),
    "tp-zero-1": (4, {"tp": 2, "dp_shard": 2, "zero": 1, "microbatch_sequences": 3}, {}),
    "cp-zero-2": (2, {"cp": 2, "zero": 2, "microbatch_sequences": 6}, {}),
    "pp-tied": (2, {"pp": 2, "microbatch_sequences": 3}, {"tie_embeddings": True}),
    "ep-zero-1": (2, {"dp_shard": 2, "ep": 2, "zero": 1, "microbatch_sequences": 6}, MIXTRAL),
    "ep-etp": (4, {"tp": 2, "dp_shard": 2, "ep": 2, "etp": 2, "zero": 3, "microbatch_sequences": 3}, MIXTRAL),
    "offload": (2, {"dp_shard": 2, "zero": 3, "microbatch_sequences": 2, "offload_optimizer": True}, {}),
    "mla": (2, {"dp_shard": 2, "ep": 2, "zero": 3, "microbatch_sequences": 3}, DEEPSEEK_V3),
}
BF16 = {"compute": "bf16"}
HALVES = {"compute": "bf16", "master": "split"}


def _table(
    layout: dict[str, Any], model: dict[str, Any], name: str, precision: dict[str, Any], **optimizer: Any
) -> Any:
    return run_table(
        model={"vocab_size": 96, **model},
        batch={"sequence_length": 16, "steps": 3},
        layout=layout,
        optimizer={"name": name, "lr": 0.02, **optimizer},
        precision=precision,
    )


def _run(ranks: int, table: dict[str, Any]) -> dict[str, torch.Tensor]:
    spec = prepare_rank(0, table, ranks)[1].spec
    assert faults_of(spec) == []
    results = run_on_ranks(ranks, run_rank, table=table, ranks=ranks)
    return assemble(table, results, "parameters", ranks)


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", ["adamw", "muon", "lion", "sgd"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_rounds_alike(layout: str, name: str) -> None:
    """In fp64, where layouts differ by 1e-16, a state that another layout had rounded otherwise would differ by 2**-8; `assemble`
    compares replicas. And rounding does something: without it the parameters are others."""
    ranks, degrees, model = LAYOUTS[layout]
    found = _run(ranks, _table(degrees, model, name, {"compute": "fp64"}, state_dtype="bf16"))
    alone = _run(1, _table({"microbatch_sequences": 6}, model, name, {"compute": "fp64"}, state_dtype="bf16"))
    error, where = worst(found, alone)
    assert error < 1e-9, where
    exact = _run(1, _table({"microbatch_sequences": 6}, model, name, {"compute": "fp64"}))
    assert 1e-6 < worst(alone, exact)[0] < 0.3


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("layout", ["zero-1", "zero-2-tied", "zero-3", "hsdp-3", "tp", "pp-tied", "offload"])
def test_master_weights_in_halves_train_as_those_of_fp32(layout: str, name: str) -> None:
    """Given the same gradients the numbers are the same to the bit (`test_storage.py`). The weights in bf16 differ where one of
    65,536 is a tie, which is rounded away from zero here and to the even one there; gradients differ from then on."""
    ranks, degrees, model = LAYOUTS[layout]
    full = _run(ranks, _table(degrees, model, name, BF16))
    halves = _run(ranks, _table(degrees, model, name, HALVES))
    error, where = worst(halves, full)
    assert error < (0.3 if name == "muon" else 0.01), (
        where
    )  # Muon's iterations are in bf16, and steps as large as its rate


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", ["adamw", "muon", "lion"])
@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("precision", [{"compute": "fp32"}, HALVES], ids=["fp32", "halves"])
@pytest.mark.parametrize("state", [None, "bf16"])
def test_the_peak_is_the_declared(name: str, zero: int, precision: dict[str, Any], state: str | None) -> None:
    stated = {"state_dtype": state} if state else {}
    table = run_table(
        model={
            "hidden_size": 192,
            "num_heads": 6,
            "head_dim": 32,
            "ffn_size": 512,
            "vocab_size": 2048,
            "num_layers": 6,
        },
        batch={"global_sequences": 8, "sequence_length": 128, "steps": 1},
        layout={"dp_shard": 2, "zero": zero, "microbatch_sequences": 4},
        precision=precision,
        optimizer={"name": name, **stated},
    )
    for rank, result in enumerate(run_on_ranks(2, run_rank, table=table, ranks=2, track_memory=True)):
        view = prepare_rank(rank, table, 2)[1]
        program, numel = lower_step(view), sum(flat.shard_numel for flat in view.flats.values())
        if precision is HALVES:
            assert sum(size for name, size in program.buffers.items() if name.startswith("master/")) == 2 * numel
        assert abs(result["predicted_peak"] / result["peak"] - 1) < 0.01


def test_bytes_a_parameter_are_the_documented() -> None:
    """14, 10 and 8 of AdamW with weights in bf16 (`program/narrow`)."""
    found = []
    for precision, stated in ((BF16, {}), (BF16, {"state_dtype": "bf16"}), (HALVES, {"state_dtype": "bf16"})):
        view = prepare_rank(0, _table({"microbatch_sequences": 6}, {}, "adamw", precision, **stated), 1)[1]
        [size] = {
            sum(buffer_bytes(view, f"{kind}/{unit}") for kind in ("params", "master", "optimizer")) / flat.padded_numel
            for unit, flat in view.flats.items()
        }
        found.append(size)
    assert found == [14, 10, 8]


@pytest.mark.parametrize(
    ("precision", "run", "words"),
    [
        ({"compute": "fp32", "master": "split"}, {}, "precision.master = 'split'.*what works: precision.compute=bf16"),
        (HALVES, {"cuda_graphs": True}, "run.cuda_graphs = true.*what works: run.cuda_graphs=false"),
        ({"compute": "fp32"}, {"cuda_graphs": True}, "run.cuda_graphs = true, but optimizer.state_dtype"),
    ],
)
def test_what_does_not_go_together_is_refused(precision: dict[str, Any], run: dict[str, Any], words: str) -> None:
    table = _table({"microbatch_sequences": 6}, {}, "adamw", precision, state_dtype="bf16")
    with pytest.raises(UserError, match=words):
        prepare_rank(0, {**table, "run": {**table.get("run", {}), **run}}, 1)
