"""Data that a return leaves out: all that the run had come to since then, and nothing that it had left out comes back."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from fourfold.config.schema import SkippedData
from fourfold.data.skipped import (
    FILE,
    INTENT,
    begin_rollback,
    end_rollback,
    left_out_by,
    left_out_since,
    pending_rollback,
)

SIZE, STEPS = 3, 40


def read(skips: Sequence[SkippedData], first: int, behind: int) -> set[int]:
    """The samples of some steps of a run with one blend."""
    found: set[int] = set()
    for step in range(first, behind):
        begin = step * SIZE + sum(skip.sequences for skip in skips if skip.step <= step)
        found |= set(range(begin, begin + SIZE))
    return found


def passed_over(skips: Sequence[SkippedData], behind: int) -> set[int]:
    return set(range(max(read(skips, 0, behind), default=0))) - read(skips, 0, behind)


skips = st.lists(st.builds(SkippedData, step=st.integers(0, STEPS), sequences=st.integers(1, 9)), max_size=4)


@given(skips, skips, st.integers(1, STEPS - 2), st.integers(1, STEPS))
def test_nothing_that_the_run_had_come_to_since_is_read_again(before, stated, target: int, passed: int) -> None:
    step = min(STEPS, target + passed)
    old = [skip for skip in before if skip.step < step]
    now = left_out_since(target, step, 0, lambda step: step * SIZE, old, stated)
    again = read([*now, *stated], target, STEPS)
    assert not again & read([*old, *stated], target, step)
    assert not again & passed_over([*old, *stated], step)
    assert read([*now, *stated], 0, target) == read([*old, *stated], 0, target)
    if not stated:  # nothing else is lost
        assert min(again) == max(read(old, 0, step)) + 1


def test_across_a_border_each_side_leaves_out_its_own() -> None:
    before = [SkippedData(step=6, sequences=2), SkippedData(step=10, sequences=4), SkippedData(step=12, sequences=1)]
    found = left_out_since(8, 15, 10, lambda step: step * SIZE, before, [])
    assert [(each.step, each.sequences) for each in found] == [(6, 2), (8, 2 * SIZE), (10, 5 * SIZE + 4 + 1)]


def test_every_return_counts_however_far_it_goes(tmp_path) -> None:
    for number, target in enumerate((30, 20, 10), 1):
        now = left_out_since(target, target + 5, 0, lambda step: step * SIZE, left_out_by(tmp_path).skipped, [])
        begin_rollback(tmp_path, target, now)
        assert pending_rollback(tmp_path) == target
        end_rollback(tmp_path)
        assert left_out_by(tmp_path).rollbacks == number
    assert [skip.step for skip in left_out_by(tmp_path).skipped] == [10]
    assert (tmp_path / FILE).exists()
    assert not (tmp_path / INTENT).exists()
