"""The back end of a run's norms: named by the run file, recorded in its checkpoint, compared on CUDA alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.checkpoint import read_manifest
from fourfold.kernels import remembered
from fourfold.kernels.choose import Chosen, choose
from fourfold.kernels.norm import FORMULA, KIND, NormCase, case_of
from tests.rehearse.layouts import sections
from tests.rehearse.rehearsed import sections_spec
from tests.support.parity_check import check_split
from tests.support.thread_ranks import ThreadRank, on_thread_ranks
from tests.support.training_ranks import start_training
from tests.train.test_training import corpus, finish, lines, make_run

__all__ = ["corpus"]

CASE = NormCase(8, 8, torch.float32, torch.device("cpu"), 1e-5)


def test_all_ranks_take_the_one_whose_slowest_rank_is_fastest(tmp_path: Path) -> None:
    times = [{"formula": 1.0, "other": 3.0}, {"formula": 9.0, "other": 4.0}]
    backends = {"formula": FORMULA, "other": replace(FORMULA, name="other")}

    def run(context: ThreadRank) -> Chosen[NormCase]:
        cache, own = tmp_path / f"{context.rank}.json", iter(times[context.rank].values())
        return choose(KIND.contest(CASE, backends), context, "auto", "", cache, lambda call: next(own), measures=True)

    chosen = on_thread_ranks(2, run)
    assert [each.backend.name for each in chosen] == ["other", "other"]
    assert chosen[0].reason == "the fastest, in ms of forward and backward: formula 9000.00, other 4000.00"
    known = remembered.recall(tmp_path / "0.json", remembered.key_of(CASE), backends)
    assert known == times[0]


@pytest.mark.parametrize(
    ("ranks", "layout", "rows"),
    [(1, {}, 16), (2, {"tp": 2}, 16), (2, {"tp": 2, "sequence_parallel": True}, 8), (2, {"cp": 2}, 8)],
)
def test_the_case_of_a_layout(ranks: int, layout: dict[str, Any], rows: int) -> None:
    spec, _ = sections_spec(ranks, sections(layout))
    case = case_of(spec, torch.device("cuda"))
    assert (case.rows, case.width) == (rows * spec.layout.microbatch_sequences, spec.model.hidden_size)


@pytest.mark.parametrize(
    ("ranks", "given"),
    [
        (2, {"layout": {"tp": 2, "sequence_parallel": True}}),
        (2, {"layout": {"pp": 2, "recompute": "selective"}, "model": {"qk_norm": True}}),
        (2, {"layout": {"cp": 2, "zero": 3}}),
    ],
    ids=str,
)
def test_segments_hand_a_back_end_all_that_it_needs(ranks: int, given: dict[str, Any]) -> None:
    """Plain formulas as a back end of norms and of cross-entropy give the gradients of transformers in fp64."""
    check_split(ranks, fused="plain", **given)


@pytest.mark.parametrize(
    ("option", "part"), [("norm_backend", "norms"), pytest.param("loss_backend", "loss", marks=pytest.mark.rest)]
)
def test_the_choice_is_recorded(tmp_path: Path, corpus: Path, option: str, part: str) -> None:
    out = make_run(tmp_path / "run", corpus, run={option: "formula", "sample_tokens": 0}, batch={"steps": 2})
    codes, errors = finish(start_training(out, 1))
    assert codes == [0], errors
    (newest,) = (out / "checkpoints").glob("step-*")
    assert read_manifest(newest).info[part] == "formula"
    told = [event for event in lines(out / "events.jsonl") if event["event"] == part]
    assert [(event["backend"], event["message"]) for event in told] == [("formula", "as the run file says")]


@pytest.mark.parametrize(
    ("option", "model", "problem"),
    [
        pytest.param("norm_backend", {}, "it runs on CUDA", marks=pytest.mark.rest, id="rms"),
        pytest.param("norm_backend", {"norm": "layer"}, "the model has LayerNorms", id="layer"),
        pytest.param(
            "attention_backend", {"attention_softcap": 50.0}, "a formula computes", marks=pytest.mark.rest, id="capped"
        ),
    ],
)
def test_a_run_that_names_one_in_vain_ends(
    tmp_path: Path, corpus: Path, option: str, model: dict[str, Any], problem: str
) -> None:
    out = make_run(tmp_path / "run", corpus, run={option: "triton", "device": "cpu"}, model=model)
    codes, errors = finish(start_training(out, 1))
    assert codes == [2]
    assert f'run.{option} = "triton": {problem}' in errors[0]
    assert "; allowed: " in errors[0]
    assert "Traceback" not in errors[0]
