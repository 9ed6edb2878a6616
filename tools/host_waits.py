"""Forbids code inside a step that makes the host wait for the device: `python -m tools.host_waits`.

It reads the source, so it finds a wait on a path that no rehearsal takes. The rehearsal finds those that it cannot see: a tensor's
truth, an index by mask.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "src" / "fourfold"
INSIDE = ("model/**/*.py", "kernels/**/*.py", "runtime/*.py", "train/feed.py")
"""Code that runs in a step."""
OUTSIDE = (
    "kernels/timed.py",
    "kernels/trials.py",
    "model/recorder/",
    "model/own/trace.py",
    "runtime/allocator.py",
    "runtime/clock.py",
    "runtime/first_calls.py",
    "runtime/initialize.py",
    "runtime/preflight.py",
    "runtime/progress.py",
    "runtime/tracker.py",
)
"""Code that lies there and does not."""
WAITS = {"item", "tolist", "cpu", "cuda", "numpy", "nonzero", "argwhere", "masked_select", "unique", "synchronize"}
MAKERS = {"tensor", "as_tensor", "asarray"}
"""Functions of torch that copy values to the device that `device=` names, and wait."""
ALLOWED = {
    ("runtime/corruption.py", "check_replays", "tolist"): "before the update, in the few steps that compute twice",
    ("runtime/corruption.py", "compare", "tolist"): "before the update, in the few steps that compare replicas",
    ("runtime/corruption.py", "_blame", "tolist"): "where replicas differ: the step is not finished",
    ("runtime/device.py", "read_back", "tolist"): "the one wait of a step, at its end",
    ("runtime/device.py", "to_device", "to"): "from pinned memory, without waiting",
    ("runtime/device_progress.py", "__init__", "numpy"): "a view of the host's own memory, once",
    ("runtime/executor.py", "_clip_norm", "item"): "on a processor alone, whose values are there",
    ("runtime/step_state.py", "skips", "item"): "on a processor alone, whose values are there",
    ("runtime/first_bad_tensor.py", "first_bad", "tolist"): "after a step that is skipped",
    ("model/tiled_attention.py", "on_device", "to"): "from pinned memory, without waiting",
    ("model/torch_operations.py", "host_counts", "tolist"): "a dispatcher must know how many rows each rank gets",
    ("model/torch_operations.py", "host_sizes", "tolist"): "where no grouped kernel multiplies experts' rows",
    ("model/rope_tables.py", "rope_tables", "to"): "before the first step",
}
"""(file, function, call): the reason."""


def main() -> int:
    found = [
        line for path in step_files() for line in waits(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
    ]
    print("\n".join(found) if found else "no wait of the host inside a step")
    return 1 if found else 0


def step_files() -> list[Path]:
    """The files whose code runs in a step."""
    files = (path for pattern in INSIDE for path in ROOT.glob(pattern))
    return sorted(path for path in files if not path.relative_to(ROOT).as_posix().startswith(OUTSIDE))


def waits(name: str, source: str) -> list[str]:
    """A line for each wait that `ALLOWED` has not. `name`: the file's, below the package."""
    return [
        f"src/fourfold/{name}:{call.lineno}: {what}() in {function} makes the host wait for the device; what works: keep the value "
        f"on the device, or read it with `read_back` at the step's end"
        for function, call, what in _calls(ast.parse(source), "")
        if (name, function, what) not in ALLOWED
    ]


def _calls(node: ast.AST, function: str) -> Iterator[tuple[str, ast.Call, str]]:
    """(function that it stands in, call, name of what it calls) of every call that waits."""
    for child in ast.iter_child_nodes(node):
        inner = child.name if isinstance(child, ast.FunctionDef) else function
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            what, keywords = child.func.attr, {keyword.arg for keyword in child.keywords}
            moves = what == "to" and ("device" in keywords or any(_names_device(each) for each in child.args))
            if what in WAITS or moves or (what in MAKERS and "device" in keywords):
                yield inner, child, what
        yield from _calls(child, inner)


def _names_device(node: ast.expr) -> bool:
    """Whether an argument is a device, by its name."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.strip("_") == "device"


if __name__ == "__main__":
    sys.exit(main())
