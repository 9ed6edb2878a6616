"""A back end that breaks the device ends its rank once, by name, and is not tried when the ranks are started again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.config import RunFailure, UserError
from fourfold.kernels import loss, norm, pointwise
from fourfold.kernels.attention import kind as attention
from fourfold.kernels.attention.kind import TILED, AttentionCase
from fourfold.kernels.choose import Alone, choose
from fourfold.kernels.loss import LossCase
from fourfold.kernels.norm import NormCase
from fourfold.kernels.pointwise import PointwiseCase
from fourfold.kernels.timed import TimedContest
from fourfold.kernels.trials import FILE, Trials, device_answers
from tests.rehearse.layouts import sections
from tests.rehearse.rehearsed import sections_spec
from tests.support.backends import with_members

CPU = torch.device("cpu")
MODEL = sections_spec(1, sections({}))[0].model
STICKY = "CUDA error: an illegal memory access was encountered"


class Device:
    """One that computes until a kernel breaks it; then everything fails, whoever asks."""

    broken = False

    def use(self) -> None:
        if self.broken:
            raise RuntimeError(STICKY)

    def answers(self) -> bool:
        return not self.broken


def contests() -> dict[str, TimedContest[Any]]:
    return {
        "attention": attention.KIND.contest(
            AttentionCase(1, 8, 2, 1, 8, 8, torch.float32, CPU), {"one": TILED, "two": TILED}
        ),
        "norms": norm.KIND.contest(
            NormCase(8, 8, torch.float32, CPU, 1e-5), dict.fromkeys(("one", "two"), norm.FORMULA)
        ),
        "loss": loss.KIND.contest(
            LossCase(20, 70, torch.float32, CPU, MODEL), dict.fromkeys(("one", "two"), loss.FORMULA)
        ),
        "pointwise": pointwise.KIND.contest(
            PointwiseCase(8, 8, 2, 8, torch.float32, CPU), dict.fromkeys(("one", "two"), pointwise.FORMULA)
        ),
    }


def poisoned(contest: TimedContest[Any], device: Device, where: str) -> TimedContest[Any]:
    """The contest on the device, where `one` breaks it in its examination, or only when it is timed."""
    backends = {name: replace(each, name=name) for name, each in contest.backends.items()}

    def examine(backend: Any) -> str | None:
        if backend.name == "one" and where == "examined":
            device.broken = True
        try:
            device.use()
        except RuntimeError as error:
            return f"RuntimeError: {error}"
        return contest.examine(backend)

    def timed(backend: Any) -> Any:
        call = contest.timed(backend)

        def step() -> object:
            if backend.name == "one" and where == "timed":
                device.broken = True
            device.use()
            return call()

        return step

    return replace(contest, backends=backends, examine=examine, timed=timed)


def start(contest: TimedContest[Any], out: Path, device: Device, named: str = "auto") -> Any:
    trials = Trials(out, device.answers, rank=3)

    def clock(call: Any) -> float:
        call()
        device.use()
        return 1.0

    return choose(contest, Alone(CPU), named, "", out / "cache.json", clock, True, trials)


@pytest.mark.parametrize("where", ["examined", "timed"])
@pytest.mark.parametrize("part", ["attention", "norms", "loss", "pointwise"])
def test_the_second_start_does_without_it(tmp_path: Path, part: str, where: str) -> None:
    device, contest = Device(), contests()[part]
    with pytest.raises(
        RunFailure, match=r'rank 3: the back end "one" \(run\.\w+\) broke the device in its trial'
    ) as told:
        start(poisoned(contest, device, where), tmp_path, device)
    assert STICKY in str(told.value)
    assert len((tmp_path / FILE).read_text().splitlines()) == 1
    again = Device()  # another process
    chosen = start(poisoned(contest, again, where), tmp_path, again)
    assert chosen.backend.name == "two"
    assert not again.broken


def test_one_that_only_fails_is_passed_over_at_once(tmp_path: Path) -> None:
    def fails(*args: Any) -> Any:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

    one = with_members(TILED, "one", attend=fails)
    case = AttentionCase(1, 8, 2, 1, 8, 8, torch.float32, CPU)
    contest = attention.KIND.contest(case, {"one": one, "two": replace(TILED, name="two")})
    assert start(contest, tmp_path, Device()).backend.name == "two"
    assert not (tmp_path / FILE).exists()


def test_one_that_the_run_file_names_is_refused_by_name(tmp_path: Path) -> None:
    contest = contests()["norms"]
    device = Device()
    with pytest.raises(RunFailure):
        start(poisoned(contest, device, "examined"), tmp_path, device, "one")
    again = Device()
    with pytest.raises(
        UserError, match=r'run.norm_backend = "one": it broke the device before .* delete broken_backends.jsonl'
    ):
        start(poisoned(contest, again, "examined"), tmp_path, again, "one")
    assert not again.broken


@pytest.mark.parametrize(
    ("error", "answers"),
    [(None, True), (torch.OutOfMemoryError("CUDA out of memory"), True), (RuntimeError(STICKY), False)],
)
def test_a_lack_of_memory_is_no_broken_device(
    error: Exception | None, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def synchronize(device: torch.device) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch, "ones", lambda size, device: torch.full((size,), 1.0))
    assert device_answers(torch.device("cuda")) == answers
    assert device_answers(CPU)


@pytest.mark.parametrize("text", ["", "{", "[]", "\0" * 9, '{"option": 3}', "[" * 9000])
def test_a_damaged_record_refuses_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    device = Device()
    assert start(poisoned(contests()["norms"], device, "never"), tmp_path, device).backend.name == "one"
