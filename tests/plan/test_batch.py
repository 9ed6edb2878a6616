"""A batch stated in tokens becomes a number of sequences that layouts can divide."""

from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fourfold.config import UserError
from fourfold.plan.request import NEAR, batch_sequences


@pytest.mark.parametrize(
    ("tokens", "length", "devices", "found"),
    [
        (16e6, 8192, 24576, 2048),
        (16e6, 8192, 60, 1920),
        (2e6, 4096, 96, 480),
        (2e6, 4096, 1002, 501),
        (2e6, 4096, 64, 512),
        (4e6, 1000, 60, 4000),
        (62.9e6, 4096, 2048, 16384),
        (9000, 8192, 8, 1),
    ],
)
def test_the_number_is_a_round_one_that_the_devices_divide(
    tokens: float, length: int, devices: int, found: int
) -> None:
    assert batch_sequences(tokens, length, devices) == found


@given(st.floats(1, 1e9), st.integers(1, 10**6))
def test_it_is_near_and_no_worse_for_the_devices_than_twos_alone(exact: float, devices: int) -> None:
    found, plain = batch_sequences(exact * 512, 512, devices), batch_sequences(exact * 512, 512)
    assert abs(found - exact) <= max(NEAR * exact * (1 + 1e-9), 0.5)
    assert gcd(found, devices) >= gcd(plain, devices)


def test_less_than_a_sequence_is_refused() -> None:
    with pytest.raises(UserError, match="less than one sequence of 8192"):
        batch_sequences(8000, 8192)
