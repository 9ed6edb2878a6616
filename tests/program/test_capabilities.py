"""A capability is one room: the core asks the two lists, and nothing else in programs and their interpreter names a room."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fourfold
from fourfold.program.capabilities import BUFFERS, CAPABILITIES, OPCODES
from fourfold.program.ops import Op
from fourfold.runtime.capabilities import HANDLERS

ROOT = Path(fourfold.__file__).parent
ROOMS = {each.name for each in CAPABILITIES}
HUBS = {"program/capabilities.py", "runtime/capabilities.py"}
SHARED = {
    ("runtime/executor.py", "offload"): "the device's link to its host, of which it is given one",
    ("runtime/step_state.py", "offload"): "the device's link to its host, which handlers start copies on",
    ("runtime/units.py", "offload"): "the pinned memory that states lie in between steps",
    ("runtime/units.py", "narrow"): "the formats that a shard's states are stored in",
    ("runtime/optimizer.py", "narrow"): "how each part of a shard is loaded and stored",
    ("runtime/muon.py", "narrow"): "how the momentum and the weights of matrices are loaded and stored",
    ("program/narrow/steps.py", "muon"): "the momentum of matrices is a state that is rounded too",
    ("program/narrow/declared.py", "muon"): "the momentum of matrices is a state that is rounded too",
    ("program/sampling/steps.py", "narrow"): "weights in halves are joined before they are measured",
    ("program/sampling/declared.py", "narrow"): "weights in halves are joined before they are measured",
}
"""Modules of a room that others of the package use, and why."""


def _rooms_named(path: Path) -> Iterator[str]:
    """Rooms whose modules a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for module in modules:
            names = module.split(".")
            if names[:1] == ["fourfold"] and names[1:2] in (["program"], ["runtime"]) and names[2:3]:
                yield from ROOMS & {names[2]}


@pytest.mark.parametrize("package", ["program", "runtime"])
def test_the_core_names_no_room(package: str) -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), room)
        for path in (ROOT / package).rglob("*.py")
        for room in _rooms_named(path)
        if path.relative_to(ROOT / package).parts[0].removesuffix(".py") != room
    }
    assert {pair for pair in found if pair[0] not in HUBS} == {pair for pair in SHARED if pair[0].startswith(package)}


def test_rooms_name_no_other_room() -> None:
    for room in ROOMS:
        for path in (ROOT / "program" / room).glob("*.py"):
            file = path.relative_to(ROOT).as_posix()
            assert set(_rooms_named(path)) <= {room, *(other for own, other in SHARED if own == file)}, path


def test_every_row_belongs_to_the_core_or_to_one_room() -> None:
    kinds = [row.kind for each in CAPABILITIES for row in each.buffers]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) <= BUFFERS.keys()
    rows = [op for each in CAPABILITIES if each.opcodes for op in each.opcodes]
    assert len(rows) + len(Op) == len(OPCODES)
    for each in CAPABILITIES:
        own = [*each.opcodes] if each.opcodes else []
        places = [OPCODES.index(op) for op in own]
        assert places == sorted(places)
        assert not own or places[0] > OPCODES.index(each.after or Op.WAIT)
    assert len(HANDLERS) == len([each for each in CAPABILITIES if each.opcodes])
