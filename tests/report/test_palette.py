"""The palette can be told apart by people who see two primaries, and its graphics from the ground."""

import itertools
import re
from pathlib import Path

import pytest

from fourfold.program import Op
from fourfold.program.capabilities import BUFFERS
from fourfold.program.muon.rows import MuonOp
from fourfold.report.palette import (
    AXES,
    INK,
    LATER_STAGES,
    LINE,
    MEMORY,
    OPERATIONS,
    PALETTE,
    SOFT,
    SURFACE,
    TIME,
    Colour,
)
from tests.support.opcodes import ALL_TO_ALLS, COMPUTE_OPS

GROUNDS = {"light": "#ffffff", "dark": "#161d24"}
"""The ground of the page's cards."""
DEFICIENCIES = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""Machado, Oliveira and Fernandes 2009, table 1, severity 1: on linear RGB."""
LEAST_DIFFERENCE = 9.0
"""CIE 1976 difference of neighbours; 2.3 is just noticeable."""


def linear(colour: str) -> tuple[float, ...]:
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return tuple(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)


def luminance(colour: str) -> float:
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: tuple[float, ...]) -> tuple[float, float, float]:
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = (sum(a * max(0.0, b) for a, b in zip(row, rgb, strict=True)) for row in rows)
    x, y, z = (
        (v / white) ** (1 / 3) if v / white > 0.008856 else 7.787 * v / white + 16 / 116
        for v, white in zip(xyz, (0.9505, 1.0, 1.089), strict=True)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def difference(one: str, other: str, matrix: tuple[tuple[float, ...], ...]) -> float:
    seen = (
        lab(tuple(sum(a * b for a, b in zip(row, linear(colour), strict=True)) for row in matrix))
        for colour in (one, other)
    )
    return sum((a - b) ** 2 for a, b in zip(*seen, strict=True)) ** 0.5


@pytest.mark.parametrize("ground", GROUNDS)
@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_colours_that_stand_together_differ(ground: str, deficiency: str) -> None:
    together: list[dict[str, Colour]] = [AXES, {**TIME, **AXES}, MEMORY, OPERATIONS]
    close = {
        (one, other): round(found, 1)
        for colours in together
        for one, other in itertools.combinations(colours, 2)
        if (
            found := difference(
                getattr(colours[one], ground), getattr(colours[other], ground), DEFICIENCIES[deficiency]
            )
        )
        < LEAST_DIFFERENCE
    }
    assert close == {}


@pytest.mark.parametrize("ground", GROUNDS)
def test_colours_stand_out_from_the_ground(ground: str) -> None:
    """3 to 1, as WCAG 1.4.11 asks of graphics, but for what is meant to recede and has a hatch or a neighbour's edge."""
    receding = (
        {"idle", "optimizer", "ep", "temporary", "cp"} if ground == "light" else {"idle", "software", "parameters"}
    )
    faint = {
        key: round(contrast(getattr(each, ground), GROUNDS[ground]), 2)
        for colours in PALETTE.values()
        for key, each in colours.items()
        if key not in receding and contrast(getattr(each, ground), GROUNDS[ground]) < 3
    }
    assert faint == {}


def test_no_kind_of_a_document_has_two_colours() -> None:
    for colours in PALETTE.values():
        kinds = [kind for colour in colours.values() for kind in colour.kinds]
        assert len(kinds) == len(set(kinds))


OWN = {"app.css": "the page's ground and tokens"}
"""Files with colours of their own, and what they colour."""


def test_no_second_palette_remains() -> None:
    """Every colour in the sources, but for those of tests, is one of the palette's. Black and white serve as ink on colours."""
    known = {shade for table in PALETTE.values() for colour in table.values() for shade in (colour.light, colour.dark)}
    known |= {shade for colour in (INK, SOFT, LINE, SURFACE) for shade in (colour.light, colour.dark)}
    known |= {*LATER_STAGES.values(), "#ffffff", "#000000", "#0b1118"}
    root = Path(__file__).parents[2]
    sources = [*(root / "src/fourfold").glob("*/*.*"), *(root / "src/fourfold/explore/page/src").rglob("*.*"),
               *(root / "src/fourfold/explore/page/public").glob("*.svg"), *(root / "benchmarks").rglob("*.py")]  # fmt: skip
    for path in sources:
        of_a_test = path.name.endswith(".test.ts")
        if path.suffix not in {".py", ".css", ".svelte", ".ts", ".svg"} or path.name in OWN or of_a_test:
            continue
        found = set(re.findall(r"#[0-9a-f]{6}\b", path.read_text(encoding="utf-8"), re.IGNORECASE))
        assert found <= known, f"{path}: {found - known}"


def test_the_page_s_tokens_are_those_of_the_pictures() -> None:
    text = (Path(__file__).parents[2] / "src/fourfold/explore/page/src/app.css").read_text(encoding="utf-8")
    light, dark = text.split('[data-theme="dark"]')
    for colour in (INK, SOFT, LINE, SURFACE):
        assert f"--{colour.name}: {colour.light};" in light
        assert f"--{colour.name}: {colour.dark};" in dark


def test_every_buffer_and_every_computation_has_a_colour() -> None:
    assert {"units", "workspace", "software", *BUFFERS} == {kind for colour in MEMORY.values() for kind in colour.kinds}
    letters = {kind for colour in OPERATIONS.values() for kind in colour.kinds}
    computing = COMPUTE_OPS - ALL_TO_ALLS - {Op.REPLAY} | {MuonOp.MOMENTUM, MuonOp.ORTHOGONALIZE, Op.UPDATE}
    assert letters == {op.value for op in computing}
