"""The ranks that tests share answer the call that was made, whatever became of the one before."""

import pytest

from tests.support import ranks


class _TimeIsUp(BaseException):
    """The end of a test at its time limit, which is no `Exception`."""


def answer(rank: int, value: int) -> int:
    return value


def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object, **options: object) -> None:
        raise _TimeIsUp

    assert ranks.run_on_ranks(2, answer, value=1) == [1, 1]
    with monkeypatch.context() as patch:
        patch.setattr(ranks, "wait", interrupted)
        with pytest.raises(_TimeIsUp):
            ranks.run_on_ranks(2, answer, value=2)
    assert ranks.run_on_ranks(2, answer, value=3) == [3, 3]
