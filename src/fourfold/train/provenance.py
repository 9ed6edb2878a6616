"""The provenance of a run's state: the code that its ranks run, its data, and the runs from which it branched.

A run of months outlives the code that began it. Steps of other code are never computed unseen: a launch refuses it unless it is
allowed, ranks that are started again look whether the code is still what the launch began with, and every change is an event.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fourfold.config import FinalFailure
from fourfold.config.json_lines import newest_first
from fourfold.config.own_code import OwnCode, code_in, own_code
from fourfold.train.metrics import EVENTS, append_event

ALLOWED = "allow_other_code"
"""The key of `data.json` by which a launch lets its ranks run other code than it began with."""
CODE = "FOURFOLD_CODE"
"""The variable with the digest of the code that a launch began with."""
_DATA = ("corpus_id", "tokens", "data_fingerprints")
MOST_LINEAGE = 64


def require_same_code(table: Mapping[str, Any]) -> None:
    """Raises `FinalFailure` where the package's files are not those that this launch began with. `table`: the run's `data.json`."""
    begun, own = os.environ.get(CODE, ""), own_code()
    if table.get(ALLOWED) or not own.differs(OwnCode(own.version, begun)):
        return
    raise FinalFailure(
        f"the code of fourfold changed while this run went on: the launch began with code {begun[:12]}, and {own} is there now; "
        f"its ranks are not started again, so that no step is computed by other code unseen; what works: the same command with "
        f"--allow-other-code, or that code again and the same command"
    )


def provenance(table: Mapping[str, Any], lineage: list[dict[str, Any]]) -> dict[str, Any]:
    """The values that a checkpoint's `info` has of where it comes from, beside config and versions: the digest of the code, the
    fingerprints of the data as `data.json` has them, and the runs before this one, each with the step at which it was left."""
    data = {key: table[key] for key in _DATA if key in table}
    return {"code": own_code().digest, "data": data, "lineage": lineage}


def lineage_from(info: Mapping[str, Any], run: str, path: Path) -> list[dict[str, Any]]:
    """The lineage of run `run` that goes on from a checkpoint with this `info` at `path`: where another run saved it, that run is
    the last of it."""
    stated = info.get("lineage")
    before = [dict(each) for each in stated if isinstance(each, Mapping)] if isinstance(stated, list) else []
    saved_by = info.get("run")
    if isinstance(saved_by, str) and saved_by and saved_by != run:
        before.append(
            {"run": saved_by, "step": info.get("step"), "code": code_in(info).digest, "checkpoint": str(path)}
        )
    return before[-MOST_LINEAGE:]


def tell_origin(out: Path, info: Mapping[str, Any], lineage: list[dict[str, Any]], run: str) -> None:
    """Adds to the run's events, once a launch, that it goes on under other code, and once a run, that it branched from another."""
    was, own, step = code_in(info), own_code(), info.get("step")
    if own.differs(was):
        _tell_once(
            out,
            "launch",
            "code",
            step=step,
            message=f"{own}; what was saved is of {was}",
            before=was.digest,
            now=own.digest,
        )
    if lineage and info.get("run") not in (None, run):
        last = lineage[-1]
        _tell_once(out, "", "branch", step=step, message=f"run {last['run']} at {last['checkpoint']}")


def _tell_once(out: Path, since: str, name: str, **values: Any) -> None:
    for row in newest_first(out / EVENTS):
        if row.get("event") == name and row.get("message") == values["message"]:
            return
        if row.get("event") == since:
            break
    append_event(out, name, **values)
