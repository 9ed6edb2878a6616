"""Checkpoints that stay: the latest always, some for good, never more than there may be."""

from hypothesis import given
from hypothesis import strategies as st

from fourfold.checkpoint.folders import Retention, most_of, stages_end

STEPS = list(range(10, 130, 10))


def left(retention: Retention, saved: list[int]) -> list[int]:
    """The checkpoints that stay while they are saved one after the other."""
    found: list[int] = []
    for step in saved:
        found.append(step)
        found = [each for each in found if each not in retention.to_delete(found)]
    return found


def test_the_latest_stay_and_multiples_and_ends_of_stages_for_good() -> None:
    assert left(Retention(2), STEPS) == [110, 120]
    assert left(Retention(2, every=40), STEPS) == [40, 80, 110, 120]
    assert left(Retention(1, steps=stages_end([50, 70, 120], True)), STEPS) == [50, 70, 120]
    assert left(Retention(1, steps=stages_end([50, 70, 120], False)), STEPS) == [120]


def test_the_best_stays_until_there_is_a_better_one() -> None:
    assert left(Retention(2, best=30), STEPS) == [30, 110, 120]
    assert Retention(1, best=40).to_delete([30, 40, 50]) == [30]


def test_the_oldest_that_is_kept_for_good_goes_where_there_are_too_many() -> None:
    assert left(Retention(2, every=20, most=4), STEPS) == [80, 100, 110, 120]
    assert left(Retention(2, every=20, best=30, most=4), STEPS) == [30, 100, 110, 120]
    assert left(Retention(3, most=1), STEPS) == [100, 110, 120]
    assert (most_of(None, 5), most_of(12, 5), most_of(3, 5)) == (None, 2, 1)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=25, unique=True).map(sorted),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(1, 9)),
    st.one_of(st.none(), st.integers(1, 60)),
    st.one_of(st.none(), st.integers(1, 8)),
)
def test_the_latest_and_the_best_are_never_deleted_and_the_number_is_bounded(saved, newest, every, best, most) -> None:
    retention = Retention(newest, every, best=best, most=most)
    goes = set(retention.to_delete(saved))
    assert not goes & {*saved[-newest:], best}
    if most is not None:
        assert len(saved) - len(goes) <= max(most, len({*saved[-newest:], *([best] if best in saved else [])}))
