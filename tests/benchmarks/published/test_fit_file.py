"""The files of the fit: what is written reads back as it was, without what is inherited; every entry has its rows."""

from dataclasses import asdict
from pathlib import Path

import pytest

from fit_file import (
    FITTED,
    INFORMED,
    PRIOR,
    constants_text,
    departures,
    informed_text,
    read,
    read_informed,
    rounded,
)
from fit_table import Table, constants_of, copied, put
from fourfold.hardware import device_names

SHIPPED = read(FITTED)


def resolved(table: Table) -> dict[str, dict]:
    """Constants that a table gives of names that it lists and of others."""
    constants = constants_of(table)
    unlisted = ("unknown", "megatron-fork-2024", "nemo-2019", "nemo-2026.03", "nemo-2031", "torchtitan-rocm-2025")
    return {
        "software": {name: asdict(constants.software(name)) for name in (*SHIPPED["software"], *unlisted)},
        "device": {name: asdict(constants.device(name)) for name in device_names()},
        "link": asdict(constants.link_constants) | {"share": constants.link_share},
    }


def in_full(table: Table) -> Table:
    """Every entry with all of its constants, inherited or not."""
    constants, full = constants_of(table), copied(table)
    for name in full["software"]:
        full["software"][name] = {key: each for key, each in constants.entry(name).items() if each is not None}
    for name in full["device"]:
        full["device"][name] = {key: getattr(constants.device(name), key) for key in ("low_share", "gemm_share")} | {
            **full["device"][name]
        }
    return full


def test_what_ships_is_what_the_fit_writes() -> None:
    assert constants_text(SHIPPED) == FITTED.read_text(encoding="utf-8")
    informed = read_informed()
    assert informed_text(informed) == INFORMED.read_text(encoding="utf-8")


@pytest.mark.parametrize("table", [SHIPPED, rounded(read(PRIOR))], ids=["shipped", "prior"])
def test_what_is_inherited_is_not_written_and_reads_back_the_same(table: Table, tmp_path: Path) -> None:
    full = in_full(table)
    assert full != table
    (tmp_path / "fitted.toml").write_text(constants_text(full), encoding="utf-8")
    written = read(tmp_path / "fitted.toml")
    assert written == departures(table)
    assert resolved(written) == resolved(table)
    assert constants_text(written) == constants_text(full)


def test_a_year_that_gets_an_entry_does_what_it_did_before() -> None:
    """Only the constant that is set departs, and words and switches that were the nearest year's."""
    table = copied(SHIPPED)
    table["software"]["nemo-2026"] = {"dispatcher": "deepep", "fused_experts": True}
    before = constants_of(table).entry("nemo-2031")
    put(table, "software", "nemo-2031", "fused", 0.9)
    assert constants_of(table).entry("nemo-2031") == {**before, "fused": 0.9}
    assert set(departures(table)["software"]["nemo-2031"]) == {"fused", "dispatcher", "fused_experts"}


def test_every_entry_says_its_rows() -> None:
    informed = read_informed()
    for part in ("device", "software"):
        assert set(informed[part]) == set(SHIPPED[part])
    for entry in (informed["link"], *informed["device"].values(), *informed["software"].values()):
        assert entry["rows"] >= 0
        assert bool(entry["files"]) == bool(entry["rows"])
