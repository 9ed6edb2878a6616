"""Every mistake in a device or cluster file gives one message that names the file and the key, and offers what works."""

import contextlib
import copy
import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import UserError
from fourfold.hardware import load_cluster, load_device, parse_cluster
from fourfold.hardware.schema import ClusterTable, DeviceTable, LevelTable

NODE: dict[str, Any] = {
    "name": "nvlink",
    "kind": "switch",
    "devices": 8,
    "bytes_per_second": 450e9,
    "latency_seconds": 2e-6,
}
LEAF: dict[str, Any] = {
    "name": "leaf",
    "kind": "switch",
    "devices": 64,
    "bytes_per_second": 50e9,
    "latency_seconds": 4e-6,
}
DEVICE: dict[str, Any] = {
    "name": "Mine",
    "source": "measured",
    "memory_bytes": 16e9,
    "memory_bytes_per_second": 20e9,
    "peak_flops_per_second": {"fp32": 1e11},
}
EXAMPLES = {"dimensions": "[16, 16]", "bytes_per_second": "450e9", "levels": "a table [[levels]]"}
CLUSTER: dict[str, Any] = {
    "name": "Mine",
    "source": "datasheets",
    "device": "h100-sxm",
    "devices": 64,
    "levels": [NODE, LEAF],
}


def _with(path: list[Any], value: Any, base: dict[str, Any] = CLUSTER) -> dict[str, Any]:
    """A copy with the value at `path` replaced; `...`: removed."""
    table = copy.deepcopy(base)
    target: Any = table
    for part in path[:-1]:
        target = target[part]
    if value is ...:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return table


def _message(table: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        parse_cluster(tomli_w.dumps(table), "mine.toml")
    message = str(caught.value)
    assert message.startswith("mine.toml: ")
    assert "\n" not in message, "one mistake gives one line"
    assert "pydantic" not in message
    assert len(message) < 600
    return message


def test_the_file_that_the_mistakes_are_made_in_is_good() -> None:
    cluster = parse_cluster(tomli_w.dumps(CLUSTER), "mine.toml")
    assert cluster.key == "mine"
    assert cluster.dollars_per_device_hour is None
    assert cluster.calibration == {}


@pytest.mark.parametrize(
    "path",
    [["name"], ["source"], ["device"], ["devices"], ["levels"], *[["levels", 1, key] for key in NODE]],
)
def test_a_missing_key_is_named_with_an_example(path: list[Any]) -> None:
    message = _message(_with(path, ...))
    assert f"key '{_dotted(path)}' is missing" in message
    assert "for example" in message


def _dotted(path: list[Any]) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).removeprefix(".")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["name"], 3),
        (["name"], ""),
        (["name"], "a\u001b[31mred"),
        (["source"], "x" * 5000),
        (["devices"], "64"),
        (["devices"], True),
        (["devices"], 64.5),
        (["devices"], 0),
        (["devices"], -64),
        (["devices"], 10**7),
        (["devices"], 10**40),
        (["devices"], float("inf")),
        (["levels"], []),
        (["levels"], "nvlink"),
        (["levels"], [NODE] * 9),
        (["levels", 0, "name"], "n" * 41),
        (["levels", 0, "kind"], "ring"),
        (["levels", 0, "devices"], -8),
        (["levels", 0, "bytes_per_second"], "450e9"),
        (["levels", 0, "bytes_per_second"], -450e9),
        (["levels", 0, "bytes_per_second"], 0),
        (["levels", 0, "bytes_per_second"], float("nan")),
        (["levels", 0, "bytes_per_second"], float("inf")),
        (["levels", 0, "bytes_per_second"], 1e300),
        (["levels", 0, "latency_seconds"], float("nan")),
        (["levels", 0, "latency_seconds"], -1e-6),
        (["levels", 0, "latency_seconds"], 11.0),
        (["levels", 0, "dimensions"], [2, 2, 2, 1, 1]),
        (["levels", 0, "dimensions"], [8, 0]),
        (["levels", 1, "scalable"], "yes"),
        (["dollars_per_device_hour"], float("nan")),
        (["dollars_per_device_hour"], -2.0),
        (["mean_hours_between_failures_per_device"], 0),
        (["watts_per_device"], "700 W"),
        (["host_memory_bytes_per_device"], -1),
    ],
)
def test_a_wrong_value_is_named_with_one_that_works(path: list[Any], value: Any) -> None:
    message = _message(_with(path, value))
    assert re.match(rf"mine\.toml: {re.escape(_dotted(path))}(\[\d\])? = ", message), message
    assert f"; a value that works: {EXAMPLES.get(path[-1], '')}" in message


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["levels", 1, "devices"], 60, ["levels[1].devices = 60", "multiple of the 8", "works: 64"]),
        (["levels", 1, "devices"], 8, ["levels[1].devices = 8", "more than it", "works: 16"]),
        (["levels", 1, "devices"], 32, ["64 devices", "'leaf' joins 32", "not scalable", "up to 32"]),
        (["devices"], 12, ["12 devices", "multiple of the 8", "8 or 16"]),
        (["levels", 0, "scalable"], True, ["levels[0].scalable", "outermost", "works: false"]),
        (["levels", 1, "kind"], "torus", ["levels[1].kind", "innermost", 'works: "switch"']),
        (["levels", 0, "kind"], "torus", ["levels[0].dimensions is missing", "[8]"]),
        (["levels", 0, "dimensions"], [2, 4], ["levels[0].dimensions", "switch has none"]),
        (["levels", 0, "part_multiple"], 3, ["levels[0].part_multiple = 3", "divisor", "8"]),
        (["levels", 1, "part_multiple"], 8, ["levels[1].part_multiple", "innermost"]),
        (["device"], "h100", ["device = 'h100'", "did you mean 'h100-", "[device]"]),
        (["device"], "../../secret.toml", ["device = ", "allowed: a table [device]"]),
        (["device"], 3, ["device = 3", "allowed: a table [device]"]),
        (["speed"], 3, ["unknown key 'speed'", "allowed: ", "calibration", "device"]),
        (["device_count"], 3, ["unknown key 'device_count'", "did you mean 'device"]),
        (["levels", 0, "bandwidth"], 3, ["unknown key 'levels[0].bandwidth'"]),
        (["levels", 0, "latency"], 3, ["unknown key 'levels[0].latency'", "'latency_seconds'"]),
    ],
)
def test_what_keys_say_of_each_other(path: list[Any], value: Any, words: list[str]) -> None:
    message = _message(_with(path, value))
    assert all(word in message for word in words), message


def test_a_torus_has_the_devices_of_its_shape() -> None:
    torus = {**NODE, "kind": "torus", "dimensions": [4, 4]}
    assert "product should be the level's devices = 8" in _message(_with(["levels", 0], torus))
    scalable = {**torus, "devices": 16, "scalable": True}
    assert "not for a torus" in _message({**CLUSTER, "devices": 16, "levels": [scalable]})


def test_the_examples_of_the_documentation_are_good() -> None:
    page = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text(encoding="utf-8")
    cluster, device = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    lab = parse_cluster(cluster, "lab.toml")
    assert (lab.devices, [t.kind for t in lab.levels]) == (64, ["switch", "shared", "switch"])
    own = parse_cluster(cluster.replace('device = "h100-pcie"\n', "") + device, "lab.toml")
    assert own.device.memory_bytes == 48 * 2**30
    keys = {*LevelTable.model_fields, *ClusterTable.model_fields, *DeviceTable.model_fields, "calibration", "device"}
    assert all(f"`{key}`" in page or f"`[{key}]`" in page or f"`[[{key}]]`" in page for key in keys)


def test_a_device_of_ones_own() -> None:
    cluster = parse_cluster(tomli_w.dumps({**CLUSTER, "device": DEVICE}), "mine.toml")
    assert cluster.device.key == "mine"
    assert cluster.device.memory_bytes == 16_000_000_000
    assert cluster.device.peak("bf16") == 1e11
    assert cluster.device.units is None


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["memory_bytes"], ..., ["key 'memory_bytes' is missing"]),
        (["memory_bytes"], 80, ["memory_bytes = 80", "works: 85_899_345_920"]),
        (["memory_bytes"], 1e300, ["memory_bytes = 1e+300"]),
        (["memory_bytes_per_second"], float("nan"), ["memory_bytes_per_second = nan", "works: 3.35e12"]),
        (["peak_flops_per_second"], {}, ["peak_flops_per_second = {}", "works: { bf16 = 989e12 }"]),
        (["peak_flops_per_second"], {"bf16": -1.0}, ["peak_flops_per_second.bf16 = -1.0", "works: 989e12"]),
        (["peak_flops_per_second"], {"int8": 1e12}, ["peak_flops_per_second.int8", "fp64, fp32", "bf16 = 989e12"]),
        (["units"], 0, ["units = 0", "works: 132"]),
        (["power_watts"], "700", ["power_watts = '700'", "works: 700"]),
        (["memory"], 1, ["unknown key 'memory'", "memory_bytes"]),
    ],
)
def test_a_mistake_in_a_device(path: list[Any], value: Any, words: list[str], tmp_path: Path) -> None:
    table = _with(path, value, DEVICE)
    message = _message({**CLUSTER, "device": table})
    assert message.startswith("mine.toml: [device]: ")
    assert all(word in message for word in words), message
    file = tmp_path / "chip.toml"
    file.write_text(tomli_w.dumps(table))
    with pytest.raises(UserError, match=re.escape(str(file))):
        load_device(str(file))


def test_a_calibration_is_kept_as_it_is() -> None:
    calibration = {"launch_seconds": 1e-5, "matmul": {"fp32": [[64, 64, 64, 1.5e-6], [128, 128, 128, 2]]}}
    text = tomli_w.dumps({**CLUSTER, "calibration": calibration})
    assert parse_cluster(text, "mine.toml").calibration == calibration
    long = [i + 0.5 for i in range(1000)]
    assert parse_cluster(f"{text}\n[calibration.copy]\nseconds = {long}\n", "m.toml").calibration["copy"] == {
        "seconds": long
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("calibration = 3", ["calibration = 3", "a table"]),
        ('calibration.a.b = "text"', ["calibration.a.b = 'text'", "finite number"]),
        ("calibration.a = [1, true]", ["calibration.a[1] = True"]),
        ("calibration.a = [nan]", ["calibration.a[0] = nan", "for example 1.5e-6"]),
        ("calibration.a = 2024-05-01", ["calibration.a = datetime"]),
        ("calibration.a = 1" + "0" * 5000, ["not valid TOML"]),
        ("calibration.a = 1" + "0" * 400, ["calibration.a = a number of more than 30 digits"]),
        ("calibration.a = " + "[" * 20 + "]" * 20, ["more than 8 levels"]),
        ("calibration.a = [" + "0," * 100_001 + "]", ["more than 100000 values"]),
    ],
)
def test_a_calibration_is_numbers_and_bounded(line: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        parse_cluster(f"{line}\n{tomli_w.dumps(CLUSTER)}", "mine.toml")
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"name = ", "not valid TOML"),
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "UTF-8"),
        (b"\x00" * 100, "not valid TOML"),
        (b"", "key 'name' is missing"),
        (b"a = " + b"[" * 100_000, "not valid TOML"),
        (b"a." * 100_000 + b"b = 1", "line 1: more than 50 dots"),
        (b"[0" + b" . 0" * 100_000 + b"]", "line 1: more than 50 dots"),
        (b"# " + b"x" * (5 * 2**20), "larger than 2097152 bytes"),
    ],
)
def test_a_file_that_is_no_cluster(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(data)
    for load in (load_cluster, load_device):
        with pytest.raises(UserError) as caught:
            load(str(path))
        assert str(caught.value).startswith(f"{path}: ")
        assert words in str(caught.value)


def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_cluster(str(tmp_path / "none.toml"))
    (tmp_path / "dir.toml").mkdir()
    with pytest.raises(UserError, match="not a file"):
        load_cluster(str(tmp_path / "dir.toml"))
    (tmp_path / "near.toml").write_text("")
    with pytest.raises(UserError, match=r"there is .*near\.toml"):
        load_device(str(tmp_path / "neer.toml"))
    with pytest.raises(UserError):
        load_cluster(str(tmp_path / "nul\x00.toml"))


_VALUES = st.recursive(
    st.none().map(lambda _: "x") | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*CLUSTER, *NODE, "z"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from([[k] for k in CLUSTER] + [["levels", i, k] for i in (0, 1) for k in NODE]), value=_VALUES)
def test_whatever_a_file_holds_it_is_a_cluster_or_a_user_error(path: list[Any], value: Any) -> None:
    try:
        text = tomli_w.dumps(_with(path, value))
    except (ValueError, TypeError, UnicodeEncodeError):
        return
    with contextlib.suppress(UserError):
        cluster = parse_cluster(text, "mine.toml")
        assert cluster.levels[-1].devices == cluster.devices
