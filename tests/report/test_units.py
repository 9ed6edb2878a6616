"""Figures and names on screens: three digits, no powers of ten, the field's words."""

import pytest

from fourfold.report.units import format_figure, seconds_text, spelled_out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (8.0, "8.00 s"), (7.619, "7.62 s"), (19.01, "19.0 s"), (71, "71.0 s"), (100, "100 s"), (12345.6, "12346 s"),
        (0.033, "33.0 ms"), (0.9996, "1.00 s"), (63.21e-6, "63.2 us"), (0.0, "0 us"),
    ],
)  # fmt: skip
def test_seconds_have_three_digits(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (35464.2, "35,460"),
        (821.34, "821.3"),
        (13437, "13,440"),
        (0.51236, "0.5124"),
        (9458, "9,458"),
        (0, "0"),
        (4.6e9, "4,600,000,000"),
    ],
)
def test_figures_have_no_power_of_ten(value: float, text: str) -> None:
    assert format_figure(value) == text


def test_names_in_programs_are_words_on_screens() -> None:
    assert spelled_out("exposed tp+cp_ring communication") == "exposed tp+cp communication"
    assert spelled_out("to_host offload") == "copies to the host"
    assert spelled_out("from_host") == "from host"
