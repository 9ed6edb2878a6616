"""A machine has what this process may use of it: the lowest limit of its control groups, nested, of either version."""

from pathlib import Path

import pytest

from fourfold.launch import machine
from fourfold.launch.machine import cpu_limit, memory_limit


def process(tmp_path: Path, groups: str, mounts: list[tuple[str, str, str]]) -> Path:
    """A folder as /proc/self: `groups` its file `cgroup`; `mounts`: (top group, folder in `tmp_path`, `v2` or a controller)."""
    (tmp_path / "cgroup").write_text(groups)
    lines = ["23 1 0:21 / /proc rw,relatime - proc proc rw"]
    for root, folder, kind in mounts:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        place = str(tmp_path / folder).replace(" ", "\\040")
        version, options = ("cgroup2", "rw") if kind == "v2" else ("cgroup", f"rw,{kind}")
        lines.append(f"32 31 0:29 {root} {place} rw,relatime shared:9 - {version} cgroup {options}")
    (tmp_path / "mountinfo").write_text("\n".join(lines) + "\n")
    return tmp_path


def put(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_version_2_takes_the_lowest_of_nested_groups(tmp_path: Path) -> None:
    found = process(tmp_path, "0::/job.slice/step\n", [("/", "sys", "v2")])
    put(tmp_path / "sys/job.slice", memory__max="3000", cpu__max="150000 100000")
    put(tmp_path / "sys/job.slice/step", memory__max="max", cpu__max="max 100000")
    put(tmp_path / "sys/other", memory__max="1", cpu__max="1 100000")
    assert memory_limit(found) == 3000
    assert cpu_limit(found) == 1.5
    put(tmp_path / "sys/job.slice/step", memory__max="2000", cpu__max="50000 100000")
    assert (memory_limit(found), cpu_limit(found)) == (2000, 0.5)


def test_version_1_has_a_hierarchy_for_each_controller(tmp_path: Path) -> None:
    groups = "4:memory:/a/b\n2:cpu,cpuacct:/c\n1:name=systemd:/x\n0::/\n"
    mounts = [("/", "memory", "memory"), ("/", "cpu,cpuacct", "cpu,cpuacct"), ("/", "systemd", "name=systemd")]
    found = process(tmp_path, groups, mounts)
    assert (memory_limit(found), cpu_limit(found)) == (None, None)
    put(tmp_path / "memory/a/b", memory__limit_in_bytes="9223372036854771712")
    put(tmp_path / "memory/a", memory__limit_in_bytes="524288000")
    put(tmp_path / "cpu,cpuacct/c", cpu__cfs_quota_us="300000", cpu__cfs_period_us="100000")
    put(tmp_path / "cpu,cpuacct", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert (memory_limit(found), cpu_limit(found)) == (524288000, 3.0)


def test_a_container_sees_its_group_at_the_top(tmp_path: Path) -> None:
    (tmp_path / "with space").mkdir()
    found = process(tmp_path / "with space", "0::/docker/17/inner\n", [("/docker/17", "sys", "v2")])
    put(found / "sys", memory__max="4000")
    put(found / "sys/inner", memory__max="5000")
    assert memory_limit(found) == 4000


@pytest.mark.parametrize("path", ["/../../elsewhere", "/unmounted/group"])
def test_a_group_that_is_not_mounted_here_leaves_the_top(tmp_path: Path, path: str) -> None:
    found = process(tmp_path, f"0::{path}\n", [("/here", "sys", "v2")])
    put(tmp_path / "sys", memory__max="4000", cpu__max="200000 100000")
    assert (memory_limit(found), cpu_limit(found)) == (4000, 2.0)


@pytest.mark.parametrize("text", ["", "nonsense", "0::/\nx:y\n"])
def test_without_groups_there_is_no_limit(tmp_path: Path, text: str) -> None:
    found = process(tmp_path, text, [])
    assert (memory_limit(found), cpu_limit(found)) == (None, None)
    assert memory_limit(tmp_path / "none") is None


def test_the_machine_is_what_its_limits_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = machine.memory_bytes()
    assert memory is not None
    monkeypatch.setattr(machine, "cpu_limit", lambda: None)
    cores = machine.num_cores()
    for quota, expected in ((0.3, 1), (1.0, 1), (1.9, 1), (cores + 0.5, cores), (1000.0, cores)):
        monkeypatch.setattr(machine, "cpu_limit", lambda quota=quota: quota)
        assert machine.num_cores() == expected
    monkeypatch.setattr(machine, "memory_limit", lambda: 524288000)
    assert machine.memory_bytes() == 524288000
    monkeypatch.setattr(machine, "memory_limit", lambda: 1 << 62)
    assert (machine.memory_bytes() or 0) >= memory
