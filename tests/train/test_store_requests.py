"""Requests of the ranks to the rendezvous store while they train."""

import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.training_ranks import start_training
from tests.train.test_training import corpus, finish, make_run

__all__ = ["corpus"]
RANKS, FIRST, LAST = 2, 3, 8


def record_requests() -> None:
    """In a rank: writes a line for each step that begins and for each request, with the thread that makes it, into one file."""
    from fourfold.rendezvous.store import SecretStore
    from fourfold.train.loop import Training

    path = Path(os.environ["REQUESTS"], os.environ["RANK"])
    ask, train_step = SecretStore._ask, Training._train_step

    def write(line: str) -> None:
        with path.open("a") as file:
            file.write(line + "\n")

    def recorded_ask(self: SecretStore, *request: Any, **options: Any) -> Any:
        write(f"{'main' if threading.current_thread() is threading.main_thread() else 'beside'} {request[0]}")
        return ask(self, *request, **options)

    def recorded_step(self: Training, *arguments: Any) -> Any:
        write(f"step {self.step}")
        return train_step(self, *arguments)

    SecretStore._ask, Training._train_step = recorded_ask, recorded_step  # type: ignore[method-assign]


def test_a_steady_step_asks_the_store_once_a_rank_and_beside_the_computation(
    tmp_path: Path, corpus, monkeypatch
) -> None:
    monkeypatch.setenv("REQUESTS", str(tmp_path))
    sections = {"checkpoint": {"every_steps": 12}, "run": {"evaluate_every": 12}}
    out = make_run(tmp_path / "run", corpus, layout={"zero": 3}, **sections)
    codes, errors = finish(start_training(out, RANKS, record_requests))
    assert codes == [0] * RANKS, errors
    for rank in range(RANKS):
        written = (tmp_path / str(rank)).read_text().splitlines()
        steady = written[written.index(f"step {FIRST}") : written.index(f"step {LAST}")]
        found = Counter(line for line in steady if not line.startswith("step"))
        assert set(found) == {"beside check"}
        # a thread's request may come before a step begins or after
        assert abs(found["beside check"] - (LAST - FIRST)) <= 1
