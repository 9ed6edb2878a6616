"""The keys of devices, levels and clusters are described once: files, types and rows of lists have those that stand there."""

from dataclasses import fields
from pathlib import Path

import pytest

from fourfold.config import UserError
from fourfold.explore.catalog_types import DeviceRow, LevelRow
from fourfold.hardware import Cluster, Device, Level, parse_device, types
from fourfold.hardware.schema import ClusterTable, DeviceTable, LevelTable
from tests.support.edited_source import asked_with

DEVICE = """
name = "A card"
source = "a test"
memory_bytes = 8e10
memory_bytes_per_second = 3e12
peak_flops_per_second = { bf16 = 9e14 }
"""
CLUSTER = """
name = "A machine"
source = "a test"
devices = 2
device = "h100-sxm"
[[levels]]
name = "link"
kind = "switch"
devices = 2
bytes_per_second = 1e9
latency_seconds = 1e-6
"""
ASK = """
from fourfold.config import UserError
from fourfold.explore.schema import json_schema
from fourfold.hardware import parse_cluster, parse_device
from fourfold.report.listing import rows

of, text = sys.argv[3:]
parse = parse_device if of == "Device" else lambda *file: parse_cluster(*file).levels[0]
try:
    parse(text + "trial = -1.0", "a.toml")
    message = ""
except UserError as error:
    message = str(error)
listed = rows("devices") if of == "Device" else [each for row in rows("clusters") for each in row["levels"]]
print(json.dumps({
    "values": [parse(text + line, "a.toml").trial for line in ("trial = 2.0", "")],
    "message": message,
    "listed": all("trial" in row for row in listed),
    "row": "trial" in json_schema("catalog")["$defs"][f"{of}Row"]["properties"],
}))
"""


@pytest.mark.parametrize(
    ("of", "text", "after"),
    [
        ("Device", DEVICE, '    power_watts: Annotated[Positive | None, Field(examples=["700"])] = None\n'),
        ("Level", CLUSTER, '    scalable: Annotated[bool, Field(examples=["true"])] = False\n'),
    ],
)
def test_a_key_that_is_described_appears_everywhere(of: str, text: str, after: str, tmp_path: Path) -> None:
    """In files, with its bounds, and in the rows that `fourfold list` prints and the page is promised."""
    found = asked_with(
        types,
        after,
        f"{after}    trial: Annotated[Positive | None, Field(examples=['3.0'])] = None\n",
        ASK,
        tmp_path,
        of,
        text,
    )
    bound = "trial = -1.0: input should be greater than or equal to 0.001; a value that works: 3.0"
    assert bound in found.pop("message")
    assert found == {"values": [2.0, None], "listed": True, "row": True}


def test_every_key_has_a_value_that_works() -> None:
    for table in (DeviceTable, LevelTable, ClusterTable):
        assert all(each.examples for each in table.model_fields.values())


@pytest.mark.parametrize("value", ['"fp8"', "8", '["fp9"]', "[8]"])
def test_recipes_that_are_none_get_one_message(value: str) -> None:
    with pytest.raises(UserError, match=r"gemm_recipes.*a value that works: \["):
        parse_device(f"{DEVICE}gemm_recipes = {value}", "a.toml")


def test_tables_and_rows_have_the_keys_that_are_described() -> None:
    assert {each.name for each in fields(Device)} == {*DeviceTable.model_fields, "key"}
    assert {each.name for each in fields(DeviceRow)} == {*DeviceTable.model_fields, "key", "description"}
    assert (
        {each.name for each in fields(Level)} == {*LevelTable.model_fields} == {each.name for each in fields(LevelRow)}
    )
    added = {"key", "device", "calibration", "full_levels"}
    assert {each.name for each in fields(Cluster)} == {*ClusterTable.model_fields, *added}
