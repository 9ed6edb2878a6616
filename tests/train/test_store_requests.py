"""Requests of the ranks to the rendezvous store while they train."""

import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tests.support.training_ranks import start_training
from tests.train.test_training import corpus, finish, make_run

__all__ = ["corpus"]
RANKS, FIRST, LAST = 2, 3, 8


def record_requests() -> None:
    """In a rank: writes a line for each step that begins and for each request into one file."""
    from fourfold.rendezvous.connection import Connection
    from fourfold.train.loop import Training

    path = Path(os.environ["REQUESTS"], os.environ["RANK"])
    begin, train_step = Connection.begin, Training._train_step

    def write(line: str) -> None:
        with path.open("a") as file:
            file.write(line + "\n")

    def recorded_begin(self: Connection, fields: list[bytes]) -> Future[list[bytes]]:
        write(f"request {fields[0].decode()}")
        return begin(self, fields)

    def recorded_step(self: Training, *arguments: Any) -> Any:
        write(f"step {self.step}")
        return train_step(self, *arguments)

    Connection.begin, Training._train_step = recorded_begin, recorded_step  # type: ignore[method-assign]


def test_a_steady_step_asks_the_store_for_nothing(tmp_path: Path, corpus, monkeypatch) -> None:
    monkeypatch.setenv("REQUESTS", str(tmp_path))
    sections = {"checkpoint": {"every_steps": 12}, "run": {"evaluate_every": 12}}
    out = make_run(tmp_path / "run", corpus, layout={"zero": 3}, **sections)
    codes, errors = finish(start_training(out, RANKS, record_requests))
    assert codes == [0] * RANKS, errors
    for rank in range(RANKS):
        written = (tmp_path / str(rank)).read_text().splitlines()
        steady = written[written.index(f"step {FIRST}") : written.index(f"step {LAST}")]
        assert not [line for line in steady if not line.startswith("step")]
        assert [line for line in written if not line.startswith("step")], "the start has requests, which were seen"
