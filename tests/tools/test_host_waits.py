"""The lint that forbids waits inside a step: the tree has none, and each kind is found where it is put."""

import pytest

from tools.host_waits import ALLOWED, ROOT, step_files, waits

EXECUTOR = "runtime/executor.py"


def test_the_tree_has_none() -> None:
    files = step_files()
    assert {"runtime/executor.py", "model/block.py", "model/experts/dispatch.py", "train/feed.py"} <= {
        path.relative_to(ROOT).as_posix() for path in files
    }
    assert not [line for path in files for line in waits(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))]


@pytest.mark.parametrize(
    "line",
    [
        "norm = total.sqrt().item()",
        "sizes = counts.tolist()",
        "host = x.cpu()",
        "rows = mask.nonzero()",
        "step = torch.tensor(1.0, device=self._device)",
        "x = torch.from_numpy(a).to(device)",
        "x = torch.from_numpy(a).to(self._device)",
        "x = a.to(device=x.device)",
        "torch.cuda.synchronize()",
    ],
)
def test_a_wait_is_found(line: str) -> None:
    source = f"def forward(x):\n    {line}\n"
    (found,) = waits(EXECUTOR, source)
    assert found.startswith(f"src/fourfold/{EXECUTOR}:2: ")
    assert "in forward" in found


@pytest.mark.parametrize("line", ["y = x.to(torch.float32)", "y = torch.tensor(1.0)", "y = x.to(other.dtype)"])
def test_other_calls_are_none(line: str) -> None:
    assert waits(EXECUTOR, f"def forward(x):\n    {line}\n") == []


def test_every_exception_is_used() -> None:
    for name, function, what in ALLOWED:
        source = (ROOT / name).read_text("utf-8")
        assert f"def {function}(" in source
        assert f".{what}(" in source
