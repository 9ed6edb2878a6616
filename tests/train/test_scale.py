"""A rank asks the store for as much, and holds as much, however many ranks there are."""

import pytest

from tests.support.lone_ranks import BARRIERS, COPIES, REAL, SAVES, measured

SIZES = (16, 64, 256, 1024, 4096, 16_384)


@pytest.fixture(scope="module")
def found() -> dict[int, dict]:
    return {size: measured(size) for size in SIZES}


def test_requests_sockets_and_threads_of_a_rank_do_not_grow_with_the_number_of_ranks(found: dict[int, dict]) -> None:
    least = found[SIZES[0]]
    assert least["ranks"] == [{"sockets": 3, "threads": 4}] * len(REAL), (
        "the store's, those of the group with the peer, and their threads"
    )
    for size in SIZES[1:]:
        assert found[size]["ranks"] == least["ranks"], size
        assert found[size]["requests"] == least["requests"], size
    asked = sum(least["requests"].values()) / len(REAL)
    barriers = SAVES * BARRIERS + COPIES
    assert asked <= 4 * barriers, (
        "two requests a barrier, three more of the rank that comes last, and some at the start"
    )


def test_the_store_keeps_a_few_keys_and_all_of_them_are_this_generations(found: dict[int, dict]) -> None:
    for size in SIZES:
        assert len(found[size]["keys"]) <= 8, found[size]["keys"]
        assert {key.partition("/")[0] for key in found[size]["keys"]} == {"generation 0"}
