"""Files of the fit: the constants, each entry without what it inherits, and beside them which rows informed an entry."""

import json
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from fit_table import Table, constants_of
from fourfold.cost.collectives import Links
from fourfold.cost.fitted import LINK_SHARE
from fourfold.cost.kernels import Kernels

ROOT = Path(__file__).parents[2]
FITTED = ROOT / "src" / "fourfold" / "cost" / "fitted.toml"
INFORMED = Path(__file__).parent / "fitted_on.json"
PRIOR = Path(__file__).parent / "prior_constants.toml"
HEAD = """\
# Constants fitted to measurements: of devices, links, software profiles; never of a row or a model.
# An entry states only what it does not inherit. A software profile is a family of trainers: it inherits from each name that its own
# begins with, word by word (maxtext-gpu from maxtext), that from default; a device from default. Written by
# benchmarks/published/fit_constants.py from prior_constants.toml beside it; fitted_on.json there says on which rows.

"""


def read(path: Path) -> Table:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def read_informed() -> Table:
    """Which rows informed every entry, as the last fit wrote it."""
    return json.loads(INFORMED.read_text(encoding="utf-8"))


def write(table: Table, informed: Table) -> None:
    FITTED.write_text(constants_text(table), encoding="utf-8")
    INFORMED.write_text(informed_text(informed), encoding="utf-8")


def constants_text(table: Table) -> str:
    """The table as `fitted.toml` holds it: rounded to three digits, without what is inherited, default first, then by name."""
    return HEAD + tomli_w.dumps(_ordered(departures(rounded(table))))


def informed_text(informed: Table) -> str:
    """One line an entry."""
    parts = []
    for part, entries in informed.items():
        lines = [f"    {json.dumps(owner)}: {json.dumps(entry)}" for owner, entry in entries.items()]
        parts.append(f"  {json.dumps(part)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def departures(table: Table) -> Table:
    """Constants, each entry without those that it would inherit. Every entry stays, so that its name stays known."""
    known = constants_of(table)
    return {
        "link": _departing(table["link"], {**vars(Links()), "share": LINK_SHARE}),
        "device": {
            name: _departing(entry, vars(Kernels() if name == "default" else known.device("default")))
            for name, entry in table["device"].items()
        },
        "software": {name: _departing(entry, known.inherited(name)) for name, entry in table["software"].items()},
    }


def _departing(entry: dict[str, Any], inherited: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in entry.items() if each != inherited[key]}


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return float(f"{value:.3g}") if isinstance(value, float) else value


def _ordered(table: Table) -> Table:
    def by_name(entries: dict[str, dict]) -> dict[str, dict]:
        names = sorted(entries, key=lambda name: (name != "default", name))
        return {name: dict(sorted(entries[name].items())) for name in names}

    return {
        "link": dict(sorted(table["link"].items())),
        "device": by_name(table["device"]),
        "software": by_name(table["software"]),
    }
