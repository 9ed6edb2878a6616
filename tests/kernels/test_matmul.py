"""All ranks take the same library of matmuls, by the slowest rank's times; a run file or a checkpoint may name it."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from fourfold.checkpoint import read_manifest
from fourfold.config import RunFailure, UserError
from fourfold.kernels.choose import Chosen
from fourfold.kernels.matmul import kind
from fourfold.kernels.matmul.kind import TORCH, choose_matmuls, mixture
from fourfold.kernels.matmul.libraries import KINDS, REPEATS, MatmulCounts
from fourfold.model.torch_onednn import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from fourfold.model.work import Gemm
from tests.support.thread_ranks import ThreadRank, on_thread_ranks
from tests.support.training_ranks import start_training
from tests.train.test_training import corpus, finish, lines, make_run

__all__ = ["corpus"]

COUNTS = {
    FORWARD: Counter({Gemm(2, 3, 4): 1}),
    INPUT_GRADIENT: Counter({Gemm(2, 4, 3): 1}),
    WEIGHT_GRADIENT: Counter({Gemm(3, 4, 2, accumulates=True): 1}),
}
Times = list[tuple[float, float]]
"""By kind, seconds of PyTorch's own library and of oneDNN."""


def _choose(
    folder: Path,
    times: list[Times],
    named: str = "auto",
    recorded: str = "",
    measures: tuple[bool, ...] = (True,),
    without: tuple[tuple[str, ...], ...] = ((),),
) -> list[Chosen[MatmulCounts]]:
    """Every rank's choice. `measures`: of each rank; `without`: kinds of which it has no matmuls; the last for those after it."""

    def run(context: ThreadRank) -> Chosen[MatmulCounts]:
        rank = context.rank
        order = iter([each for pair in times[rank] for each in pair * REPEATS])

        def clock(call: Callable[[], object]) -> float:
            call()
            return next(order)

        own, missing = (each[min(rank, len(each) - 1)] for each in (measures, without))
        counts = {kind: Counter[Gemm]() if kind in missing else gemms for kind, gemms in COUNTS.items()}
        return choose_matmuls(counts, context, named, recorded, folder / f"{rank}.json", clock, own)

    return on_thread_ranks(len(times), run)


def test_each_kind_goes_where_the_slowest_rank_is_faster(tmp_path: Path) -> None:
    one, two = [(3.0, 1.0), (3.0, 1.0), (1.0, 3.0)], [(2.0, 1.0), (2.0, 4.0), (1.0, 1.0)]
    chosen = _choose(tmp_path, [one, two])
    assert {each.backend.name for each in chosen} == {mixture((FORWARD,)).name}
    assert chosen[0].reason.startswith("ms by PyTorch's own library and by oneDNN: forward 3000.0 and 1000.0, ")


def test_a_second_start_measures_nothing(tmp_path: Path) -> None:
    first = _choose(tmp_path, [[(3.0, 1.0)] * 3])
    assert _choose(tmp_path, [[(1.0, 9.0)] * 3]) == first
    assert first[0].backend.name == mixture(KINDS).name


def test_a_rank_without_a_kind_of_matmuls_has_no_say_in_it(tmp_path: Path) -> None:
    """Neither when it measures nor when it remembers."""
    without = ((), (FORWARD, WEIGHT_GRADIENT))
    first = _choose(tmp_path, [[(3.0, 1.0), (3.0, 1.0), (1.0, 3.0)], [(2.0, 4.0)]], without=without)
    assert {each.backend.name for each in first} == {FORWARD}
    assert _choose(tmp_path, [[], []], without=without) == first


def test_a_short_run_measures_nothing(tmp_path: Path) -> None:
    assert _choose(tmp_path, [[], []], measures=(False,)) == [Chosen(TORCH)] * 2
    assert not list(tmp_path.iterdir())


def test_one_rank_with_much_to_do_makes_all_measure(tmp_path: Path) -> None:
    times = [(3.0, 1.0)] * 3
    chosen = _choose(tmp_path, [times, times], measures=(False, True))
    assert {each.backend.name for each in chosen} == {mixture(KINDS).name}


def test_what_the_run_file_or_the_checkpoint_says_is_not_measured(tmp_path: Path) -> None:
    assert _choose(tmp_path, [[]], named="onednn")[0].backend.members == mixture(KINDS).members
    for recorded, kinds in (("none", ()), ("forward", (FORWARD,)), (", ".join(KINDS), KINDS)):
        chosen = _choose(tmp_path, [[]], recorded=recorded)[0]
        assert (chosen.backend.name, chosen.reason) == (recorded, "as before the checkpoint")
        assert chosen.backend.members == mixture(kinds).members
    assert not list(tmp_path.iterdir())


def test_where_one_rank_cannot_none_does(tmp_path: Path) -> None:
    def broken() -> str | None:
        return next(problems)

    for named, recorded, error in (("auto", "", None), ("onednn", "", UserError), ("auto", "forward", RunFailure)):
        problems = iter([None, "it is Tuesday"])
        with patch.object(kind, "problem_of_onednn", broken):
            if error is None:
                assert _choose(tmp_path, [[], []]) == [Chosen(TORCH)] * 2
            else:
                with pytest.raises(error, match="it is Tuesday"):
                    _choose(tmp_path, [[], []], named=named, recorded=recorded)


def test_a_run_says_and_records_which_library_multiplied(tmp_path: Path, corpus: Path) -> None:
    """Losses are the same but for rounding; a run that goes on keeps the library, though its file says `auto`."""
    losses, chains = {}, set()
    for name in ("torch", "onednn"):
        run = {"matmul_backend": name, "sample_tokens": 0}  # sums of few numbers have the same bits by both libraries
        out = make_run(
            tmp_path / name,
            corpus,
            run=run,
            batch={"steps": 3},
            model={"ffn_size": 1024},
            layout={"microbatch_sequences": 8},
        )
        codes, errors = finish(start_training(out, 1))
        assert codes == [0], errors
        losses[name] = [row["loss"] for row in lines(out / "metrics.jsonl")]
        (newest,) = (out / "checkpoints").glob("step-*")
        assert read_manifest(newest).info["matmuls"] == {"torch": "none"}.get(name, ", ".join(KINDS))
        chains.add(read_manifest(newest).info["chain"])
        told = [event["message"] for event in lines(out / "events.jsonl") if event["event"] == "matmuls"]
        assert told == ([] if name == "torch" else ["as the run file says"])
    assert losses["onednn"] == pytest.approx(losses["torch"], rel=1e-5)
    assert len(chains) == 2, "the norms of the gradients differ in their last bits"
    out = tmp_path / "onednn"
    text = (out / "run.toml").read_text()
    (out / "run.toml").write_text(text.replace('"onednn"', '"auto"').replace("steps = 3", "steps = 4"))
    codes, errors = finish(start_training(out, 1))
    assert codes == [0], errors
    told = [event["message"] for event in lines(out / "events.jsonl") if event["event"] == "matmuls"]
    assert told[-1] == "as before the checkpoint"


@pytest.mark.rest
def test_a_run_in_another_format_cannot_name_it(tmp_path: Path, corpus: Path) -> None:
    out = make_run(tmp_path / "run", corpus, run={"matmul_backend": "onednn"}, precision={"compute": "fp64"})
    codes, errors = finish(start_training(out, 1))
    assert codes == [2]
    assert 'run.matmul_backend = "onednn", but this run computes in fp64 on cpu; ' in errors[0]
