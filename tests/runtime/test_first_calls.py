"""Groups are called once before the first step, with a deadline that names the ranks that do not come."""

import threading
import time
from typing import Any

import pytest
import torch

from fourfold.config import RunFailure
from fourfold.program import lower_pipeline
from fourfold.runtime.collectives import make_groups
from fourfold.runtime.first_calls import AnswerDeadline, FirstCall, first_calls, kinds_of
from fourfold.runtime.parallel import groups_of
from fourfold.runtime.progress import NOWHERE, STARTING, TRAINING, Position
from tests.support.parity_ranks import LINKS, prepare_rank
from tests.support.parity_runs import run_table
from tests.support.ranks import run_on_ranks

CPU = torch.device("cpu")


def connect_rank(rank: int, table: dict[str, Any]) -> tuple[list[str], dict[str, int]]:
    _, view = prepare_rank(rank, table, 4)
    spec = view.spec
    groups = make_groups(spec.layout, rank, groups_of(spec), 60.0, LINKS)
    calls = list(first_calls(groups, groups_of(spec), spec.layout, rank, kinds_of(lower_pipeline(spec)), CPU))
    AnswerDeadline(CPU, seconds=60.0).connect(calls)
    return [each.what for each in calls], {axes: group.sent_bytes for axes, group in groups.items()}


def test_every_group_and_pair_is_called_and_no_byte_is_counted() -> None:
    found = run_on_ranks(4, connect_rank, table=run_table(layout={"pp": 2, "dp_shard": 2, "zero": 1}))
    for rank, (calls, sent) in enumerate(found):
        other = (rank + 2) % 4
        low, high = min(rank, other), max(rank, other)
        assert [each for each in calls if "transfer" in each] == [
            f"the first transfer from rank {high} to rank {low}",
            f"the first transfer from rank {low} to rank {high}",
        ]
        assert any("dp_shard" in each for each in calls)
        assert set(sent.values()) == {0}


class Never:
    """A call that nobody answers."""

    def wait(self) -> None:
        threading.Event().wait()


def place(kind: int, counter: int, pid: int = 1) -> Position:
    return Position(0, counter, time.time(), 0.0, kind, pid)


@pytest.mark.parametrize(
    ("places", "named"),
    [
        ([place(STARTING, 9), place(STARTING, 8), place(STARTING, 9)], "rank 1 did not come to it"),
        ([place(STARTING, 9), NOWHERE, place(TRAINING, 0)], "rank 1 did not come to it"),
        ([place(STARTING, 9), place(STARTING, 3)], "ranks 1, 2 did not come to it"),
        ([place(STARTING, 9)] * 3, "all of them came to it, and the network between them carries nothing"),
    ],
)
def test_whoever_does_not_answer_is_named(places: list[Position], named: str) -> None:
    recorded: list[int] = []
    answers = AnswerDeadline(CPU, recorded.append, lambda: places, seconds=0.05)
    call = FirstCall("the first call over tp (ranks 0, 1, 2)", (0, 1, 2), 9, lambda: [Never()])
    with pytest.raises(
        RunFailure, match=r"the first call over tp \(ranks 0, 1, 2\) was not answered in 0.05 s"
    ) as failure:
        answers.connect([call])
    assert named in str(failure.value)
    assert recorded == [9]


def test_an_error_of_a_call_is_its_own() -> None:
    def fails() -> list[Any]:
        raise TimeoutError("the library's own limit")

    with pytest.raises(TimeoutError, match="the library's own limit"):
        AnswerDeadline(CPU).connect([FirstCall("a call", (0, 1), 1, fails)])
