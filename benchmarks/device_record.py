"""Results of the parts of `device.sh`: lines for people, and the same as figures in one file that outlives a part that is cut off.

A part prints and records a figure the moment it has it. `device_all.py` names the file in FIGURES; without it, figures are printed
alone.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

FIGURES = "FIGURES"


def figure(name: str, text: str, **values: Any) -> None:
    """Prints the text; records it with its values. A name stands for one figure: the latest counts."""
    print(text, flush=True)
    _append({"name": name, "text": text, **values})


def unmeasured(what: str, why: str) -> None:
    """Says what was not measured, and why."""
    print(f"unmeasured: {what}: {why}", flush=True)
    _append({"name": what, "unmeasured": why})


@cache
def known() -> frozenset[str]:
    """Names of the figures that earlier calls on this tree and machine have measured."""
    return frozenset(each["name"] for each in read_figures(figures_file()) if "unmeasured" not in each)


def figures_file() -> Path | None:
    named = os.environ.get(FIGURES)
    return Path(named) if named else None


def read_figures(path: Path | None) -> list[dict[str, Any]]:
    """All records of a file, a broken last line left out: its writer was cut off."""
    found = []
    for line in path.read_text().splitlines() if path is not None and path.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _append(record: dict[str, Any]) -> None:
    path = figures_file()
    if path is not None:
        with open(path, "a") as file:
            file.write(json.dumps(record) + "\n")
