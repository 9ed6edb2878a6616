"""All ranks take the same back end of attention, by the slowest rank's times; a run file or a checkpoint may name it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.checkpoint import read_manifest
from fourfold.config import RunFailure, UserError
from fourfold.kernels import remembered
from fourfold.kernels.attention.kind import BACKENDS, KIND, TILED, AttentionCase, case_of
from fourfold.kernels.backend import Backend
from fourfold.kernels.choose import Chosen, choose
from tests.rehearse.layouts import sections
from tests.rehearse.rehearsed import sections_spec
from tests.support.backends import with_members
from tests.support.thread_ranks import ThreadRank, on_thread_ranks
from tests.support.training_ranks import start_training
from tests.train.test_training import corpus, finish, lines, make_run

__all__ = ["corpus"]

CASE = AttentionCase(1, 8, 2, 1, 8, 8, torch.float32, torch.device("cpu"))
INFINITE = float("inf")
NAMES = ("one", "two", "three")


def _fails(*args: Any) -> Any:
    raise RuntimeError("broken")


def _choose(
    folder: Path, times: list[dict[str, float]], named: str = "auto", recorded: str = "", measures: bool = True
) -> list[Chosen]:
    """Every rank's choice. `times`: of each rank, by name; a back end of infinite time fails there."""

    def run(context: ThreadRank) -> Chosen:
        rank = context.rank
        own: dict[str, Backend[AttentionCase]] = {}
        for name in NAMES:
            broken = times[rank][name] == INFINITE
            own[name] = with_members(TILED, name, **{"attend": _fails} if broken else {})
        working = iter([each for each in times[rank].values() if each < INFINITE])
        cache = folder / f"{rank}.json"
        own = {**own, "flash": BACKENDS["flash"]} if not measures else own
        return choose(*(KIND.contest(CASE, own), context, named, recorded, cache, lambda call: next(working), measures))

    return on_thread_ranks(len(times), run)


def _times(one: float, two: float, three: float) -> dict[str, float]:
    return dict(zip(NAMES, (one, two, three), strict=True))


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([_times(3.0, 1.0, 2.0)], "two"),
        ([_times(1.0, 2.0, 9.0), _times(8.0, 3.0, 1.0)], "two"),
        ([_times(1.0, 2.0, 3.0), _times(INFINITE, 2.0, 1.0)], "two"),
        ([_times(1.0, INFINITE, 3.0), _times(INFINITE, 2.0, 4.0)], "three"),
    ],
)
def test_the_least_of_the_slowest_ranks_wins(tmp_path: Path, times: list[dict[str, float]], expected: str) -> None:
    chosen = _choose(tmp_path, times)
    assert {each.backend.name for each in chosen} == {expected}
    assert all("ms of forward and backward" in each.reason for each in chosen)


def test_a_second_start_measures_nothing(tmp_path: Path) -> None:
    first = _choose(tmp_path, [_times(3.0, 1.0, 2.0)])[0]
    again = _choose(tmp_path, [_times(9.0, 7.0, 8.0)])[0]
    assert (again.backend.name, again.reason) == ("two", first.reason)


def test_a_remembered_one_that_fails_now_is_passed_over_by_all(tmp_path: Path) -> None:
    """The file of rank 0 says that `one` is the fastest, and rank 1 must measure; it fails on rank 0 now."""
    remembered.remember(tmp_path / "0.json", remembered.key_of(CASE), _times(1.0, 2.0, 3.0))
    chosen = _choose(tmp_path, [_times(INFINITE, 5.0, 5.0), _times(1.0, 2.0, 3.0)])
    assert [each.backend.name for each in chosen] == ["two", "two"]


def test_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFailure, match=r"no back end computes this run's attention: .*broken"):
        _choose(tmp_path, [_times(INFINITE, INFINITE, INFINITE)])


def test_a_named_one_is_taken_or_refused_by_all(tmp_path: Path) -> None:
    times = [_times(1.0, 2.0, 3.0), _times(1.0, INFINITE, 3.0)]
    assert [each.backend.name for each in _choose(tmp_path, times, "three")] == ["three", "three"]
    with pytest.raises(UserError, match=r'run.attention_backend = "two": RuntimeError: broken; allowed: .* "auto"'):
        _choose(tmp_path, times, "two")


def test_a_checkpoints_one_stays_while_it_works(tmp_path: Path) -> None:
    assert _choose(tmp_path, [_times(1.0, 2.0, 3.0)], recorded="three")[0][1] == "as before the checkpoint"
    assert _choose(tmp_path, [_times(1.0, 2.0, INFINITE)], recorded="three")[0].backend.name == "one"
    assert _choose(tmp_path, [_times(1.0, 2.0, 3.0)], recorded="no such")[0].backend.name == "one"


def test_a_processor_compares_nothing(tmp_path: Path) -> None:
    chosen = _choose(tmp_path, [_times(INFINITE, INFINITE, INFINITE)], measures=False)[0]
    assert (chosen.backend.name, chosen.reason) == ("flash", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("ranks", "layout", "expected"),
    [
        (1, {}, (16, 4, 2, False)),
        (2, {"tp": 2}, (16, 2, 1, False)),
        (2, {"cp": 2}, (8, 4, 2, True)),
        (2, {"cp": 2, "cp_method": "ulysses"}, (16, 2, 1, False)),
    ],
)
def test_the_case_of_a_layout(ranks: int, layout: dict[str, Any], expected: tuple[int, int, int, bool]) -> None:
    spec, _ = sections_spec(ranks, sections(layout, data={"document_mask": True}))
    case = case_of(spec, torch.device("cuda"))
    assert (case.queries, case.heads, case.kv_heads, case.rectangles) == expected
    assert case.documents
    assert not case_of(spec, torch.device("cpu")).documents


def test_a_run_computes_with_the_one_that_it_names(tmp_path: Path, corpus: Path) -> None:
    """The run's record and its checkpoint say so; losses and norms are those of the other back end but for rounding."""
    found = {}
    for name in ("auto", "tiled"):
        out = make_run(tmp_path / name, corpus, run={"attention_backend": name, "sample_tokens": 0}, batch={"steps": 3})
        codes, errors = finish(start_training(out, 1))
        assert codes == [0], errors
        found[name] = [row[key] for row in lines(out / "metrics.jsonl") for key in ("loss", "grad_norm")]
        (newest,) = (out / "checkpoints").glob("step-*")
        assert read_manifest(newest).info["attention"] == {"auto": "flash"}.get(name, name)
        told = [event for event in lines(out / "events.jsonl") if event["event"] == "attention"]
        assert [event["backend"] for event in told] == ([] if name == "auto" else [name])
    assert found["tiled"] == pytest.approx(found["auto"], rel=1e-5)
    assert found["tiled"] != found["auto"]


@pytest.mark.rest
def test_a_run_that_names_one_for_gpus_ends_on_a_processor(tmp_path: Path, corpus: Path) -> None:
    out = make_run(tmp_path / "run", corpus, run={"attention_backend": "cudnn", "device": "cpu"})
    codes, errors = finish(start_training(out, 2))
    assert codes == [2, 2]
    assert 'run.attention_backend = "cudnn": it runs on CUDA; allowed: ' in errors[0]
    assert "Traceback" not in errors[0]
