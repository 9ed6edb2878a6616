"""The server that forks ranks, started before the run's folder is there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fourfold.config import load_run
from fourfold.launch.rank_process import ForkServer, trial_environment
from fourfold.launch.run_folder import RunFolder
from fourfold.train.fork_server import Started, end_server, start_server
from tests.support.waiting import until

pytest.importorskip("torch")


@pytest.fixture
def early() -> Iterator[Started]:
    server = start_server()
    yield server
    end_server(server)


def _folder(path: Path) -> RunFolder:
    folder = RunFolder(path / "run")
    (folder.path / "logs").mkdir(parents=True)
    config = load_run(Path(__file__).parents[2] / "examples/stdlib.toml", ("run.device=cpu",))
    folder.write(config, {})
    return folder


def _wait(server: ForkServer) -> None:
    until(server.ready)


def _trial(server: ForkServer, log: Path) -> int:
    """The exit code of a rank that computes a sum."""
    with log.open("wb") as file:
        return server.spawn(trial_environment(0), file).wait()


def test_a_server_that_was_started_before_forks_a_rank_of_the_run(early: Started, tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    server = ForkServer(folder, early)
    _wait(server)
    assert _trial(server, tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert early[0].poll() is None
    assert (folder.path / "logs/fork-server.log").exists()
    server.close()
    assert early[0].poll() is not None


def test_one_that_died_before_is_replaced(early: Started, tmp_path: Path) -> None:
    early[0].kill()
    early[0].wait()
    server = ForkServer(_folder(tmp_path), early)
    try:
        _wait(server)
        assert _trial(server, tmp_path / "log") == 0, (tmp_path / "log").read_text()
    finally:
        server.close()
