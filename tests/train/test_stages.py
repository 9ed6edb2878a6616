"""A run of several stages: one history, equal under any layouts, and to the bit where it is disturbed."""

from pathlib import Path
from typing import Any

import pytest
import torch

import fourfold
from fourfold.checkpoint import read_parameters
from tests.support.grid import others_are_rest
from tests.train.test_training import EXPERTS, RUN, corpus

__all__ = ["corpus"]
LAYOUTS = [
    (2, [{"zero": 3}, {"tp": 2}, {"tp": 1, "pp": 2, "schedule": "zb_h1", "zero": 1}], {}),
    (4, [{"zero": 3}, {"cp": 2}, {"ep": 2, "zero": 2}], {"model": EXPERTS}),
    (4, [{"pp": 2}, {"tp": 2}, {"pp": 1, "zero": 2, "recompute": "full"}], {"optimizer": {"name": "muon", "lr": 0.02}}),
    (
        2,
        [{"pp": 2, "schedule": "interleaved_1f1b"}, {"pp": 1, "schedule": "1f1b"}, {"cp": 2}],
        {"data": {"document_mask": True}},
    ),
]


def staged(corpus: Path, folder: Path, layouts: list[dict], **sections: Any) -> dict[str, Any]:
    """Twelve steps of four stages: a ramp, twice the length, another blend, a decay to zero."""
    parts = [{"path": str(corpus), "weight": 3.0}, {"path": str(corpus / "1*.txt"), "weight": 1.0}]
    first, second, third = layouts
    return {
        "model": {**RUN["model"], **sections.get("model", {})},
        "data": {"corpus": parts, "tokenizer": "bytes", "directory": str(folder / "data"), **sections.get("data", {})},
        "batch": {
            "global_sequences": 8,
            "sequence_length": 16,
            "steps": 12,
            "ramp": [{"global_sequences": 4, "until_steps": 2}],
        },
        "layout": first,
        "precision": {"compute": "fp64"},
        "optimizer": {
            "lr": 1e-2,
            "schedule": "wsd",
            "progress": "tokens",
            "warmup_tokens": 200,
            **sections.get("optimizer", {}),
        },
        "checkpoint": {"every_steps": 2},
        "run": {"device": "cpu", "sample_tokens": 0, "threads_per_rank": 1, "evaluate_sequences": 4},
        "stage": [
            {"until_steps": 4},
            {"until_steps": 7, "batch": {"sequence_length": 32}, "model": {"rope_theta": 500.0}, "layout": second},
            {"until_steps": 9, "data": {"corpus": [*parts[::-1]]}},
            {
                "optimizer": {"schedule": "linear", "min_lr_ratio": 0.0},
                "batch": {"global_sequences": 4},
                "layout": third,
            },
        ],
    }


@pytest.mark.parametrize(("ranks", "layouts", "sections"), others_are_rest(LAYOUTS, LAYOUTS[:1]), ids=str)
def test_stages_under_any_layouts_are_the_run_of_one_rank(
    tmp_path: Path, corpus: Path, ranks, layouts, sections
) -> None:
    alone = fourfold.train(
        staged(corpus, tmp_path, [{}, {}, {}], **sections), ranks=1, out=tmp_path / "alone", quiet=True
    )
    split = fourfold.train(
        staged(corpus, tmp_path, layouts, **sections), ranks=ranks, out=tmp_path / "split", quiet=True
    )
    assert alone.steps == split.steps == 12
    for key in ("step", "tokens", "lr"):
        assert [row[key] for row in alone.metrics] == [row[key] for row in split.metrics]
    assert [row["tokens"] for row in alone.metrics][:4] == [64, 128, 256, 384]
    for key in ("loss", "grad_norm"):
        expected = [row[key] for row in alone.metrics]
        assert [row[key] for row in split.metrics] == pytest.approx(expected, rel=1e-9, abs=1e-9), key
    assert split.validation_loss == pytest.approx(alone.validation_loss, rel=1e-9)
    last, again = (read_parameters(tmp_path / name / "checkpoints" / "step-000012") for name in ("alone", "split"))
    for name, tensor in last.items():
        assert torch.allclose(tensor, again.get(name), rtol=0, atol=1e-9), name
    begun = [(event["step"], event["message"]) for event in split.events if event["event"] == "stage"]
    assert begun == [(4, "stage 2 begins"), (7, "stage 3 begins"), (9, "stage 4 begins")]


def test_steps_of_a_ramp_are_those_of_a_run_with_their_batch(tmp_path: Path, corpus: Path) -> None:
    """Each loss is a mean over the batch that there is, the routers' too."""
    small = staged(corpus, tmp_path, [{}, {}, {}], model=EXPERTS, optimizer={"schedule": "constant"})
    del small["stage"]
    ramp = {**small, "batch": {**small["batch"], "steps": 4}}
    plain = {**small, "batch": {"global_sequences": 4, "sequence_length": 16, "steps": 2}}
    rising, level = (
        fourfold.train(each, ranks=1, out=tmp_path / name, quiet=True) for each, name in ((ramp, "a"), (plain, "b"))
    )
    for key in ("loss", "grad_norm", "auxiliary_loss", "lr", "tokens"):
        assert [row[key] for row in rising.metrics[:2]] == [row[key] for row in level.metrics], key
    assert level.metrics[0]["auxiliary_loss"] > 0
