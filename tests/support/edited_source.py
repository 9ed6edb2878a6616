"""Python that runs with one module's source edited: a test adds a line to a description, and sees where it appears."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_BEGIN = """
import importlib.util, json, sys

class Edited:
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, sys.argv[2]) if name == sys.argv[1] else None

sys.meta_path.insert(0, Edited())
"""


def asked_with(module: ModuleType, old: str, new: str, script: str, folder: Path, *arguments: str) -> Any:
    """The JSON that a script prints, run in a process of its own where `new` stands in place of the first `old` of the module's
    source. Its `sys.argv[3:]` are the arguments; `json` and `sys` are imported. Raises `AssertionError` where it fails."""
    source = Path(module.__file__ or "").read_text(encoding="utf-8")
    assert old in source, f"{module.__name__} has no {old!r}"
    edited = folder / "edited.py"
    edited.write_text(source.replace(old, new, 1), encoding="utf-8")
    words = [sys.executable, "-c", _BEGIN + script, module.__name__, edited, *arguments]
    asked = subprocess.run(words, capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr
    return json.loads(asked.stdout)
