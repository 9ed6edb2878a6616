"""Parity of data parallelism beyond the plain model: other architectures, recompute policies, meshes, precisions."""

import itertools
from typing import Any

import pytest

from tests.support.parity_check import check_parity

pytestmark = pytest.mark.grid(1)

sweep = pytest.mark.sweep
stages = pytest.mark.parametrize("zero", [pytest.param(0, marks=sweep), 1, pytest.param(2, marks=sweep), 3])
TIED = {"tie_embeddings": True}


def _layout(ranks: tuple[int, int], zero: int, accumulation: int = 1, **more: Any) -> dict[str, Any]:
    rows = 12 // (ranks[0] * ranks[1]) // accumulation
    return {"dp_replicate": ranks[0], "dp_shard": ranks[1], "zero": zero, "microbatch_sequences": rows, **more}


@stages
@pytest.mark.parametrize("accumulation", [pytest.param(1, marks=sweep), 3])
def test_tied_embeddings(zero: int, accumulation: int) -> None:
    check_parity(2, model=TIED, layout=_layout((1, 2), zero, accumulation))


@pytest.mark.parametrize(("zero", "prefetch"), [(3, 0), (3, 3), (3, 9)])
@pytest.mark.parametrize("tied", [False, True])
def test_prefetch_distances(zero: int, prefetch: int, tied: bool) -> None:
    check_parity(2, model={"tie_embeddings": tied}, layout=_layout((1, 2), zero, 3, prefetch=prefetch))


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize(
    "recompute", ["selective", "full:1", "selective:1", ["full", "selective"], ["none", "full"]], ids=str
)
def test_recompute_policies(recompute: str | list[str], zero: int) -> None:
    check_parity(2, layout=_layout((1, 2), zero, 2, recompute=recompute))


@pytest.mark.parametrize("zero", [pytest.param(1, marks=sweep), 3])
@pytest.mark.parametrize(
    "model",
    [
        {"qk_norm": True},
        {"qkv_bias": True},
        {"qk_norm": True, "head_dim": 16, **TIED},
        {"num_kv_heads": 1, "num_layers": 3},
        {"num_kv_heads": 4, "vocab_size": 7, "ffn_size": 1},
        {
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position": 8,
            }
        },
        {"qkv_bias": True, "sliding_window": 6, "exceptions": [{"layers": [0], "sliding_window": 0}]},
    ],
    ids=str,
)
@pytest.mark.parametrize("recompute", [pytest.param("none", marks=sweep), "selective"])
def test_architectures(model: dict[str, Any], zero: int, recompute: str) -> None:
    check_parity(2, model=model, layout=_layout((1, 2), zero, 2, recompute=recompute))


@pytest.mark.parametrize("recompute", [pytest.param("none", marks=sweep), "selective", "full"])
@stages
def test_masked_documents_of_uneven_length(zero: int, recompute: str) -> None:
    check_parity(2, data={"document_mask": True}, layout=_layout((1, 2), zero, 2, recompute=recompute))


@stages
def test_masked_documents_on_replicas(zero: int) -> None:
    check_parity(4, data={"document_mask": True}, layout=_layout((2, 2), zero, 3))


@stages
@pytest.mark.parametrize("mesh", [(1, 3), (3, 1)], ids=str)
def test_three_ranks(mesh: tuple[int, int], zero: int) -> None:
    check_parity(3, model=TIED, layout=_layout(mesh, zero, 2))


@stages
@pytest.mark.parametrize("mesh", [(2, 1), (4, 1)], ids=str)
def test_replicas_alone(mesh: tuple[int, int], zero: int) -> None:
    check_parity(mesh[0], layout=_layout(mesh, zero, 3))


@sweep
@pytest.mark.parametrize("zero", [0, 2, 3])
@pytest.mark.parametrize("mesh", [(3, 2), (2, 3)], ids=str)
def test_six_ranks(mesh: tuple[int, int], zero: int) -> None:
    check_parity(6, layout=_layout(mesh, zero, 2))


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("clip_norm", [None, 1e-3, 1e6])
def test_clipping(clip_norm: float | None, zero: int) -> None:
    check_parity(2, optimizer={"clip_norm": clip_norm}, layout=_layout((1, 2), zero))


@pytest.mark.parametrize("zero", [0, 2])
def test_other_optimizer_settings(zero: int) -> None:
    settings = {"weight_decay": 0.0, "betas": [0.5, 0.8], "eps": 1e-3, "lr": 0.1}
    check_parity(2, optimizer=settings, layout=_layout((1, 2), zero))


@stages
@pytest.mark.parametrize("gradients", ["fp32", "fp64"])
def test_a_master_copy_in_another_format(zero: int, gradients: str) -> None:
    """fp32 weights and an fp64 copy of them: as near to the fp32 reference as fp32 itself."""
    precision = {"compute": "fp32", "master": "fp64", "gradients": gradients}
    check_parity(2, 2e-5, precision=precision, layout=_layout((1, 2), zero, 3))


@sweep
@pytest.mark.parametrize(
    ("mesh", "zero", "accumulation", "recompute", "prefetch", "masked", "tied"),
    [
        case
        for number, case in enumerate(
            itertools.product(
                [(1, 1), (1, 2), (2, 1), (1, 3), (2, 2), (1, 4), (3, 2), (1, 6)],
                range(4),
                [1, 2],
                ["none", "selective", "full:1", "full"],
                [0, 1, 3],
                [False, True],
                [False, True],
            )
        )
        if number % 31 == 0
    ],
    ids=str,
)
def test_sweep(
    mesh: tuple[int, int], zero: int, accumulation: int, recompute: str, prefetch: int, masked: bool, tied: bool
) -> None:
    layout = _layout(mesh, zero, accumulation, recompute=recompute, prefetch=prefetch)
    model = {"tie_embeddings": tied, "qk_norm": True}
    check_parity(mesh[0] * mesh[1], model=model, data={"document_mask": masked}, layout=layout)


@pytest.mark.parametrize("outermost", ["dp_replicate", "dp"])
@pytest.mark.parametrize(
    "layout",
    [
        {"pp": 2, "dp_replicate": 2, "zero": 1, "schedule": "zb_h1"},
        {"pp": 2, "dp_shard": 2, "zero": 3},
        pytest.param(
            {"pp": 2, "dp_shard": 2, "zero": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2}, marks=sweep
        ),
        pytest.param({"pp": 2, "dp_replicate": 2, "zero": 0}, marks=sweep),
    ],
    ids=str,
)
def test_pipelines_inside_of_replicas(layout: dict[str, Any], outermost: str) -> None:
    """Ranks that read different data are farther apart than stages; embedding and head are tied, and lie together."""
    rows = {"microbatch_sequences": 2, "outermost": outermost}
    check_parity(4, model={"tie_embeddings": True}, layout={**layout, **rows})
