"""The launcher's laws: the cause is named once, the exit code says who erred, and no process outlives the launch."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fourfold.config.schema import FaultsSection
from fourfold.launch.run_folder import RunFolder
from fourfold.supervise.signals import LaunchOutcome
from fourfold.supervise.supervisor import supervise
from tests.support.supervised import is_alive
from tests.support.waiting import until

FAKE = Path(__file__).parents[1] / "launch" / "fake_worker.py"
ONCE = FaultsSection(attempts=1)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "logs").mkdir()
    return RunFolder(tmp_path)


def launch(folder: RunFolder, mode: str, ranks: int = 3, grace: float = 5.0, **callbacks) -> LaunchOutcome:
    return supervise(
        folder, ranks, 1, ONCE, command=[sys.executable, str(FAKE), mode], grace_seconds=grace, **callbacks
    )


def pids(folder: RunFolder) -> list[int]:
    return [int(path.read_text()) for path in folder.path.glob("pid-*")]


def test_every_rank_gets_its_environment_and_one_port(folder: RunFolder) -> None:
    assert launch(folder, "finish", ranks=2) == LaunchOutcome(0)
    told = [json.loads(folder.log(rank).read_text().splitlines()[0]) for rank in range(2)]
    assert [environment["LOCAL_RANK"] for environment in told] == ["0", "1"]
    assert {environment["WORLD_SIZE"] for environment in told} == {"2"}
    assert len({environment["MASTER_PORT"] for environment in told}) == 1
    assert {environment["FOURFOLD_PARENT"] for environment in told} == {str(os.getpid())}
    assert {environment["OMP_NUM_THREADS"] for environment in told} == {"1"}


def test_the_first_cause_is_named_and_those_who_only_noticed_are_not(folder: RunFolder) -> None:
    outcome = launch(folder, "fail:1:the disk is full\nfree 2 GB")
    assert outcome == LaunchOutcome(1, "the disk is full\nfree 2 GB")
    assert not any(map(is_alive, pids(folder)))


def test_a_mistake_that_a_rank_finds_is_a_usage_error(folder: RunFolder) -> None:
    assert launch(folder, "mistake:0:model.initial is wrong") == LaunchOutcome(2, "model.initial is wrong")


def test_a_rank_killed_by_a_signal_is_named(folder: RunFolder) -> None:
    outcome = launch(folder, "die:2")
    assert outcome.exit_code == 1
    assert outcome.message.startswith("rank 2 was killed by signal 9 (SIGKILL)")
    assert "memory" in outcome.message
    assert "closed by peer" not in outcome.message


def test_a_rank_that_says_nothing_is_quoted_from_its_log(folder: RunFolder) -> None:
    outcome = launch(folder, "mute:0")
    assert "rank 0 ended with exit code 1" in outcome.message
    assert "KeyError: 'lost'" in outcome.message


def test_ranks_that_do_not_end_when_another_failed_are_killed_after_the_grace(folder: RunFolder) -> None:
    start = time.monotonic()
    assert launch(folder, "deaf:1:it broke", grace=0.5) == LaunchOutcome(1, "it broke")
    assert time.monotonic() - start >= 0.5, (
        "they had their grace; and that it returned says that they were killed: none ends itself"
    )
    assert not any(map(is_alive, pids(folder)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_asks_the_ranks_once_and_waits_for_them(folder: RunFolder, number: int) -> None:
    messages: list[str] = []

    def signal_once_all_run() -> None:
        if len(pids(folder)) == 3 and not messages:
            os.kill(os.getpid(), number)
            time.sleep(0.02)

    before = signal.getsignal(number)
    outcome = launch(folder, "hang", on_tick=signal_once_all_run, on_notice=messages.append)
    assert outcome == LaunchOutcome(128 + number)
    assert len(messages) == 1
    assert "stopping after this step, saving" in messages[0]
    assert signal.getsignal(number) == before
    assert not any(map(is_alive, pids(folder)))


def test_the_second_signal_kills(folder: RunFolder) -> None:
    messages: list[str] = []

    def interrupt() -> None:
        if len(pids(folder)) == 3 and len(messages) < 2:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.02)

    outcome = launch(folder, "deaf", on_tick=interrupt, on_notice=messages.append)
    assert outcome == LaunchOutcome(130, killed=True)
    assert not any(map(is_alive, pids(folder)))


def test_an_error_in_the_display_leaves_no_process(folder: RunFolder) -> None:
    def fail() -> None:
        if len(pids(folder)) == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        launch(folder, "deaf", on_tick=fail)
    assert not any(map(is_alive, pids(folder)))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_no_rank_outlives_a_launcher_that_is_killed(folder: RunFolder) -> None:
    code = (
        "import sys; from pathlib import Path; from fourfold.supervise.supervisor import supervise;"
        "from fourfold.config.schema import FaultsSection; from fourfold.launch.run_folder import RunFolder;"
        "supervise(RunFolder(Path(sys.argv[1])), 2, 1, FaultsSection(), command=[sys.executable, sys.argv[2], 'deaf'])"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code, str(folder.path), str(FAKE)])
    until(lambda: len(pids(folder)) == 2, launcher)
    launcher.kill()
    launcher.wait()
    until(lambda: not any(map(is_alive, pids(folder))))
